/* tune.c - convjit tune: the ways to compute each layer that are predicted to be the fastest, measured; the fastest
 * goes into a plan file. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "builder.h"
#include "report.h"
#include "setup.h"

enum { ROUNDS = 2 };                  /* in both orders: what ran before changes a time by up to a tenth */
static const double TOLERANCE = 1.02; /* times within it are equal: the first predicted is taken, run after run */

static const report_column COLUMNS[] = {
    {"name", "name", REPORT_TEXT},
    {"line", "layer", REPORT_TEXT},
    {"family", "family", REPORT_TEXT},
    {"config", "config", REPORT_TEXT},
    {"forward_ms", "forward ms", 4},
    {"predicted_first_ms", "predicted first ms", 4}, /* time of the way that is taken without a plan */
    {"measured", "of", 0},
    {"worst_over_sum", "error/S", REPORT_POWER},
    {"worst_over_tolerance", "of limit", 2},
    {"result", "result", REPORT_TEXT},
};

typedef struct tuning {
    const trial_setup *setup;
    int64_t candidates;
    build *builds; /* of all layers in order, each candidates of them, or fewer */
    size_t count;
    const char *file;
    report *table;
    FILE *notes;
} tuning;

/* ---- one layer ---- */

typedef struct ways_tried {
    const build *builds;
    size_t count;
    double ms[WAYS_MAX]; /* NaN: failed, or not built */
    double over_sum[WAYS_MAX], over_tolerance[WAYS_MAX];
    size_t measured, failed, best;
} ways_tried;

static double least(double a, double b) {
    return isnan(a) || b < a ? b : a;
}

/* A way that fails fails the layer, whose others are measured all the same. */
static void note(const tuning *t, const build *b, ways_tried *tried, const char *message) {
    tried->failed++;
    (void)fprintf(t->notes, "%s: %s%s%s\n", b->layer->name, b->as.config, b->as.config[0] != '\0' ? ": " : "",
                  message != NULL ? message : "memory is used up");
}

/* Compares and times every way that was built, then times it again; the data is that of the layer, whatever computes
 * it. */
static void try_all(const tuning *t, ways_tried *tried, trial_data **data) {
    trial_setup setup = *t->setup;
    for (int round = 0; round < ROUNDS; round++, setup.check = 0) {
        for (size_t i = 0; i < tried->count; i++) {
            const size_t at = round % 2 == 0 ? i : tried->count - 1 - i;
            const build *const b = &tried->builds[at];
            if (b->result != BUILD_READY || (round > 0 && isnan(tried->ms[at]))) {
                continue;
            }
            trial one = trial_run(&setup, b->layer, &b->as, data);
            tried->ms[at] = one.passed ? least(tried->ms[at], one.forward_ms) : NAN;
            if (round == 0) {
                tried->over_sum[at] = one.over_sum;
                tried->over_tolerance[at] = one.over_tolerance;
            }
            if (!one.passed) {
                note(t, b, tried, one.message);
            }
            trial_free(&one);
        }
    }
}

/* False where none was timed. */
static bool find_best(ways_tried *tried) {
    double fastest = INFINITY;
    for (size_t i = 0; i < tried->count; i++) {
        fastest = isnan(tried->ms[i]) ? fastest : fmin(fastest, tried->ms[i]);
        tried->measured += isnan(tried->ms[i]) ? 0U : 1U;
    }
    while (tried->best < tried->count && !(tried->ms[tried->best] <= fastest * TOLERANCE)) {
        tried->best++;
    }
    return tried->best < tried->count;
}

/* One write at the end of the file, as record files are written. */
static bool append(const tuning *t, const named_layer *layer, const ways_tried *tried) {
    char line[CONVJIT_LAYER_LINE_MAX];
    const way *const as = &tried->builds[tried->best].as;
    (void)convjit_layer_line_format(&layer->desc, -1, line, sizeof line);
    FILE *file = fopen(t->file, "ae");
    bool fine =
        file != NULL && fprintf(file, "%s | %s | %s | %s | %.4f ms, predicted first %.4f ms, best of %zu on %s\n",
                                memory_target(t->setup->memory), line, as->family, as->config, tried->ms[tried->best],
                                tried->ms[0], tried->measured, memory_device(t->setup->memory)) > 0;
    fine = (file == NULL || fclose(file) == 0) && fine;
    if (!fine) {
        (void)fprintf(t->notes, "%s: %s cannot be written: %s\n", layer->name, t->file, strerror(errno));
    }
    return fine;
}

static void add_row(const tuning *t, const named_layer *layer, const ways_tried *tried, bool fine) {
    char line[CONVJIT_LAYER_LINE_MAX];
    const size_t best = tried->best;
    const bool found = best < tried->count;
    (void)convjit_layer_line_format(&layer->desc, layer->batch, line, sizeof line);
    report_text(t->table, layer->name);
    report_text(t->table, line);
    report_text(t->table, found ? tried->builds[best].as.family : NULL);
    report_text(t->table, found ? tried->builds[best].as.config : NULL);
    report_number(t->table, found ? tried->ms[best] : NAN);
    report_number(t->table, found ? tried->ms[0] : NAN);
    report_number(t->table, (double)tried->measured);
    report_number(t->table, found ? tried->over_sum[best] : NAN);
    report_number(t->table, found ? tried->over_tolerance[best] : NAN);
    report_text(t->table, fine ? "pass" : "FAIL");
}

