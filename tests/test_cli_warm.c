/* test_cli_warm.c - convjit warm: what it takes, how it shares the work, and that it goes on where it was stopped. The
 * compiler is the fake NVRTC, which notes its runs in a file. */
#include "cli_fixture.h"

#include <signal.h>
#include <time.h>

static void set_up_fake(void) {
    char path[TESTING_PATH_MAX + 16];
    set_up();
    setenv("CONVJIT_NVRTC", FAKE_NVRTC_PATH, 1);
    (void)snprintf(path, sizeof path, "%s/compiles", folder);
    setenv("FAKE_NVRTC_RECORD", path, 1);
    setenv("CONVJIT_CXX", "/no/such/file", 1); /* looking for it takes longer than all the rest */
}

TestSuite(cli_warm, .init = set_up_fake, .fini = tear_down);

static int count_compiles(void) {
    int exit_status = 0;
    char *text = run("cat $FOLDER/compiles 2>/dev/null | wc -l; : >$FOLDER/compiles", &exit_status);
    const int count = (int)strtol(text, NULL, 10);
    free(text);
    return count;
}

/* A file of `count` layer lines, some of them twice. */
static void write_layers(const char *name, int count) {
    char path[TESTING_PATH_MAX + 64];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    for (int i = 0; i < count; i++) {
        (void)fprintf(file, "layer%d: conv1d n%d c1 k1 in%d f3\n", i, i + 1, i + 3);
        if (i % 10 == 0) {
            (void)fprintf(file, "conv1d c1 k1 in%d f3 # again\n", i + 3);
        }
    }
    (void)fclose(file);
}

/* ---------------------------------------------------------------- what is to be built */

Test(cli_warm, takes_lines_and_files_and_each_layer_once) {
    write_layers("manifest", 20);
    char *text = expect_exit(0, "convjit warm --target sm_80,sm_90a --json $FOLDER/manifest 'conv1d c1 k1 in3 f3' "
                                "'more: conv1d c1 k1 in99 f3' --file $FOLDER/manifest");
    expect_part(text, "\"summary\": {\"layers\": 42, \"ready\": 42, \"missing\": 0, \"failed\": 0, \"refused\": 0, "
                      "\"duplicates\": 25, ");
    expect_part(text, "{\"name\": \"layer19\", \"target\": \"sm_90a\", ");
    free(text);
    cr_expect_eq(count_compiles(), 42);
    text = expect_exit(2, "convjit warm --target sm_80 $FOLDER/absent");
    expect_part(text, "/absent cannot be read: No such file or directory\n");
    free(text);
}

Test(cli_warm, takes_one_suite_of_a_file) {
    char *text = expect_exit(0, "convjit warm --target sm_80 --suite networks tools/bench/layers.txt");
    expect_part(text, "\nrn50_stem_b32 ");
    cr_expect_null(strstr(text, "\nkb62"), "%s", text);
    free(text);
    text = expect_exit(2, "convjit warm --target sm_80 --suite network tools/bench/layers.txt");
    expect_part(text, "no layer given");
    free(text);
}

Test(cli_warm, takes_what_was_recorded) {
    char *text = expect_exit(0, "export CONVJIT_RECORD=$FOLDER/record CONVJIT_CACHE_MODE=off; "
                                "for i in 1 2 3; do convjit warm --target sm_80 'conv1d c1 k1 in4 f3' "
                                "'conv1d c1 k1 in5 f3' >$FOLDER/out; done; wc -l <$FOLDER/record; "
                                "unset CONVJIT_RECORD CONVJIT_CACHE_MODE; "
                                "convjit warm --target sm_90a $FOLDER/record");
    expect_part(text, "6\n");
    expect_part(text, "layers: 2, ready: 2, missing: 0, failed: 0; ");
    free(text);
}

#define CONFORMANCE "/usr/share/libonnx-testdata/data/node/test_conv_with_strides_padding/model.onnx"

Test(cli_warm, takes_the_convolutions_of_a_model) {
    if (access(CONFORMANCE, R_OK) != 0) {
        cr_skip_test("no conformance data: the package libonnx-testdata is not installed");
    }
    char *text = expect_exit(0, "convjit warm --target sm_80 " CONFORMANCE);
    expect_part(text, "conv2d c1 k1 in7x5 f3x3 s2 p1 f32 nchw fp32");
    free(text);
}

