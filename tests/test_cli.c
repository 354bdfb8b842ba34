/* test_cli.c - the command-line tool as a user meets it: what it prints, and its exit status.
 *
 * A file of tests/cli/ is a transcript: lines "$ COMMAND" for the shell, then what the command prints (standard output,
 * then standard error), then "-> EXIT STATUS". In JSON, values that differ from run to run or with the kernels are
 * printed as *. The commands of a file share a cache that is empty at first. */
#include "cli_fixture.h"

TestSuite(cli, .init = set_up, .fini = tear_down);

/* Cuts the values of these names to *. */
static void mask(char *text) {
    static const char *const names[] = {
        "config", "key", "create_ms", "forward_ms", "gflops", "worst_over_sum", "worst_over_tolerance", "compile_ms"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "\"%s\": ", names[i]);
        for (char *at = strstr(text, name); at != NULL; at = strstr(at, name)) {
            at += strlen(name);
            char *end = *at == '"' ? strchr(at + 1, '"') + 1 : at + strcspn(at, ",}");
            *at = '*';
            memmove(at + 1, end, strlen(end) + 1);
        }
    }
    /* A message is compared where it is printed for people. */
    for (char *at = strstr(text, "\"message\": \""); at != NULL; at = strstr(at, "\"message\": \"")) {
        at += strlen("\"message\": ");
        char *end = at + 1;
        while (*end != '"') {
            end += *end == '\\' ? 2 : 1;
        }
        *at = '*';
        memmove(at + 1, end + 1, strlen(end + 1) + 1);
    }
}

/* The first line in which the texts differ, as a message. */
static void expect_same(const char *file, const char *got, const char *wanted) {
    for (int number = 1; *got != '\0' || *wanted != '\0'; number++) {
        const size_t got_length = strcspn(got, "\n");
        const size_t wanted_length = strcspn(wanted, "\n");
        if (got_length != wanted_length || memcmp(got, wanted, got_length) != 0) {
            cr_expect(false, "%s:%d differs\ngot:    %.*s\nwanted: %.*s", file, number, (int)got_length, got,
                      (int)wanted_length, wanted);
            return;
        }
        got += got_length + (got[got_length] != '\0');
        wanted += wanted_length + (wanted[wanted_length] != '\0');
    }
}

static void check_transcript(const char *file) {
    char *line = NULL;
    size_t capacity = 0;
    char *got = NULL;
    char *wanted = NULL;
    size_t got_size = 0;
    size_t wanted_size = 0;
    FILE *in = fopen(file, "r");
    FILE *got_out = open_memstream(&got, &got_size);
    FILE *wanted_out = open_memstream(&wanted, &wanted_size);
    cr_assert(in != NULL && got_out != NULL && wanted_out != NULL, "%s: %s", file, strerror(errno));
    while (getline(&line, &capacity, in) >= 0) {
        (void)fputs(line, wanted_out);
        if (strncmp(line, "$ ", 2) == 0) {
            int exit_status = 0;
            char *text = run(line + 2, &exit_status);
            mask(text);
            (void)fprintf(got_out, "%s%s-> %d\n", line, text, exit_status);
            free(text);
        }
    }
    (void)fclose(in);
    (void)fclose(got_out);
    (void)fclose(wanted_out);
    expect_same(file, got, wanted);
    free(line);
    free(got);
    free(wanted);
}

Test(cli, wrong_command_lines_are_named_and_exit_with_2) {
    check_transcript("tests/cli/usage.txt");
}

Test(cli, run_compares_and_reports_each_layer) {
    skip_without_host_compiler();
    check_transcript("tests/cli/run.txt");
}

Test(cli, warm_reports_hits_misses_and_what_is_missing) {
    skip_without_host_compiler();
    check_transcript("tests/cli/warm.txt");
}

static void expect_in_order(const char *text, const char *const *parts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const char *at = strstr(text, parts[i]);
        cr_assert(at != NULL, "\"%s\" is missing, or not behind the part before it, in:\n%s", parts[i], text);
        text = at + strlen(parts[i]);
    }
}

