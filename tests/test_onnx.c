/* test_onnx.c - ONNX's conformance cases through the reader, on the target cpu and on the reference itself. */
#include <criterion/criterion.h>
#include <unistd.h>

#include "onnx_case.h"

/* Conv and ConvTranspose cases of libonnx-testdata 1.12: 16 of node/, 28 of pytorch-converted/, 2 of
 * pytorch-operator/. */
enum { CASES = 46 };

static char **find_cases(void) {
    size_t count = 0;
    char **folders = onnx_case_find(ONNX_CASE_ROOT, &count);
    if (folders == NULL && access(ONNX_CASE_ROOT, R_OK) != 0) {
        cr_skip_test("no conformance data: the package libonnx-testdata is not installed");
    }
    cr_assert_eq(count, CASES, "found %zu cases, want %d", count, CASES);
    return folders;
}

Test(onnx, reference_gives_the_expected_output_of_every_case) {
    char **folders = find_cases(), text[4096];
    for (size_t i = 0; i < CASES; ++i) {
        cr_expect_eq(onnx_case_check_reference(folders[i], text, sizeof text), ONNX_PASSED, "%s: %s", folders[i], text);
    }
    onnx_case_list_free(folders, CASES);
}

Test(onnx, cpu_gives_the_expected_output_of_every_case) { /* a sample under sanitizers, as of the grid */
    char **folders = find_cases(), text[4096];
    numerics on;
    cr_assert(numerics_open("cpu", &on, text, sizeof text), "%s", text);
    for (size_t i = 0; i < CASES; i += testing_stride()) {
        cr_expect_eq(onnx_case_run(&on, CONVJIT_FP32, folders[i], text, sizeof text), ONNX_PASSED, "%s: %s", folders[i],
                     text);
    }
    numerics_close(&on);
    onnx_case_list_free(folders, CASES);
}