/* The smallest model with a convolution: it has no inputs. */
#define BAD_MODEL "printf '\\072\\010\\012\\006\\042\\004Conv' >$FOLDER/bad.onnx; "

Test(cli_warm, lists_what_of_a_model_cannot_be_served_and_builds_the_rest) {
    char *text = expect_exit(1, BAD_MODEL "convjit warm --target sm_80 $FOLDER/bad.onnx 'conv1d c1 k1 in4 f3'");
    expect_part(text, "layers: 1, ready: 1, missing: 0, failed: 0, refused: 1, nodes that are no convolution: 0; ");
    expect_part(text, ": the node lacks an input or output\n");
    free(text);
    text = expect_exit(1, BAD_MODEL "convjit warm --target sm_80 $FOLDER/bad.onnx --json");
    expect_part(text, "\"summary\": {\"layers\": 0, \"ready\": 0, \"missing\": 0, \"failed\": 0, \"refused\": 1, ");
    free(text);
    text = expect_exit(2, "echo nothing >$FOLDER/no.onnx; convjit warm --target sm_80 $FOLDER/no.onnx");
    expect_part(text, "no.onnx is no ModelProto of ONNX, or damaged\n");
    free(text);
}

/* ---------------------------------------------------------------- how the work is shared */

Test(cli_warm, shards_build_everything_once_together) {
    write_layers("manifest", 25);
    for (int i = 0; i < 3; i++) {
        char command[256];
        (void)snprintf(command, sizeof command, "convjit warm --target sm_80,sm_90a --shard %d/3 $FOLDER/manifest", i);
        char *text = expect_exit(0, command);
        expect_part(text, i < 2 ? "layers: 17, ready: 17, " : "layers: 16, ready: 16, ");
        free(text);
        cr_expect_eq(count_compiles(), i < 2 ? 17 : 16);
    }
    char *text = expect_exit(0, "convjit warm --target sm_80,sm_90a --check $FOLDER/manifest");
    expect_part(text, "layers: 50, ready: 50, missing: 0, failed: 0; memory hits: 0, disk hits: 50, ");
    free(text);
    free(expect_exit(0, "convjit warm --target sm_80 --shard 5/6 'conv1d c1 k1 in4 f3'")); /* nothing left for it */
}

Test(cli_warm, wrong_numbers_are_named) {
    static const char *const shards[] = {"3/3", "-1/3", "1", "1/0", "1/2/3", "a/b", "1/2 "};
    for (size_t i = 0; i < sizeof shards / sizeof shards[0]; i++) {
        char command[128];
        (void)snprintf(command, sizeof command, "convjit warm --target sm_80 --shard='%s' 'conv1d c1 k1 in4 f3'",
                       shards[i]);
        char *text = expect_exit(2, command);
        expect_part(text, "is not I/N with whole numbers, I from 0 to N - 1\n");
        free(text);
    }
    char *text = expect_exit(2, "convjit warm --target sm_80 --jobs many 'conv1d c1 k1 in4 f3'");
    expect_part(text, "convjit: --jobs: 'many' is not a whole number from 0 to 256\n");
    free(text);
}

static double seconds_of(const char *command) {
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    free(expect_exit(0, command));
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9;
}

/* The fake compiler sleeps, so this takes no processors. */
Test(cli_warm, jobs_build_at_the_same_time) {
    setenv("FAKE_NVRTC_DELAY_MS", "50", 1);
    write_layers("manifest", 32);
    const double one = seconds_of("convjit warm --target sm_80 --jobs 1 $FOLDER/manifest");
    const double eight = seconds_of("convjit warm --target sm_90a --jobs 8 $FOLDER/manifest");
    cr_expect_geq(one, 1.6);
    cr_expect_leq(eight, one / 4, "%f s and %f s", one, eight);
}

/* ---------------------------------------------------------------- what is there already */