/* Every cell of a text column starts where its title does. */
static void expect_aligned(const char *table, const char *title, const char *const *cells, size_t count) {
    const char *row = strstr(table, "name ");
    cr_assert(row != NULL, "no table in:\n%s", table);
    const char *at = strstr(row, title);
    cr_assert(at != NULL, "no column %s in:\n%s", title, table);
    const size_t column = (size_t)(at - row);
    for (size_t i = 0; i < count; i++) {
        row = strchr(row, '\n') + 1;
        cr_assert(strcspn(row, "\n") > column, "row %zu is too short in:\n%s", i, table);
        cr_expect(strncmp(row + column, cells[i], strlen(cells[i])) == 0, "row %zu, column %s: not %s in:\n%s", i,
                  title, cells[i], table);
    }
}

Test(cli, table_columns_align) {
    skip_without_host_compiler();
    char *text =
        expect_exit(1, "convjit run --target cpu 'x: conv1d c1 k1 in4 f3 p1' "
                       "'a_long_name: conv2d n2 c2 k2 g2 in4x5 f3x3 p1x0:0x1 nhwc silu' 'y: conv1d c3 k2 g2 in4 f1'");
    expect_aligned(text, "layer", (const char *const[]){"conv1d", "conv2d", "conv1d"}, 3);
    expect_aligned(text, "family", (const char *const[]){"depthwise ", "direct ", "- "}, 3);
    expect_aligned(text, "cache", (const char *const[]){"miss ", "miss ", "- "}, 3);
    expect_aligned(text, "result", (const char *const[]){"pass\n", "pass\n", "FAIL\n"}, 3);
    expect_part(text, "layers: 3, passed: 2, failed: 1; memory hits: 0, disk hits: 0, misses: 2, compiles: 2\n");
    free(text);
}

Test(cli, run_without_a_gpu_says_so_and_takes_the_cpu) {
    skip_without_host_compiler();
    char *text = expect_exit(0, "convjit run 'conv1d c1 k1 in4 f3 p1'");
    expect_part(text, "no GPU (");
    expect_part(text, "running on the target cpu\ntarget cpu (the host)\n");
    free(text);
}

Test(cli, run_for_a_gpu_that_is_not_here_exits_with_2) {
    char *text = expect_exit(2, "convjit run --target sm_90a 'conv1d c1 k1 in4 f3 p1'");
    expect_part(text, "convjit: --target: sm_90a cannot run here: opening the CUDA driver failed: ");
    free(text);
}

/* Needs no compiler and no GPU, for whatever target; leaves the cache alone. */
Test(cli, why_explains_layers_for_any_target_and_runs_none) {
    static const char *const parts[] = {"a: conv2d n2 c4 k8 in9x9 f3x3 s1 p0 f16 nchw fp32\non sm_90a; ",
                                        "\ntensor: ",
                                        "\ndirect: chosen, ",
                                        " ms for a batch of 2\n  * ",
                                        "\n\n2: conv1d n1 c1 k1 f3 s1 p0 f32 nchw fp32\n",
                                        "\ndirect: chosen, "};
    setenv("CONVJIT_CXX", "/no/such/file", 1);
    unsetenv("CONVJIT_FAMILY");
    char *text =
        expect_exit(0, "convjit run --why --target sm_90a 'a: conv2d n2 c4 k8 in9x9 f3x3 f16' 'conv1d c1 k1 f3' && "
                       "test ! -e $FOLDER/cache");
    expect_in_order(text, parts, sizeof parts / sizeof parts[0]);
    free(text);
    text = expect_exit(0, "convjit run --why 'conv1d c1 k1 in4 f3'");
    expect_part(text, "\non cpu; ");
    free(text);
}

