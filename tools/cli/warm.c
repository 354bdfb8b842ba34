/* warm.c - convjit warm: every layer built for every target, into the cache.
 *
 * What is to be built are pairs of a target and a layer, in that order, or the candidates of each. A shard takes every
 * n-th of them. Each is stored as soon as it is built, so a run that was stopped goes on where it was. */
#include <stdlib.h>
#include <string.h>

#include "builder.h"
#include "report.h"

enum { TARGETS_MAX = 64 };

typedef struct warming {
    const layer_list *list;
    char *words; /* that the names point into */
    const char *targets[TARGETS_MAX];
    size_t target_count;
    int64_t shard, shards;
    int64_t candidates; /* 0: the plan alone */
    build *builds;      /* of this shard */
    size_t count, capacity;
    size_t seen; /* of all shards */
    builder *builder;
} warming;

/* ---- what to do ---- */

/* "I/N" with 0 <= I < N; all of it where text is NULL. */
static bool read_shard(const char *text, warming *w) {
    char rest = '\0';
    long long shard = 0;
    long long shards = 1;
    if (text != NULL && (sscanf(text, "%lld/%lld%c", &shard, &shards, &rest) != 2 || shard < 0 || shard >= shards ||
                         shards > 1000000)) {
        (void)usage_error("--shard: '%s' is not I/N with whole numbers, I from 0 to N - 1", text);
        return false;
    }
    w->shard = shard;
    w->shards = shards;
    return true;
}

static bool split_targets(const char *text, warming *w) {
    w->words = strdup(text);
    char *rest = w->words;
    for (const char *name; w->words != NULL && (name = strsep(&rest, ",")) != NULL;) {
        if (w->target_count == TARGETS_MAX) {
            (void)usage_error("--target: more than %d targets", TARGETS_MAX);
            return false;
        }
        w->targets[w->target_count++] = name;
    }
    return w->words != NULL;
}

/* Takes what is to be built, if it is of this shard. */
static bool add(warming *w, build b) {
    if ((int64_t)(w->seen++ % (size_t)w->shards) != w->shard) {
        return true;
    }
    if (w->count == w->capacity) {
        const size_t capacity = 2 * w->capacity + 16;
        build *larger = realloc(w->builds, capacity * sizeof *larger);
        if (larger == NULL) {
            return false;
        }
        w->builds = larger;
        w->capacity = capacity;
    }
    w->builds[w->count++] = b;
    return true;
}

/* A layer that no family computes is built as planned, which tells why. */
static bool add_layer(warming *w, size_t target, const named_layer *layer) {
    way ways[WAYS_MAX];
    const build b = {.layer = layer, .target = target};
    const size_t count = w->candidates == 0 ? 0 : session_ways(layer, w->targets[target], w->candidates, ways);
    bool fine = count > 0 || add(w, b);
    for (size_t i = 0; fine && i < count; i++) {
        build candidate = b;
        candidate.as = ways[i];
        fine = add(w, candidate);
    }
    return fine;
}

static bool prepare(const arguments *given, const layer_list *list, warming *w) {
    *w = (warming){.list = list};
    bool fine = read_shard(given->shard, w) && split_targets(given->target, w) &&
                arguments_number("--candidates", given->candidates, WAYS_MAX, 0, &w->candidates);
    for (size_t i = 0; fine && i < w->target_count * list->count; i++) {
        fine = add_layer(w, i / list->count, &list->layers[i % list->count]);
    }
    w->builder = fine ? builder_open(given, w->targets, w->target_count) : NULL;
    return w->builder != NULL;
}

static void clean_up(warming *w) {
    builder_close(w->builder);
    for (size_t i = 0; i < w->count; i++) {
        free(w->builds[i].message);
    }
    free(w->builds);
    free(w->words);
}

/* ---- report ---- */

static const report_column COLUMNS[] = {
    {"name", "name", REPORT_TEXT},     {"target", "target", REPORT_TEXT},
    {"line", "layer", REPORT_TEXT},    {"family", "family", REPORT_TEXT},
    {"config", NULL, REPORT_TEXT},     {"key", NULL, REPORT_TEXT},
    {"origin", NULL, REPORT_TEXT},     {"message", NULL, REPORT_TEXT},
    {"cache", "cache", REPORT_TEXT},   {"create_ms", "ms", 1},
    {"result", "result", REPORT_TEXT},
};

