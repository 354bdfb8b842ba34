/* numerics_main.c - convjit_numerics: the numerics tests as a program of its own, for machines without Criterion.
 *
 * Runs the grid, the grid of matrices and the ONNX cases. Prints one line a failure and a skip, then of each math the
 * worst error over its bound, then the counts. Exit status: 0 something passed and nothing failed, 1 not so, 2 bad
 * usage or no such target. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnx_case.h"

static const char *const usage =
    "usage: convjit_numerics [OPTION ...]\n"
    "  --target NAME  gpu (CUDA device 0; default) or cpu\n"
    "  --onnx DIR     the ONNX conformance data (default: " ONNX_CASE_ROOT ")\n"
    "  --filter TEXT  only cases whose line holds TEXT: a layer line, \"case 17\", \"onnx\", ...\n"
    "  --family NAME  only this family: the cases it refuses are counted\n"
    "  --math NAME    in this math, the cases of f32 data only: fp32, fp32_block or tf32\n"
    "  --every N      only every N-th case of those that the family does not refuse; other ones in each --math\n"
    "  --list         print the cases instead of running them\n";

enum { MATHS = 3 };
static const char *const math_words[MATHS] = {"fp32", "fp32_block", "tf32"};

typedef struct options {
    const char *target, *onnx, *filter, *family, *math, *every;
    bool list;
} options;

/* What has been run so far. */
typedef struct summary {
    size_t every, turn; /* cases that could run, of which every how many-th does */
    size_t passed, failed, skipped, refused;
    double worst[MATHS];
    char worst_at[MATHS][TESTING_PATH_MAX + GRID_TEXT_MAX];
} summary;

static bool parse(int count, char **words, options *out) {
    *out = (options){.target = "gpu", .onnx = ONNX_CASE_ROOT, .filter = "", .family = "", .math = "", .every = "1"};
    const struct {
        const char *name;
        const char **value;
    } table[] = {{"--target", &out->target}, {"--onnx", &out->onnx}, {"--filter", &out->filter},
                 {"--family", &out->family}, {"--math", &out->math}, {"--every", &out->every}};
    for (int i = 1; i < count; ++i) {
        bool known = strcmp(words[i], "--list") == 0;
        out->list = out->list || known;
        for (size_t j = 0; j < sizeof table / sizeof *table && !known && i + 1 < count; ++j) {
            if (strcmp(words[i], table[j].name) == 0) {
                *table[j].value = words[++i];
                known = true;
            }
        }
        if (!known) {
            return false;
        }
    }
    return strcmp(out->target, "gpu") == 0 || strcmp(out->target, "cpu") == 0;
}

/* The math that the options name; false where there is none of that name. */
static bool find_math(const options *given, convjit_math *out) {
    for (int math = 0; math < MATHS; ++math) {
        if (strcmp(given->math, math_words[math]) == 0) {
            *out = (convjit_math)math;
            return true;
        }
    }
    return false;
}

/* Whether the options leave this case in; puts it into the wanted math. */
static bool wanted(const options *given, grid_case *grid) {
    if (find_math(given, &grid->desc.math) && grid->desc.data_type != CONVJIT_F32) {
        return false;
    }
    char line[GRID_TEXT_MAX];
    grid_describe(grid, line, sizeof line);
    return strstr(line, given->filter) != NULL;
}

/* Whether the case that could run now is among every N-th. */
static bool its_turn(summary *all) {
    return all->turn++ % all->every == 0;
}

/* Takes the worst error of a run down. Not where the activation is flat: there, a bound may be all of its range. */
static void note(summary *all, const numerics *on, convjit_activation activation, convjit_math math, const char *line) {
    const bool flat = activation == CONVJIT_SIGMOID || activation == CONVJIT_TANH || activation == CONVJIT_CLAMP;
    if (on->worst > all->worst[math] && (!flat || on->worst > 1.0)) {
        all->worst[math] = on->worst;
        snprintf(all->worst_at[math], sizeof all->worst_at[math], "%s: %s", line, on->worst_at);
    }
}

