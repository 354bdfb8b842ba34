/* numerics_main.c - convjit_numerics: the numerics tests as a program of its own, for machines without Criterion.
 *
 * Prints one line a failure and a skip, then the counts. Exit status: 0 nothing failed, 1 something did, 2 bad usage or
 * no such target. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnx_case.h"

static const char *const usage =
    "usage: convjit_numerics [OPTION ...]\n"
    "  --target NAME  gpu (CUDA device 0; default) or cpu\n"
    "  --onnx DIR     the ONNX conformance data (default: " ONNX_CASE_ROOT ")\n"
    "  --filter TEXT  only cases whose line holds TEXT: a layer line, \"case 17\", \"onnx\", ...\n"
    "  --family NAME  only this family: cases it refuses are skipped\n"
    "  --math NAME    in this math, the cases of f32 data and weights only: fp32, fp32_block or tf32\n"
    "  --list         print the cases instead of running them\n";

typedef struct options {
    const char *target, *onnx, *filter, *family, *math;
    bool list;
} options;

typedef struct counts {
    size_t passed, failed, skipped;
} counts;

static bool parse(int count, char **words, options *out) {
    *out = (options){.target = "gpu", .onnx = ONNX_CASE_ROOT, .filter = "", .family = "", .math = ""};
    const struct {
        const char *name;
        const char **value;
    } table[] = {{"--target", &out->target},
                 {"--onnx", &out->onnx},
                 {"--filter", &out->filter},
                 {"--family", &out->family},
                 {"--math", &out->math}};
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

/* Whether the options leave this case in; puts it into the wanted math. */
static bool wanted(const options *given, grid_case *grid) {
    static const char *const maths[] = {"fp32", "fp32_block", "tf32"};
    if (*given->math != '\0') {
        if (grid->desc.data_type != CONVJIT_F32 || grid->desc.weight_type != CONVJIT_F32) {
            return false;
        }
        for (int math = 0; math < 3; ++math) {
            grid->desc.math = strcmp(given->math, maths[math]) == 0 ? (convjit_math)math : grid->desc.math;
        }
    }
    char line[GRID_TEXT_MAX];
    grid_describe(grid, line, sizeof line);
    return strstr(line, given->filter) != NULL;
}

static void run_grid(numerics *on, const options *given, counts *total) {
    size_t count = 0;
    grid_case *cases = grid_make(&count);
    if (cases == NULL) {
        puts("FAILED grid: no memory");
        ++total->failed;
        return;
    }
    for (size_t i = 0; i < count; ++i) {
        char line[GRID_TEXT_MAX], text[4096];
        if (!wanted(given, &cases[i])) {
            continue;
        }
        grid_describe(&cases[i], line, sizeof line);
        if (given->list) {
            puts(line);
        } else if (*given->family != '\0' && convjit_supported(&cases[i].desc, on->target) == CONVJIT_UNSUPPORTED) {
            ++total->skipped;
        } else if (numerics_run_case(on, &cases[i], text, sizeof text)) {
            ++total->passed;
        } else {
            ++total->failed;
            printf("FAILED %s: %s\n", line, text);
            fflush(stdout);
        }
    }
    free(cases);
}

static void run_onnx(numerics *on, const options *given, counts *total) {
    size_t count = 0;
    char **folders = onnx_case_find(given->onnx, &count);
    if (count == 0) {
        printf("SKIPPED onnx: no cases under %s\n", given->onnx);
        ++total->skipped;
    }
    for (size_t i = 0; i < count; ++i) {
        char line[TESTING_PATH_MAX], text[4096];
        snprintf(line, sizeof line, "onnx %s", folders[i] + strlen(given->onnx) + 1);
        if (strstr(line, given->filter) == NULL) {
            continue;
        }
        if (given->list) {
            puts(line);
            continue;
        }
        const onnx_verdict verdict = onnx_case_run(on, folders[i], text, sizeof text);
        total->passed += verdict == ONNX_PASSED;
        total->failed += verdict == ONNX_FAILED;
        total->skipped += verdict == ONNX_SKIPPED;
        if (verdict != ONNX_PASSED) {
            printf("%s %s: %s\n", verdict == ONNX_FAILED ? "FAILED" : "SKIPPED", line, text);
            fflush(stdout);
        }
    }
    onnx_case_list_free(folders, count);
}

int main(int count, char **words) {
    options given;
    numerics on = {0};
    char text[1024];
    if (!parse(count, words, &given)) {
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
    counts total = {0};
    run_grid(&on, &given, &total);
    if (*given.family == '\0' && *given.math == '\0') {
        run_onnx(&on, &given, &total);
    }
    if (!given.list) {
        numerics_close(&on);
        printf("%zu passed, %zu failed, %zu skipped\n", total.passed, total.failed, total.skipped);
    }
    return total.failed > 0 ? 1 : 0;
}
