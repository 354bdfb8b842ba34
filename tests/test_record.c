/* test_record.c - the record file: what it gains, from how many, and that it fails nobody. */
#include "layer_fixture.h"

#include <sys/wait.h>

TestSuite(record, .init = enter_layer, .fini = leave);

static convjit_context *open_recording(const char *target, const char *file, convjit_cache_mode mode) {
    convjit_options options = options_for(target);
    options.record_file = file;
    options.cache_mode = mode;
    convjit_context *context = NULL;
    ASSERT_OK(convjit_open(&options, &context));
    return context;
}

static void expect_file(const char *path, const char *wanted) {
    char text[4096] = "";
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s: %s", path, strerror(errno));
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    cr_expect_str_eq(text, wanted);
}

static const char a[] = "conv2d c2 k8 in5x6 f3x3 s1 p1 f32 nchw fp32"; /* in full, as format writes it */
static const char b[] = "conv2d c2 k8 f3x3 s1 p1 f32 nchw fp32 relu";

static void try_all(convjit_context *context) {
    static const char *const tried[] = {a, b, "conv2d n7 c2 k8 in5x6 f3x3 p1", b, "conv2d c2 k8 in1x1 f3x3"};
    for (size_t i = 0; i < sizeof tried / sizeof tried[0]; i++) {
        convjit_layer *layer;
        (void)try_create(context, tried[i], &layer);
        convjit_layer_destroy(layer);
    }
}

Test(record, gains_each_layer_that_is_created_once_a_context) {
    char wanted[256];
    char path[TESTING_PATH_MAX];
    snprintf(path, sizeof path, "%s", below("record"));
    snprintf(wanted, sizeof wanted, "%s\n%s\n", a, b);
    convjit_context *context = open_recording(NULL, path, CONVJIT_CACHE_NORMAL);
    try_all(context);
    convjit_close(context);
    expect_file(path, wanted);
    context = open_recording("sm_80", path, CONVJIT_CACHE_NORMAL);
    try_all(context);
    convjit_close(context);
    char twice[512];
    snprintf(twice, sizeof twice, "%s%s", wanted, wanted);
    expect_file(path, twice);
}

Test(record, gains_what_the_cache_lacks_and_is_chosen_by_the_setting) {
    char wanted[256];
    setenv("CONVJIT_RECORD", below("record"), 1);
    snprintf(wanted, sizeof wanted, "%s\n%s\n", a, b);
    convjit_context *context = open_recording(NULL, NULL, CONVJIT_CACHE_ONLY);
    try_all(context);
    convjit_close(context);
    expect_file(below("record"), wanted);
}

Test(record, that_cannot_be_written_fails_no_create) {
    const char *const files[] = {"/proc/self/nowhere/record", "/dev/full"};
    static const char *const words[] = {"record: layers are not recorded: cannot open /proc/self/nowhere/record: ",
                                        "was not recorded: No space left on device"};
    for (int i = 0; i < 2; i++) {
        line_count = 0;
        convjit_context *context = open_recording(NULL, files[i], CONVJIT_CACHE_OFF);
        convjit_layer_destroy(create(context, a));
        convjit_layer_destroy(create(context, b));
        cr_expect_eq(line_count, 3, "said once, beside one line a create");
        cr_expect_not_null(strstr(lines[0], words[i]), "%s", lines[0]);
        convjit_close(context);
    }
}

enum { PROCESSES = 8, RECORDED = 40 };

Test(record, lines_of_many_processes_do_not_mix) {
    pid_t children[PROCESSES];
    setenv("CONVJIT_RECORD", below("record"), 1);
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            convjit_options options = CONVJIT_OPTIONS_INIT;
            convjit_context *context = NULL;
            options.target = "sm_80", options.cache_mode = CONVJIT_CACHE_ONLY; /* asks, and records, and no more */
            ASSERT_OK(convjit_open(&options, &context));
            for (int k = 0; k < RECORDED; k++) {
                char line[64];
                convjit_layer *layer;
                snprintf(line, sizeof line, "conv1d c%d k%d in9 f3", i + 1, k + 1);
                (void)try_create(context, line, &layer);
            }
            _exit(0);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = -1;
        cr_assert_eq(waitpid(children[i], &status, 0), children[i]);
        cr_expect_eq(status, 0);
    }
    int seen[PROCESSES][RECORDED] = {{0}};
    int count = 0;
    char line[1024];
    FILE *file = fopen(below("record"), "r");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        convjit_desc desc;
        line[strcspn(line, "\n")] = '\0';
        cr_assert_eq(convjit_layer_line_parse(line, &desc, NULL), CONVJIT_SUCCESS, "%s", convjit_last_error());
        seen[desc.in_channels - 1][desc.out_channels - 1]++;
        count++;
    }
    fclose(file);
    cr_expect_eq(count, PROCESSES * RECORDED);
    for (int i = 0; i < PROCESSES * RECORDED; i++) {
        cr_expect_eq(seen[i / RECORDED][i % RECORDED], 1);
    }
}