Test(cli, why_fails_where_no_family_computes_a_layer_or_there_is_no_such_target) {
    char *text = expect_exit(1, "CONVJIT_FAMILY=tensor convjit run --why --target sm_80 'x: conv1d c1 k1 in4 f3'");
    expect_part(text, "\ntensor: refuses, not sm_90a\n");
    expect_part(text, "\nx: CONVJIT_UNSUPPORTED: no family computes this layer on sm_80: ");
    free(text);
    text = expect_exit(2, "convjit run --why --target sm_9x 'conv1d c1 k1 in4 f3'");
    expect_part(text, "convjit: --target: ");
    expect_part(text, "sm_9x");
    free(text);
}

Test(cli, why_as_json_has_the_lines_of_each_layer) {
    static const char *const parts[] = {"{\n  \"layers\": [\n    {\"name\": \"a\", \"line\": \"conv1d n1 c1 k1 in4 f3 ",
                                        "\"why\": [\n      \"on sm_80; ", ",\n      \"depthwise: chosen, ",
                                        "]},\n    {\"name\": \"b\", ", "]}\n  ]\n}\n"};
    char *text =
        expect_exit(0, "convjit run --why --json --target sm_80 'a: conv1d c1 k1 in4 f3' 'b: conv1d c1 k1 in5 f3' && "
                       "convjit run --why --json --target sm_80 'conv1d c1 k1 in4 f3' | "
                       "{ ! command -v python3 >/dev/null || python3 -m json.tool >/dev/null; }");
    expect_in_order(text, parts, sizeof parts / sizeof parts[0]);
    free(text);
}

Test(cli, every_kind_of_data_and_math_passes) {
    skip_without_host_compiler();
    static const char *const commands[] = {
        "convjit run --target cpu --distribution uniform 'conv1d c32 k2 in50 f3'",
        "convjit run --target cpu --distribution wide --seed 3 'conv1d c32 k2 in50 f3'",
        "convjit run --target cpu --math tf32 'conv1d c4 k2 in50 f3 gelu'",
        "convjit run --target cpu --in 50 'conv1d c4 k2 f3 f16 beta=0.5 alpha=2'",
        "convjit run --target cpu --repeat=3 --check=0 --in=5x6 'conv2d c4 k2 f3x3 f32 weights=bf16'",
    };
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        free(expect_exit(0, commands[i]));
    }
}

Test(cli, dump_leaves_source_and_binary_and_cache_its_entries) {
    skip_without_host_compiler();
    char *text = expect_exit(0, "convjit run --target cpu --cache $FOLDER/other --dump $FOLDER/dump "
                                "'conv1d c1 k1 in4 f3 p1' >$FOLDER/table && test ! -e $FOLDER/cache && "
                                "test -n \"$(find $FOLDER/other -type f)\" && ls $FOLDER/dump");
    expect_part(text, ".cu\n");
    cr_expect(strchr(text, '\n') != strrchr(text, '\n'), "only one file was dumped: %s", text);
    free(text);
}

Test(cli, warm_that_cannot_write_its_cache_fails) {
    skip_without_host_compiler();
    char *text = expect_exit(1, "touch $FOLDER/file; "
                                "convjit warm --target cpu --cache $FOLDER/file/cache 'conv1d c1 k1 in4 f3 p1'");
    expect_part(text, "entries not written: 1\n");
    expect_part(text, "1 for cpu: built, but not written to the cache\n");
    free(text);
}

Test(cli, warm_takes_the_targets_apart_before_it_builds) {
    char *text = expect_exit(2, "convjit warm --target sm_90a,sm_9x 'conv1d c1 k1 in4 f3 p1'");
    expect_part(text, "sm_9x");
    cr_expect(strstr(text, "ready") == NULL, "%s", text);
    free(text);
}

