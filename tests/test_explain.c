/* test_explain.c - why a layer is computed as it is: the candidates of a plan, their predicted times, and the text. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "family.h"

static void forget_family(void) {
    unsetenv("CONVJIT_FAMILY");
}

TestSuite(explain, .init = forget_family);

/* ---------------------------------------------------------------- candidates */

Test(explain, the_best_are_kept_in_order_and_the_slower_ones_counted) {
    cj_candidates list = {0};
    cj_text text = {0};
    for (int i = 0; i < 20; i++) {
        char config[16];
        const int ms = 1 + i * 7 % 20; /* 1 to 20, mixed */
        snprintf(config, sizeof config, "c%d", ms);
        cj_candidates_add(&list, ms, config);
    }
    cj_candidates_print(&list, "c2", &text);
    cr_expect_str_eq(text.data, "        1.0000 ms  c1\n"
                                "  *     2.0000 ms  c2\n"
                                "        3.0000 ms  c3\n"
                                "        4.0000 ms  c4\n"
                                "        5.0000 ms  c5\n"
                                "        6.0000 ms  c6\n"
                                "        7.0000 ms  c7\n"
                                "        8.0000 ms  c8\n"
                                "        9.0000 ms  c9\n"
                                "       10.0000 ms  c10\n"
                                "       11.0000 ms  c11\n"
                                "       12.0000 ms  c12\n"
                                "    8 slower, the last 20.0000 ms\n");
    cj_text_free(&text);
}

Test(explain, of_equally_fast_ones_the_first_comes_first) {
    cj_candidates list = {0};
    cj_candidates_add(&list, 2.0, "early");
    cj_candidates_add(&list, 1.0, "fast");
    cj_candidates_add(&list, 2.0, "late");
    cr_assert_eq(list.kept, 3);
    cr_expect_str_eq(list.best[0].config, "fast");
    cr_expect_str_eq(list.best[1].config, "early");
    cr_expect_str_eq(list.best[2].config, "late");
}

Test(explain, dropped_ones_are_counted_by_reason_with_the_first_as_example) {
    static const char *const reasons[] = {"too wide", "too high"};
    cj_candidates list = {0};
    cj_text text = {0};
    for (int i = 0; i < 5; i++) {
        char config[16];
        snprintf(config, sizeof config, "c%d", i);
        cj_candidates_drop(&list, reasons[i == 1], config);
    }
    cj_candidates_print(&list, "", &text);
    cr_expect_str_eq(text.data, "    4 dropped, too wide, like c0\n    1 dropped, too high, like c1\n");
    cj_text_free(&text);
}

Test(explain, more_reasons_than_have_room_are_counted_together) {
    static char reasons[CJ_CANDIDATES_REASONS + 3][16];
    cj_candidates list = {0};
    cj_text text = {0};
    for (int i = 0; i < CJ_CANDIDATES_REASONS + 3; i++) {
        snprintf(reasons[i], sizeof reasons[i], "reason %d", i);
        cj_candidates_drop(&list, reasons[i], "c");
    }
    cj_candidates_print(&list, "", &text);
    cr_expect_not_null(strstr(text.data, "    1 dropped, reason 15, like c\n    3 dropped for other reasons\n"), "%s",
                       text.data);
    cj_text_free(&text);
}

/* ---------------------------------------------------------------- families */