static void run_case(numerics *on, const options *given, const grid_case *grid, summary *all) {
    char line[GRID_TEXT_MAX], text[4096];
    grid_describe(grid, line, sizeof line);
    if (given->list) {
        puts(line);
    } else if (*given->family != '\0' && convjit_supported(&grid->desc, on->target) == CONVJIT_UNSUPPORTED) {
        ++all->refused;
    } else if (its_turn(all)) {
        const bool passed = numerics_run_case(on, grid, text, sizeof text);
        all->passed += passed;
        all->failed += !passed;
        note(all, on, grid->desc.activation, grid->desc.math, line);
        if (!passed) {
            printf("FAILED %s: %s\n", line, text);
            fflush(stdout);
        }
    }
}

static void run_grid(numerics *on, const options *given, grid_case *(*make)(size_t *count), summary *all) {
    size_t count = 0;
    grid_case *cases = make(&count);
    if (cases == NULL) {
        puts("FAILED grid: no memory");
        ++all->failed;
        return;
    }
    for (size_t i = 0; i < count; ++i) {
        if (wanted(given, &cases[i])) {
            run_case(on, given, &cases[i], all);
        }
    }
    free(cases);
}

static void run_onnx_case(numerics *on, convjit_math math, const char *folder, const char *line, summary *all) {
    char text[4096];
    const onnx_verdict verdict = onnx_case_run(on, math, folder, text, sizeof text);
    all->passed += verdict == ONNX_PASSED;
    all->failed += verdict == ONNX_FAILED;
    all->skipped += verdict == ONNX_SKIPPED;
    all->refused += verdict == ONNX_REFUSED;
    if (verdict == ONNX_PASSED || verdict == ONNX_FAILED) {
        note(all, on, CONVJIT_NONE, math, line);
    }
    if (verdict == ONNX_FAILED || verdict == ONNX_SKIPPED) {
        printf("%s %s: %s\n", verdict == ONNX_FAILED ? "FAILED" : "SKIPPED", line, text);
        fflush(stdout);
    }
}

static void run_onnx(numerics *on, const options *given, summary *all) {
    convjit_math math = CONVJIT_FP32;
    size_t count = 0;
    char **folders = onnx_case_find(given->onnx, &count);
    (void)find_math(given, &math);
    if (count == 0) {
        printf("SKIPPED onnx: no cases under %s\n", given->onnx);
        ++all->skipped;
    }
    for (size_t i = 0; i < count; ++i) {
        char line[TESTING_PATH_MAX];
        snprintf(line, sizeof line, "onnx %s", folders[i] + strlen(given->onnx) + 1);
        if (strstr(line, given->filter) == NULL) {
            continue;
        }
        if (given->list) {
            puts(line);
        } else if ((i + (size_t)math) % testing_stride() == 0) { /* a sample under sanitizers, as of the grid */
            run_onnx_case(on, math, folders[i], line, all);
        }
    }
    onnx_case_list_free(folders, count);
}

static void print_summary(const summary *all) {
    for (int math = 0; math < MATHS; ++math) {
        if (all->worst_at[math][0] != '\0') {
            printf("%s: worst error %.3g of its bound, in %s\n", math_words[math], all->worst[math],
                   all->worst_at[math]);
        }
    }
    printf("%zu passed, %zu failed, %zu skipped, %zu refused\n", all->passed, all->failed, all->skipped, all->refused);
}

int main(int count, char **words) {
    options given;
    numerics on = {0};
    char text[1024];
    convjit_math math = CONVJIT_FP32;
    if (!parse(count, words, &given) || (*given.math != '\0' && !find_math(&given, &math)) || atol(given.every) < 1) {
        fputs(usage, stderr);
        return 2;
    }
    if (*given.family != '\0') {
        setenv("CONVJIT_FAMILY", given.family, 1);
    }
    const char *target = strcmp(given.target, "gpu") == 0 ? NULL : given.target;
    if (!given.list && !numerics_open(target, &on, text, sizeof text)) {
        fprintf(stderr, "cannot run on %s: %s\n", given.target, text);
        return 2;
    }
    const size_t every = (size_t)atol(given.every) * testing_stride();
    summary all = {.every = every, .turn = every * (CONVJIT_TF32 + 1) - math}; /* one of the first three runs always */
    run_grid(&on, &given, grid_make, &all);
    run_grid(&on, &given, grid_make_matrices, &all);
    run_onnx(&on, &given, &all);
    if (given.list) {
        return 0;
    }
    numerics_close(&on);
    print_summary(&all);
    return all.failed > 0 || all.passed == 0 ? 1 : 0;
}
