/* test_stamp.c - the source of a layer: its constants, the files it is made of, and that nothing else reaches it. */
#include "stamp.h"

#include <criterion/criterion.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "embedded.h"
#include "nvrtc_library.h"
#include "testing.h"

/* One layer of each kind; every number of the first differs from all others. */
static const char *const lines[] = {
    "conv3d c102 k119 g17 in211x223x227 f5x7x11 s2x3x4 d13x19x23 p29x31x37:41x43x47 alpha=0.3 beta=0.7 "
    "clamp=-0.1:0.9",
    "convt2d c6 k10 g2 in9x13 f5x4 s3x2 d2x3 p1 f16 nhwc krsc bias=f16 leaky_relu=0.01",
    "conv2d c3 k20 f5x9 bf16 weights=bf16 silu",
    "conv1d c5 k7 in100 f31 p15 tanh",
};
enum { LINES = sizeof lines / sizeof lines[0] };

static cj_problem problem_of(const char *line) {
    convjit_desc desc;
    cj_problem problem;
    cr_assert_eq(convjit_layer_line_parse(line, &desc, NULL), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_assert_eq(cj_problem_make(&desc, &problem), CONVJIT_SUCCESS, "%s", convjit_last_error());
    return problem;
}

static cj_target target_of(const char *name) {
    cj_target target;
    cr_assert_eq(cj_target_parse(name, &target), CONVJIT_SUCCESS, "%s", convjit_last_error());
    return target;
}

/* To be freed with cj_text_free. */
static cj_text stamp_as(const cj_family *family, const cj_problem *problem, const char *target_name) {
    const cj_target target = target_of(target_name);
    cj_plan plan = {.family = family};
    cj_text source = {0};
    family->plan(problem, &target, &plan);
    cr_assert_eq(cj_stamp(problem, &plan, &target, &source), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_assert_eq(strlen(source.data), source.size);
    return source;
}

static cj_text stamp(const char *line, const char *target) {
    const cj_problem problem = problem_of(line);
    return stamp_as(&cj_family_direct, &problem, target);
}

/* The value of "#define NAME VALUE", which must be there once. */
static void constant(const char *source, const char *name, char value[64]) {
    char head[64];
    const int length = snprintf(head, sizeof head, "#define %s ", name);
    const char *found = strstr(source, head);
    cr_assert_not_null(found, "%s is not stamped", name);
    cr_assert_null(strstr(found + 1, head), "%s is stamped twice", name);
    cr_assert_eq(sscanf(found + length, "%63[^/\n]", value), 1);
    value[strcspn(value, " ")] = '\0';
}

static void expect_constant(const char *source, const char *name, const char *expected) {
    char value[64];
    constant(source, name, value);
    cr_expect_str_eq(value, expected, "%s", name);
}

/* ---------------------------------------------------------------- constants */

Test(stamp, every_number_of_the_layer_is_in_the_head) {
    static const char *const expected[][2] = {
        {"CJ_GROUPS", "17"},       {"CJ_GROUP_IN", "6"},     {"CJ_GROUP_OUT", "7"},   {"CJ_TRANSPOSED", "0"},
        {"CJ_DYNAMIC", "0"},       {"CJ_DATA_TYPE", "0"},    {"CJ_WEIGHT_TYPE", "0"}, {"CJ_BIAS_TYPE", "0"},
        {"CJ_CHANNELS_LAST", "0"}, {"CJ_WEIGHTS_LAST", "0"}, {"CJ_HAS_Z", "1"},       {"CJ_ACTIVATION", "8"},
        {"CJ_IN_Z", "211"},        {"CJ_IN_Y", "223"},       {"CJ_IN_X", "227"},      {"CJ_KERNEL_Z", "5"},
        {"CJ_KERNEL_Y", "7"},      {"CJ_KERNEL_X", "11"},    {"CJ_STRIDE_Z", "2"},    {"CJ_STRIDE_Y", "3"},
        {"CJ_STRIDE_X", "4"},      {"CJ_DILATION_Z", "13"},  {"CJ_DILATION_Y", "19"}, {"CJ_DILATION_X", "23"},
        {"CJ_PAD_Z", "29"},        {"CJ_PAD_Y", "31"},       {"CJ_PAD_X", "37"},      {"CJ_OUT_Z", "115"},
        {"CJ_OUT_Y", "61"},        {"CJ_OUT_X", "21"},
    };
    cj_text source = stamp(lines[0], "sm_80");
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        expect_constant(source.data, expected[i][0], expected[i][1]);
    }
    cj_text_free(&source);
    source = stamp(lines[1], "sm_80");
    expect_constant(source.data, "CJ_TRANSPOSED", "1");
    expect_constant(source.data, "CJ_DATA_TYPE", "1");
    expect_constant(source.data, "CJ_WEIGHT_TYPE", "1");
    expect_constant(source.data, "CJ_BIAS_TYPE", "1");
    expect_constant(source.data, "CJ_CHANNELS_LAST", "1");
    expect_constant(source.data, "CJ_WEIGHTS_LAST", "1");
    expect_constant(source.data, "CJ_HAS_Z", "0");
    expect_constant(source.data, "CJ_ACTIVATION", "2");
    cj_text_free(&source);
    source = stamp(lines[2], "sm_80");
    expect_constant(source.data, "CJ_DYNAMIC", "1");
    expect_constant(source.data, "CJ_DATA_TYPE", "2");
    expect_constant(source.data, "CJ_IN_X", "0");
    cj_text_free(&source);
}

Test(stamp, whole_numbers_keep_all_their_digits) {
    static const struct {
        int64_t value;
        const char *text;
    } cases[] = {
        {0, "0"},
        {-7, "-7"},
        {INT32_MAX, "2147483647"},
        {(int64_t)INT32_MAX + 1, "2147483648LL"},
        {(int64_t)INT32_MIN - 1, "-2147483649LL"},
        {INT64_MAX, "9223372036854775807LL"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[128];
        cj_text text = {0};
        cj_stamp_int(&text, "CJ_NAME", cases[i].value, "meaning");
        snprintf(line, sizeof line, "#define CJ_NAME %s /* meaning */\n", cases[i].text);
        cr_expect_str_eq(text.data, line);
        cj_text_free(&text);
    }
}

static float float_of(const char *source, const char *name) {
    char value[64];
    int32_t bits = 0;
    float number;
    constant(source, name, value);
    cr_assert_eq(sscanf(value, "__int_as_float(%d)", &bits), 1, "%s", value);
    memcpy(&number, &bits, sizeof number);
    return number;
}

Test(stamp, floats_keep_every_bit) {
    static const float values[] = {0.0F,          -0.0F,          0.1F,     1.0F / 3.0F, -1e-45F, 1.17549435e-38F,
                                   3.4028235e38F, -3.4028235e38F, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        cj_problem problem = problem_of("conv2d c2 k3 in4x4 f1x1 leaky_relu=1");
        problem.desc.alpha = problem.desc.beta = problem.desc.activation_a = values[i];
        cj_text source = stamp_as(&cj_family_direct, &problem, "sm_80");
        static const char *const names[] = {"CJ_ALPHA", "CJ_BETA", "CJ_ACTIVATION_A"};
        for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
            const float got = float_of(source.data, names[n]);
            cr_expect_arr_eq(&got, &values[i], sizeof got, "%s of %a is %a", names[n], (double)values[i], (double)got);
        }
        expect_constant(source.data, "CJ_HAS_Z", values[i] != 0.0F ? "1" : "0");
        cj_text_free(&source);
    }
}

/* ---------------------------------------------------------------- the files */

static const cj_embedded_file *embedded(const char *name) {
    for (const cj_embedded_file *file = cj_embedded_files; file->name != NULL; file++) {
        if (strcmp(file->name, name) == 0) {
            return file;
        }
    }
    return NULL;
}

/* Start of the line with this number, counted from 1; NULL where the file ends before. */
static const char *line_of(const char *text, int number) {
    while (text != NULL && number-- > 1) {
        text = strchr(text, '\n');
        text = text != NULL ? text + 1 : NULL;
    }
    return text;
}

/* Every line of the source after a #line is that line of the file it names: compilers then point at the right one. */
static void expect_lines_are_those_of_the_files(const char *source, const char *words) {
    const char *in_file = NULL;
    int files = 0, words_files = 0;
    for (const char *line = strstr(source, "#line "); line != NULL && *line != '\0';) {
        const size_t length = strcspn(line, "\n") + 1;
        int number;
        char name[64];
        if (sscanf(line, "#line %d \"%63[^\"]\"", &number, name) == 2) {
            cr_assert_not_null(embedded(name), "%s is not embedded", name);
            in_file = line_of(embedded(name)->text, number);
            cr_assert_not_null(in_file, "%s has no line %d", name, number);
            files += number == 1;
            words_files += number == 1 && strncmp(name, words, strlen(words)) == 0;
        } else {
            cr_assert(in_file != NULL && strncmp(line, in_file, length) == 0, "%.*s", (int)length, line);
            in_file += length;
        }
        line += length;
    }
    cr_expect_gt(files, 5);
    cr_expect_gt(words_files, 0);
}

Test(stamp, the_rest_is_the_files_with_their_line_numbers_and_no_include_is_left) {
    for (size_t i = 0; i < LINES; i++) {
        cj_text cuda = stamp(lines[i], "sm_80"), cpu = stamp(lines[i], "cpu");
        cr_expect_null(strstr(cuda.data, "#include \""));
        cr_expect_null(strstr(cuda.data, "\n#include"));
        cr_expect_null(strstr(cpu.data, "\n#include"));
        expect_lines_are_those_of_the_files(cuda.data, "cuda/");
        expect_lines_are_those_of_the_files(cpu.data, "cpu/");
        cj_text_free(&cuda);
        cj_text_free(&cpu);
    }
}

/* Takes out what lies between a #line that names a file of this folder and the next that does not. */
static void cut_files(char *source, const char *folder) {
    char *out = source;
    bool inside = false;
    for (const char *line = source; *line != '\0';) {
        const size_t length = strcspn(line, "\n") + (strchr(line, '\n') != NULL);
        char name[64];
        if (sscanf(line, "#line %*d \"%63[^\"]\"", name) == 1) {
            inside = strncmp(name, folder, strlen(folder)) == 0;
        }
        if (!inside) {
            memmove(out, line, length);
            out += length;
        }
        line += length;
    }
    *out = '\0';
}

Test(stamp, sources_of_cpu_and_cuda_differ_by_words_only) {
    for (size_t i = 0; i < LINES; i++) {
        cj_text cuda = stamp(lines[i], "sm_80"), cpu = stamp(lines[i], "cpu"), newer = stamp(lines[i], "sm_120");
        cr_expect_str_eq(newer.data, cuda.data);
        cr_expect_str_neq(cpu.data, cuda.data);
        cut_files(cuda.data, "cuda/");
        cut_files(cpu.data, "cpu/");
        cr_expect_gt(strlen(cuda.data), 20000);
        cr_expect_str_eq(cpu.data, cuda.data);
        cj_text_free(&cuda);
        cj_text_free(&cpu);
        cj_text_free(&newer);
    }
}

/* ---------------------------------------------------------------- nothing else */

/* Stamps in a process of its own, elsewhere and a second later, and compares what it sends back. */
static void expect_the_same_elsewhere(const char *line, const cj_text *expected) {
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        cj_text source = {0};
        if (chdir("/") == 0 && sleep(1) == 0) {
            source = stamp(line, "sm_80");
        }
        _exit(write(ends[1], source.data, source.size) == (ssize_t)source.size ? 0 : 1);
    }
    close(ends[1]);
    char *got = malloc(expected->size + 1);
    cr_assert_not_null(got);
    size_t size = 0;
    for (ssize_t more; size < expected->size && (more = read(ends[0], got + size, expected->size - size)) > 0;) {
        size += (size_t)more;
    }
    char extra;
    cr_expect_eq(read(ends[0], &extra, 1), 0);
    cr_assert_eq(size, expected->size);
    cr_expect_arr_eq(got, expected->data, size);
    free(got);
    close(ends[0]);
    cr_assert_eq(waitpid(child, NULL, 0), child);
}