static cj_problem problem_of(const char *line, int64_t *batch) {
    convjit_desc desc;
    cj_problem problem;
    cr_assert_eq(convjit_layer_line_parse(line, &desc, batch), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_assert_eq(cj_problem_make(&desc, &problem), CONVJIT_SUCCESS, "%s: %s", line, convjit_last_error());
    return problem;
}

static cj_target target_of(const char *name) {
    cj_target target;
    cr_assert_eq(cj_target_parse(name, &target), CONVJIT_SUCCESS, "%s", convjit_last_error());
    return target;
}

static cj_plan direct_plan(const cj_problem *problem) {
    const cj_target target = target_of("sm_90a");
    cj_plan plan = {.family = &cj_family_direct};
    cj_family_direct.plan(problem, &target, &plan);
    return plan;
}

static const char *const lines[] = {
    "conv1d c1 k1 in1 f1",
    "conv2d c32 k64 in512x512 f5x9",
    "conv2d c3 k8 f31x31",
    "conv2d c2 k2 f3x3 d12289x12288", /* fits with few threads only */
    "conv2d c64 k64 g64 in56x56 f3x3 s2 p1 nhwc f16",
    "conv3d c3 k64 in64x64x64 f3x5x7",
    "convt1d c3 k8 f5 s2147483647",
    "convt3d c32 k64 in16x32x32 f3x3x3 s2 p1 d2",
};
enum { LINES = sizeof lines / sizeof lines[0] };

static void expect_plan_first(const cj_family *family, const cj_problem *problem, const char *line) {
    const cj_target target = target_of("sm_90a");
    cj_plan plan = {.family = family};
    cj_candidates list = {0};
    family->plan(problem, &target, &plan);
    family->explain(problem, &target, &list);
    cr_assert_gt(list.kept, 0, "%s: %s", family->name, line);
    cr_expect_str_eq(list.best[0].config, plan.config, "%s: %s", family->name, line);
    cr_expect_float_eq(list.best[0].ms, cj_family_predict_ms(problem, &plan, problem->desc.batch_hint), 1e-9, "%s: %s",
                       family->name, line);
    cr_expect_eq(list.dropped_otherwise, 0, "%s: %s: more reasons than have room", family->name, line);
}

Test(explain, the_first_candidate_is_the_plan) {
    const cj_target target = target_of("sm_90a");
    for (size_t i = 0; i < LINES; i++) {
        const cj_problem problem = problem_of(lines[i], NULL);
        expect_plan_first(&cj_family_direct, &problem, lines[i]);
        if (!cj_family_depthwise.refuses(&problem, &target)) {
            expect_plan_first(&cj_family_depthwise, &problem, lines[i]);
        }
        if (cj_family_tensor.explain && !cj_family_tensor.refuses(&problem, &target)) {
            expect_plan_first(&cj_family_tensor, &problem, lines[i]);
        }
    }
}

Test(explain, a_larger_batch_is_predicted_to_take_longer_but_not_longer_for_each_image) {
    for (size_t i = 0; i < LINES; i++) {
        const cj_problem problem = problem_of(lines[i], NULL);
        const cj_plan plan = direct_plan(&problem);
        double last = 0.0;
        for (int64_t batch = 1; batch <= 4096; batch *= 8) {
            const double ms = cj_family_predict_ms(&problem, &plan, batch);
            cr_expect(ms > last && (last == 0.0 || ms <= 8.0 * last * 1.000001), "%s: %g ms, then %g ms", lines[i],
                      last, ms);
            last = ms;
        }
    }
}

Test(explain, phases_that_no_tap_reaches_cost_little) {
    const cj_problem all = problem_of("convt3d c32 k64 in16x32x32 f3x3x3 s2 p1 d3", NULL);
    const cj_problem one_in_eight = problem_of("convt3d c32 k64 in16x32x32 f3x3x3 s2 p1 d2", NULL);
    const cj_plan plan_all = direct_plan(&all), plan_one = direct_plan(&one_in_eight);
    cr_expect_lt(cj_family_predict_ms(&one_in_eight, &plan_one, 8), 1.5 * cj_family_predict_ms(&all, &plan_all, 8));
}

/* ---------------------------------------------------------------- predicted and measured */

typedef struct times {
    double predicted, measured;
} times;

/* The rows of family direct in the benchmark's results: one row a line. */
static size_t read_results(times *out, size_t most) {
    char row[2048], line[512];
    size_t count = 0;
    FILE *file = fopen("tools/bench/results/h200.json", "r");
    cr_assert_not_null(file);
    while (count < most && fgets(row, sizeof row, file)) {
        const char *layer = strstr(row, "\"layer\": \""), *ms = strstr(row, "\"convjit_ms\": ");
        if (!strstr(row, "\"family\": \"direct\"") || !layer || !ms) {
            continue;
        }
        int64_t batch;
        cr_assert_eq(sscanf(layer, "\"layer\": \"%511[^\"]", line), 1);
        const cj_problem problem = problem_of(line, &batch);
        const cj_plan plan = direct_plan(&problem);
        out[count].predicted = cj_family_predict_ms(&problem, &plan, batch);
        out[count++].measured = strtod(ms + strlen("\"convjit_ms\": "), NULL);
    }
    (void)fclose(file);
    return count;
}

Test(explain, direct_predicts_the_order_in_which_layers_were_measured) {
    enum { ROWS_MAX = 512, ROWS_WANTED = 10 };
    static times rows[ROWS_MAX];
    const size_t count = read_results(rows, ROWS_MAX);
    if (count < ROWS_WANTED) {
        cr_skip_test("the results have only %zu rows of family direct", count);
    }
    size_t pairs = 0, ordered = 0;
    for (size_t i = 0; i < count; i++) {
        cr_expect(rows[i].measured < 2.5 * rows[i].predicted && rows[i].predicted < 2.5 * rows[i].measured,
                  "predicted %g ms, measured %g ms", rows[i].predicted, rows[i].measured);
        for (size_t j = 0; j < i; j++) {
            pairs++;
            ordered += (rows[i].predicted < rows[j].predicted) == (rows[i].measured < rows[j].measured);
        }
    }
    cr_expect_geq(ordered * 100, pairs * 90, "%zu of %zu pairs in order", ordered, pairs);
}

/* ---------------------------------------------------------------- the text */

static char written[1 << 16];

static void write_line(void *user, const char *line) {
    cr_expect_eq(user, written);
    cr_expect_null(strchr(line, '\n'));
    const size_t used = strlen(written);
    snprintf(written + used, sizeof written - used, "%s\n", line);
}

/* What convjit_explain writes. */
static const char *explained(convjit_status wanted, const char *line, const char *target) {
    convjit_desc desc;
    int64_t batch;
    cr_assert_eq(convjit_layer_line_parse(line, &desc, &batch), CONVJIT_SUCCESS, "%s", convjit_last_error());
    written[0] = '\0';
    cr_expect_eq(convjit_explain(&desc, batch < 0 ? 1 : batch, target, write_line, written), wanted, "%s: %s", line,
                 convjit_last_error());
    return written;
}

static void expect_part(const char *text, const char *part, bool wanted) {
    cr_expect((strstr(text, part) != NULL) == wanted, "\"%s\" is %s:\n%s", part, wanted ? "missing in" : "in", text);
}

static size_t count_of(const char *text, const char *part) {
    size_t count = 0;
    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part)) {
        count++;
    }
    return count;
}