Test(cli, info_needs_neither_gpu_nor_nvrtc) {
    static const char *const titles[] = {"convjit ",  "0.1.0",    "\ntarget ",        "\ndevice ",
                                         "\ndriver ", "\nNVRTC ", "\nNVRTC targets ", "\nhost compiler ",
                                         "\ncache "};
    char *text = expect_exit(0, "convjit info");
    expect_in_order(text, titles, sizeof titles / sizeof titles[0]);
    expect_part(text, "/cache (CONVJIT_CACHE_DIR)\n");
    free(text);
    text = expect_exit(0, "CONVJIT_CACHE_MODE=cache-only convjit info");
    expect_part(text, "/cache (CONVJIT_CACHE_DIR); mode cache-only\n");
    free(text);
    text = expect_exit(0, "CONVJIT_CACHE_MODE=none convjit info");
    expect_part(text, "CONVJIT_CACHE_MODE is \"none\", must be normal, cache-only, refresh or off\n");
    free(text);
    static const char *const names[] = {"{\n  \"version\": \"0.1.0\",\n",
                                        "\"target\": \"\",\n",
                                        "\"device\": \"opening the CUDA driver failed: ",
                                        "\"driver\": \"opening the CUDA driver failed: ",
                                        "\"nvrtc\": \"opening NVRTC failed: ",
                                        "\"nvrtc_targets\": \"\",\n",
                                        "\"host_compiler\": ",
                                        "\"cache_directory\": ",
                                        "\"\n}\n"};
    text = expect_exit(0, "convjit info --json");
    expect_in_order(text, names, sizeof names / sizeof names[0]);
    free(text);
}

/* The fake driver notes launches instead of running them: nothing writes y. */
Test(cli, on_a_gpu_whose_kernels_write_nothing_run_fails) {
    setenv("CONVJIT_DRIVER", FAKE_DRIVER_PATH, 1);
    setenv("CONVJIT_NVRTC", FAKE_NVRTC_PATH, 1);
    setenv("FAKE_DRIVER_CONTEXT", "none", 1);
    char *text = expect_exit(1, "convjit run 'conv2d c1 k2 in3x4 f1x1'");
    expect_part(text, "target sm_90a (Fake GPU 0)\n");
    expect_part(text, "1: 24 of 24 outputs are off, worst at [n=0 k=0 y=0 x=0]: got nan, want ");
    free(text);
    text = expect_exit(0, "convjit run --target sm_90a --check 0 --json 'conv2d c1 k2 in3x4 f1x1'");
    expect_part(text, "\"cache\": \"disk hit\"");
    expect_part(text, "\"result\": \"pass\"");
    cr_expect(strstr(text, "\"predicted_ms\": null") == NULL, "%s", text);
    cr_expect(strstr(text, "\"forward_ms\": null") == NULL, "timed, also where nothing is compared: %s", text);
    free(text);
    text = expect_exit(2, "convjit run --target sm_80 'conv2d c1 k2 in3x4 f1x1'");
    expect_part(text, "convjit: --target: sm_80 cannot run here, the GPU is sm_90a; convjit warm builds for others\n");
    free(text);
}

Test(cli, an_error_of_the_gpu_fails_the_layer) {
    setenv("CONVJIT_DRIVER", FAKE_DRIVER_PATH, 1);
    setenv("CONVJIT_NVRTC", FAKE_NVRTC_PATH, 1);
    setenv("FAKE_DRIVER_CONTEXT", "none", 1);
    char *text = expect_exit(1, "FAKE_DRIVER_ALLOCATE=2 convjit run 'conv2d c1 k2 in3x4 f1x1'");
    expect_part(text, "1: allocating 48 bytes failed: CUDA_ERROR_OUT_OF_MEMORY, out of memory\n");
    free(text);
    text = expect_exit(1, "FAKE_DRIVER_LAUNCH=700 convjit run 'conv2d c1 k2 in3x4 f1x1'");
    expect_part(text, "1: CONVJIT_LAUNCH_FAILED: ");
    free(text);
    text = expect_exit(2, "FAKE_DRIVER_DEVICES=0 convjit run --target sm_90a 'conv2d c1 k2 in3x4 f1x1'");
    expect_part(text, "convjit: --target: sm_90a cannot run here: ");
    free(text);
}