Test(stamp, the_same_layer_gives_the_same_bytes_in_any_process_place_and_second) {
    for (size_t i = 0; i < LINES; i++) {
        cj_text source = stamp(lines[i], "sm_80"), again = stamp(lines[i], "sm_80");
        cr_expect_str_eq(again.data, source.data);
        cj_text_free(&again);
        if (i == 0) {
            expect_the_same_elsewhere(lines[i], &source);
        }
        cj_text_free(&source);
    }
}

/* German writes 0,3. Its locale is made for the test: most machines have only C. */
Test(stamp, the_locale_does_not_reach_the_source) {
    char folder[TESTING_PATH_MAX], path[TESTING_PATH_MAX + 32], number[16];
    cj_text source = stamp(lines[0], "sm_80");
    cr_assert(testing_folder_make(folder));
    snprintf(path, sizeof path, "%s/de_DE.UTF-8", folder);
    const pid_t child = fork();
    if (child == 0) {
        execlp("localedef", "localedef", "-i", "de_DE", "-f", "UTF-8", path, (char *)NULL);
        _exit(1);
    }
    cr_assert_eq(waitpid(child, NULL, 0), child);
    setenv("LOCPATH", folder, 1);
    const bool found = setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
    testing_folder_remove(folder);
    if (!found) {
        cj_text_free(&source);
        cr_skip_test("localedef makes no locale with a decimal comma");
    }
    snprintf(number, sizeof number, "%.1f", 0.5);
    cr_assert_str_eq(number, "0,5");
    cj_text german = stamp(lines[0], "sm_80");
    cr_expect_str_eq(german.data, source.data);
    snprintf(number, sizeof number, "%.1f", 0.5);
    cr_expect_str_eq(number, "0,5"); /* and the locale stands as it was */
    cj_text_free(&german);
    cj_text_free(&source);
}