Test(explain, one_family_is_chosen_and_its_configuration_marked) {
    for (size_t i = 0; i < LINES; i++) {
        const char *text = explained(CONVJIT_SUCCESS, lines[i], "sm_80");
        expect_part(text, "on sm_80; ", true);
        expect_part(text, "\ntensor: refuses, not sm_90a\ndirect: ", true);
        expect_part(text, " dropped, ", true);
        cr_expect_eq(count_of(text, ": chosen, "), 1, "%s", text);
        cr_expect_eq(count_of(text, "\n  * ") + count_of(text, ": refuses, "), 3, "%s", text);
        cr_expect_leq(count_of(text, "\n"), 60, "%s", text);
    }
}

Test(explain, the_time_of_the_layers_own_batch_is_told_too) {
    expect_part(explained(CONVJIT_SUCCESS, "conv2d n16 c3 k8 in50x50 f3x3", "sm_80"), " ms for a batch of 16\n", true);
    expect_part(explained(CONVJIT_SUCCESS, "conv2d n8 c3 k8 in50x50 f3x3", "sm_80"), " ms for a batch of 8\n", true);
    expect_part(explained(CONVJIT_SUCCESS, "conv2d n8 c3 k8 in50x50 hint=8 f3x3", "sm_80"), "for a batch of 8", false);
    expect_part(explained(CONVJIT_SUCCESS, "conv2d c3 k8 in50x50 hint=3 f3x3", "sm_80"), "H200 and a batch of 3\n",
                true);
    expect_part(explained(CONVJIT_SUCCESS, "conv2d n0 c3 k8 in50x50 f3x3", "sm_80"), "for a batch", false);
}

Test(explain, a_family_that_is_not_asked_for_is_explained_all_the_same) {
    setenv("CONVJIT_FAMILY", "tensor", 1);
    const char *text = explained(CONVJIT_SUCCESS, "conv2d c32 k64 in50x50 f5x9", "sm_90a");
    expect_part(text, "\ntensor: chosen, ", true);
    expect_part(text, "\ndirect: CONVJIT_FAMILY is tensor, ", true);
    cr_expect_eq(count_of(text, "\n  * "), 2, "%s", text);
    text = explained(CONVJIT_UNSUPPORTED, "conv2d c32 k64 in50x50 f5x9", "sm_80");
    expect_part(text, "\ntensor: refuses, not sm_90a\n", true);
    expect_part(text, "\ndirect: CONVJIT_FAMILY is tensor, ", true);
    expect_part(text, "chosen", false);
}

Test(explain, what_is_no_layer_or_no_target_is_refused_before_anything_is_written) {
    const convjit_desc illegal = CONVJIT_DESC_INIT;
    convjit_desc desc = CONVJIT_DESC_INIT;
    desc.in_channels = desc.out_channels = 1;
    written[0] = '\0';
    cr_expect_eq(convjit_explain(NULL, 1, "cpu", write_line, written), CONVJIT_INVALID_ARGUMENT);
    cr_expect_eq(convjit_explain(&illegal, 1, "cpu", write_line, written), CONVJIT_INVALID_LAYER);
    cr_expect_eq(convjit_explain(&desc, 1, "sm_1", write_line, written), CONVJIT_INVALID_ARGUMENT);
    cr_expect_eq(convjit_explain(&desc, -1, "cpu", write_line, written), CONVJIT_INVALID_ARGUMENT);
    cr_expect_eq(convjit_explain(&desc, 1, "cpu", NULL, NULL), CONVJIT_INVALID_ARGUMENT);
    cr_expect_str_eq(written, "");
}
