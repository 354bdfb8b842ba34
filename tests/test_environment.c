#include "environment.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

#define ASSERT_TEXT_HAS(text, part) cr_assert_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text)

static void use_fakes(void) {
    setenv("CONVJIT_NVRTC", FAKE_NVRTC_PATH, 1);
    setenv("CONVJIT_DRIVER", FAKE_DRIVER_PATH, 1);
}

static void use_nothing(void) {
    setenv("CONVJIT_NVRTC", "/nowhere/libnvrtc.so", 1);
    setenv("CONVJIT_DRIVER", "/nowhere/libcuda.so.1", 1);
    setenv("CONVJIT_CXX", "/nowhere/c++", 1);
}

Test(environment, names_what_is_there, .init = use_fakes) {
    setenv("FAKE_NVRTC_ARCHS", "80 90", 1);
    cj_target target;
    convjit_environment found;
    cr_assert_eq(cj_target_parse("sm_90a", &target), CONVJIT_SUCCESS);
    cj_environment_fill(&target, "/some/where (CONVJIT_CACHE_DIR)", &found);
    cr_assert_str_eq(found.version, CONVJIT_VERSION);
    cr_assert_str_eq(found.target, "sm_90a");
    cr_assert_str_eq(found.device, "Fake GPU 0, sm_90a, driver for CUDA 13.0");
    cr_assert_str_eq(found.nvrtc_targets, "sm_80 sm_90 sm_90a");
    cr_assert_str_eq(found.cache_directory, "/some/where (CONVJIT_CACHE_DIR)");
    ASSERT_TEXT_HAS(found.driver, "for CUDA 13.0, /");
    ASSERT_TEXT_HAS(found.nvrtc, "13.0.88, /");
    cr_assert_neq(found.host_compiler[0], '\0');
}

Test(environment, shows_device_0_where_no_context_is_current, .init = use_fakes) {
    setenv("FAKE_DRIVER_CONTEXT", "none", 1);
    convjit_environment found;
    cj_environment_fill(NULL, "", &found);
    cr_assert_str_eq(found.target, "");
    cr_assert_str_eq(found.device, "Fake GPU 0, sm_90a, driver for CUDA 13.0 (no context is current)");
}

Test(environment, says_why_there_is_no_device, .init = use_fakes) {
    setenv("FAKE_DRIVER_CONTEXT", "none", 1);
    setenv("FAKE_DRIVER_DEVICES", "0", 1);
    convjit_environment found;
    cj_environment_fill(NULL, "", &found);
    ASSERT_TEXT_HAS(found.device, "CUDA_ERROR_NO_DEVICE");
    ASSERT_TEXT_HAS(found.driver, "for CUDA 13.0");
}

Test(environment, says_in_one_line_each_why_a_part_is_missing, .init = use_nothing) {
    convjit_environment found;
    cj_environment_fill(NULL, "", &found);
    const char *const texts[] = {found.device, found.driver, found.nvrtc, found.host_compiler};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        ASSERT_TEXT_HAS(texts[i], "/nowhere/");
        cr_assert_null(strchr(texts[i], '\n'), "%s", texts[i]);
    }
    cr_assert_str_eq(found.nvrtc_targets, "");
}

Test(environment, keeps_the_error_text_of_the_thread, .init = use_nothing) {
    cj_fail(CONVJIT_INTERNAL, "the text of before");
    convjit_environment found;
    cj_environment_fill(NULL, "", &found);
    cr_assert_str_eq(convjit_last_error(), "the text of before");
}