Test(stamp, no_path_or_time_is_in_the_source) {
    char here[4096];
    cr_assert_not_null(getcwd(here, sizeof here));
    for (size_t i = 0; i < LINES; i++) {
        cj_text source = stamp(lines[i], "cpu");
        cr_expect_null(strstr(source.data, here));
        cr_expect_null(strstr(source.data, "\"/"));
        cr_expect_null(strstr(source.data, "__FILE__"));
        cr_expect_null(strstr(source.data, "__DATE__"));
        cr_expect_null(strstr(source.data, "__TIME"));
        cj_text_free(&source);
    }
}

/* ---------------------------------------------------------------- it stands alone */

Test(stamp, nvrtc_compiles_a_source_without_any_other_file) {
    unsetenv("CONVJIT_NVRTC");
    char id[CJ_COMPILER_ID_MAX];
    if (cj_nvrtc.open(id) != CONVJIT_SUCCESS) {
        cr_skip_test("no NVRTC");
    }
    const cj_target target = target_of("sm_80");
    for (size_t i = 0; i < LINES; i++) {
        cj_text source = stamp(lines[i], "sm_80");
        cj_blob binary = {NULL, 0};
        cr_expect_eq(cj_nvrtc.compile(&target, source.data, &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
        cr_expect_gt(binary.size, 1000);
        cr_expect_null(strstr(cj_nvrtc_last_log(), "warning"), "%s", cj_nvrtc_last_log());
        free(binary.data);
        cj_text_free(&source);
    }
}