/* `builds`: the layer's first. */
static bool tune_layer(const tuning *t, const build *builds) {
    const named_layer *const layer = builds->layer;
    ways_tried tried = {.builds = builds};
    trial_data *data = NULL;
    for (const build *b = builds; b < t->builds + t->count && b->layer == layer; b++, tried.count++) {
        tried.ms[tried.count] = NAN;
        if (b->result != BUILD_READY) {
            note(t, b, &tried, b->message);
        }
    }
    try_all(t, &tried, &data);
    const bool fine = find_best(&tried) && append(t, layer, &tried) && tried.failed == 0;
    add_row(t, layer, &tried, fine);
    trial_data_free(t->setup, data);
    return fine;
}

/* ---- all ---- */

/* The ways of all layers, built several at a time. A layer that no family computes has its plan alone, which tells why.
 */
static bool build_ways(const arguments *given, const layer_list *list, tuning *t) {
    const char *const target = memory_target(t->setup->memory);
    t->builds = calloc(list->count * (size_t)t->candidates + 1, sizeof *t->builds);
    builder *const by = t->builds != NULL ? builder_open(given, &target, 1) : NULL;
    for (size_t i = 0; by != NULL && i < list->count; i++) {
        way ways[WAYS_MAX] = {{"", ""}};
        const size_t found = session_ways(&list->layers[i], target, t->candidates, ways);
        for (size_t j = 0; j < (found > 0 ? found : 1); j++) {
            t->builds[t->count++] = (build){.layer = &list->layers[i], .as = ways[j]};
        }
    }
    if (by != NULL) {
        builder_run(by, t->builds, t->count);
    }
    builder_close(by);
    return by != NULL;
}

static void print(const tuning *t, const layer_list *list, size_t passed, const char *said, bool json) {
    if (json) {
        (void)fputs("{\n  \"target\": ", stdout);
        json_text(stdout, memory_target(t->setup->memory));
        (void)fputs(",\n  \"device\": ", stdout);
        json_text(stdout, memory_device(t->setup->memory));
        (void)fputs(",\n  \"note\": ", stdout);
        json_text(stdout, said[0] != '\0' ? said : NULL);
        (void)fputs(",\n  \"layers\": ", stdout);
        report_json(t->table, stdout);
        (void)printf(",\n  \"summary\": {\"layers\": %zu, \"passed\": %zu, \"failed\": %zu}\n}\n", list->count, passed,
                     list->count - passed);
        return;
    }
    (void)printf("%s%starget %s (%s)\n\n", said, said[0] != '\0' ? "\n" : "", memory_target(t->setup->memory),
                 memory_device(t->setup->memory));
    report_table(t->table, stdout);
    (void)printf("\nlayers: %zu, passed: %zu, failed: %zu\n", list->count, passed, list->count - passed);
}

static int tune(const arguments *given, const layer_list *list, tuning *t, const char *said) {
    char *text = NULL;
    size_t size = 0, passed = 0;
    t->table = report_create(COLUMNS, sizeof COLUMNS / sizeof COLUMNS[0]);
    t->notes = open_memstream(&text, &size);
    int exit_status = CLI_USAGE;
    if (t->table != NULL && t->notes != NULL && build_ways(given, list, t)) {
        for (size_t i = 0; i < t->count; i++) {
            passed += (i == 0 || t->builds[i].layer != t->builds[i - 1].layer) && tune_layer(t, &t->builds[i]);
        }
        layers_print_refused(list, t->notes);
        print(t, list, passed, said, given->json);
        const bool all = passed == list->count && list->refused_count == 0;
        exit_status = all && !report_failed(t->table) ? CLI_PASSED : CLI_FAILED;
    }
    for (size_t i = 0; i < t->count; i++) {
        free(t->builds[i].message);
    }
    if (t->notes != NULL && fclose(t->notes) == 0 && size > 0) {
        (void)fflush(stdout);
        (void)fputs(text, stderr);
    }
    free(text);
    free(t->builds);
    report_free(t->table);
    return exit_status;
}

int command_tune(const arguments *given) {
    arguments own = *given;
    trial_setup setup = {0};
    tuning t = {.setup = &setup, .file = given->plans};
    layer_list list;
    char said[384] = "";
    int exit_status = CLI_USAGE;
    if (given->plans == NULL) {
        return usage_error("tune: --plans must be given, the file that gains the plans");
    }
    own.plans = NULL; /* it may not be there yet, and has no say in what is measured */
    if (!layers_read(&own, &list)) {
        return CLI_USAGE;
    }
    (void)layers_unite(&list);
    if (arguments_number("--candidates", own.candidates, WAYS_MAX, 8, &t.candidates) &&
        setup_open(&own, &list, &setup, said, sizeof said)) {
        t.candidates = t.candidates < 1 ? 1 : t.candidates;
        setup.repeat = setup.repeat < 1 ? 1 : setup.repeat;
        exit_status = tune(&own, &list, &t, said);
    }
    setup_close(&setup);
    layers_free(&list);
    return exit_status;
}