static const char *or_null(const char *text) {
    return text[0] != '\0' ? text : NULL;
}

static void add_row(const warming *w, const build *of, report *table) {
    static const char *const words[] = {[BUILD_READY] = "ready", [BUILD_MISSING] = "missing", [BUILD_FAILED] = "FAIL"};
    char line[CONVJIT_LAYER_LINE_MAX];
    (void)convjit_layer_line_format(&of->layer->desc, -1, line, sizeof line);
    report_text(table, of->layer->name);
    report_text(table, w->targets[of->target]);
    report_text(table, line);
    report_text(table, or_null(of->family));
    report_text(table, or_null(of->config));
    report_text(table, or_null(of->key));
    report_text(table, or_null(of->origin));
    report_text(table, of->message);
    report_text(table, session_cache_word(or_null(of->origin)));
    report_number(table, of->create_ms);
    report_text(table, words[of->result]);
    if (of->result == BUILD_FAILED) { /* what is missing, the table says */
        (void)fprintf(stderr, "%s for %s: %s\n", of->layer->name, w->targets[of->target], of->message);
    }
}

static void print(const warming *w, const report *table, size_t united, bool json) {
    size_t counts[BUILD_FAILED + 1] = {0};
    for (size_t i = 0; i < w->count; i++) {
        counts[w->builds[i].result]++;
    }
    if (json) {
        (void)fputs("{\n  \"layers\": ", stdout);
        report_json(table, stdout);
        (void)printf(",\n  \"summary\": {\"layers\": %zu, \"ready\": %zu, \"missing\": %zu, \"failed\": %zu, "
                     "\"refused\": %zu, \"duplicates\": %zu, \"other_nodes\": %zu",
                     w->count, counts[BUILD_READY], counts[BUILD_MISSING], counts[BUILD_FAILED], w->list->refused_count,
                     united, w->list->other_nodes);
        session_counters_json(builder_counters(w->builder), stdout);
        (void)fputs("}\n}\n", stdout);
        return;
    }
    report_table(table, stdout);
    (void)printf("\nlayers: %zu, ready: %zu, missing: %zu, failed: %zu", w->count, counts[BUILD_READY],
                 counts[BUILD_MISSING], counts[BUILD_FAILED]);
    if (w->list->refused_count > 0 || w->list->other_nodes > 0) {
        (void)printf(", refused: %zu, nodes that are no convolution: %zu", w->list->refused_count,
                     w->list->other_nodes);
    }
    (void)fputs("; ", stdout);
    session_counters_text(builder_counters(w->builder), stdout);
    (void)fputc('\n', stdout);
}

static int warm(const arguments *given, layer_list *list) {
    warming w = {0};
    const size_t united = layers_unite(list);
    report *table = report_create(COLUMNS, sizeof COLUMNS / sizeof COLUMNS[0]);
    int exit_status = CLI_USAGE;
    if (table != NULL && prepare(given, list, &w)) {
        builder_run(w.builder, w.builds, w.count);
        size_t ready = 0;
        for (size_t i = 0; i < w.count; i++) {
            add_row(&w, &w.builds[i], table);
            ready += w.builds[i].result == BUILD_READY;
        }
        layers_print_refused(list, stderr);
        (void)fflush(stderr);
        print(&w, table, united, given->json);
        const bool all = ready == w.count && list->refused_count == 0 && !report_failed(table);
        exit_status = all ? CLI_PASSED : CLI_FAILED;
    }
    clean_up(&w);
    report_free(table);
    return exit_status;
}

int command_warm(const arguments *given) {
    layer_list list;
    if (given->target == NULL) {
        return usage_error("warm: --target must be given, as in --target sm_80,sm_90a");
    }
    if (!layers_read(given, &list)) {
        return CLI_USAGE;
    }
    const int exit_status = warm(given, &list);
    layers_free(&list);
    return exit_status;
}