Test(cli_warm, goes_on_where_it_was_killed) {
    enum { LAYERS = 1000, TARGETS = 2, JOBS = 4 };
    write_layers("manifest", LAYERS);
    setenv("FAKE_NVRTC_DELAY_MS", "2", 1);
    int exit_status = 0;
    free(run("exec 2>/dev/null; convjit warm --target sm_80,sm_90a --jobs 4 $FOLDER/manifest >$FOLDER/out & "
             "for i in $(seq 1500); do test \"$(cat $FOLDER/compiles | wc -l)\" -ge 500 && break; sleep 0.02; done; "
             "kill -9 $!; wait",
             &exit_status));
    char *text = expect_exit(1, "convjit warm --target sm_80,sm_90a --check --json $FOLDER/manifest >$FOLDER/out; "
                                "status=$?; tail -3 $FOLDER/out; exit $status");
    cr_expect_null(strstr(text, "\"ready\": 0,"), "%s", text);
    free(text);
    text = expect_exit(0, "convjit warm --target sm_80,sm_90a --jobs 4 $FOLDER/manifest | tail -1");
    expect_part(text, "layers: 2000, ready: 2000, missing: 0, failed: 0; ");
    free(text);
    const int compiles = count_compiles();
    cr_expect_geq(compiles, LAYERS * TARGETS);
    cr_expect_leq(compiles, LAYERS * TARGETS + JOBS, "only those that were under way when it was killed: %d", compiles);
    free(expect_exit(0, "convjit warm --target sm_80,sm_90a $FOLDER/manifest"));
    cr_expect_eq(count_compiles(), 0);
}

Test(cli_warm, with_a_compiler_that_always_fails_takes_all_that_is_cached) {
    write_layers("manifest", 10);
    free(expect_exit(0, "convjit warm --target sm_80 $FOLDER/manifest"));
    cr_expect_eq(count_compiles(), 10);
    setenv("FAKE_NVRTC_FAIL", "error: no licence", 1);
    char *text = expect_exit(0, "convjit warm --target sm_80 $FOLDER/manifest");
    expect_part(text, "layers: 10, ready: 10, missing: 0, failed: 0; memory hits: 0, disk hits: 10, misses: 0, "
                      "compiles: 0\n");
    free(text);
    cr_expect_eq(count_compiles(), 0);
    text = expect_exit(1, "convjit warm --target sm_80 $FOLDER/manifest 'new: conv1d c1 k1 in99 f3'");
    expect_part(text, "layers: 11, ready: 10, missing: 0, failed: 1; ");
    expect_part(text, "new for sm_80: create failed for ");
    expect_part(text, "error: no licence");
    free(text);
}

Test(cli_warm, check_builds_nothing_and_says_what_is_missing) {
    char *text = expect_exit(1, "convjit warm --target sm_80 --check 'a: conv1d c1 k1 in4 f3'; status=$?; "
                                "test ! -e $FOLDER/cache || echo made; exit $status");
    expect_part(text, "missing\n");
    expect_part(text, "layers: 1, ready: 0, missing: 1, failed: 0; ");
    cr_expect_null(strstr(text, "made\n"));
    free(text);
    cr_expect_eq(count_compiles(), 0);
    text = expect_exit(1, "convjit warm --target sm_80 --check --json 'conv1d c1 k1 in4 f3'");
    expect_part(text, "\"message\": \"create failed for conv1d c1 k1 in4 f3 s1 p0 f32 nchw fp32: key ");
    expect_part(text, "\"result\": \"missing\"}");
    free(text);
    free(expect_exit(0, "convjit warm --target sm_80 'conv1d c1 k1 in4 f3' && "
                        "CONVJIT_NVRTC=/no/such/file convjit warm --target sm_80 --check 'conv1d c1 k1 in4 f3'"));
}

/* Entries of another compiler build are stale where that compiler is: a run after an upgrade replaces them. */
Test(cli_warm, after_a_compiler_upgrade_builds_anew) {
    free(expect_exit(0, "convjit warm --target sm_80 'conv1d c1 k1 in4 f3'"));
    setenv("FAKE_NVRTC_VERSION", "13.1.2", 1);
    char *text = expect_exit(0, "convjit warm --target sm_80 'conv1d c1 k1 in4 f3' && convjit cache list --json");
    expect_part(text, "compiles: 1, damaged or stale entries: 1\n");
    expect_part(text, "\"compiler\": \"nvrtc 13.1.2\"");
    expect_part(text, "\"summary\": {\"entries\": 1, \"damaged\": 0, ");
    free(text);
}
