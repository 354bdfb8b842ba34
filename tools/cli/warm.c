/* warm.c - convjit warm: every layer built for every target, into the cache. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers.h"
#include "report.h"
#include "session.h"

static const report_column COLUMNS[] = {
    {"name", "name", REPORT_TEXT},     {"target", "target", REPORT_TEXT}, {"line", "layer", REPORT_TEXT},
    {"family", "family", REPORT_TEXT}, {"key", NULL, REPORT_TEXT},        {"origin", NULL, REPORT_TEXT},
    {"message", NULL, REPORT_TEXT},    {"cache", "cache", REPORT_TEXT},   {"create_ms", "ms", 1},
    {"result", "result", REPORT_TEXT},
};

typedef struct warming {
    report *table;
    FILE *notes; /* what failed, for people */
    size_t layers, ready;
    convjit_counters total; /* over the targets */
} warming;

/* A warm cache must serve machines that have this compiler, and an entry of another build of it is stale there. Create
 * sees that only while the compiler is open, which it otherwise avoids; looking for the environment opens it. */
static void open_compilers(void) {
    convjit_environment ignored;
    convjit_get_environment(NULL, &ignored);
}

static void add_counters(convjit_counters *sum, convjit_counters c) {
    sum->memory_hits += c.memory_hits;
    sum->disk_hits += c.disk_hits;
    sum->misses += c.misses;
    sum->compiles += c.compiles;
    sum->corrupt += c.corrupt;
    sum->store_failures += c.store_failures;
    sum->compile_ms += c.compile_ms;
}

static void warm_layer(warming *w, convjit_context *context, const char *target, const named_layer *layer) {
    char line[CONVJIT_LAYER_LINE_MAX];
    convjit_layer *made = NULL;
    convjit_layer_info info = {.create_ms = NAN};
    (void)convjit_layer_line_format(&layer->desc, -1, line, sizeof line);
    const uint64_t unwritten = convjit_get_counters(context).store_failures;
    const convjit_status status = convjit_layer_create(context, &layer->desc, &made);
    const char *message = status == CONVJIT_SUCCESS ? NULL : convjit_last_error();
    if (status == CONVJIT_SUCCESS) {
        info = convjit_layer_get_info(made);
        message =
            convjit_get_counters(context).store_failures > unwritten ? "built, but not written to the cache" : NULL;
    }
    report_text(w->table, layer->name);
    report_text(w->table, target);
    report_text(w->table, line);
    report_text(w->table, info.family);
    report_text(w->table, info.key);
    report_text(w->table, info.origin);
    report_text(w->table, message);
    report_text(w->table, session_cache_word(info.origin));
    report_number(w->table, info.create_ms);
    report_text(w->table, message == NULL ? "ready" : "FAIL");
    if (message != NULL) {
        (void)fprintf(w->notes, "%s for %s: %s\n", layer->name, target, message);
    }
    w->layers++;
    w->ready += message == NULL;
    convjit_layer_destroy(status == CONVJIT_SUCCESS ? made : NULL);
}

/* Every layer for each of the targets, separated by commas. False after a message: then nothing was built. */
static bool warm_targets(warming *w, const arguments *given, const layer_list *list) {
    enum { TARGETS_MAX = 64 };
    convjit_context *contexts[TARGETS_MAX] = {0};
    const char *names[TARGETS_MAX];
    char *words = strdup(given->target);
    char *rest = words;
    size_t count = 0;
    bool fine = words != NULL;
    for (char *name = NULL; fine && (name = strsep(&rest, ",")) != NULL; count++) {
        fine = count < TARGETS_MAX && session_open(given, name, &contexts[count]);
        if (fine) {
            names[count] = name;
        }
    }
    for (size_t t = 0; fine && t < count; t++) {
        for (size_t i = 0; i < list->count; i++) {
            warm_layer(w, contexts[t], names[t], &list->layers[i]);
        }
        add_counters(&w->total, convjit_get_counters(contexts[t]));
    }
    for (size_t t = 0; t < TARGETS_MAX; t++) {
        convjit_close(contexts[t]);
    }
    free(words);
    return fine;
}

static void print(const warming *w, bool json) {
    if (json) {
        (void)fputs("{\n  \"layers\": ", stdout);
        report_json(w->table, stdout);
        (void)printf(",\n  \"summary\": {\"layers\": %zu, \"ready\": %zu, \"failed\": %zu", w->layers, w->ready,
                     w->layers - w->ready);
        session_counters_json(w->total, stdout);
        (void)fputs("}\n}\n", stdout);
        return;
    }
    report_table(w->table, stdout);
    (void)printf("\nlayers: %zu, ready: %zu, failed: %zu; ", w->layers, w->ready, w->layers - w->ready);
    session_counters_text(w->total, stdout);
    (void)fputc('\n', stdout);
}

static int warm_list(const arguments *given, const layer_list *list) {
    char *text = NULL;
    size_t size = 0;
    warming w = {.table = report_create(COLUMNS, sizeof COLUMNS / sizeof COLUMNS[0]),
                 .notes = open_memstream(&text, &size)};
    int exit_status = CLI_FAILED;
    if (w.table != NULL && w.notes != NULL) {
        open_compilers();
        exit_status = CLI_USAGE;
        if (warm_targets(&w, given, list)) {
            print(&w, given->json);
            exit_status = w.ready == w.layers && !report_failed(w.table) ? CLI_PASSED : CLI_FAILED;
        }
    }
    if (w.notes != NULL && fclose(w.notes) == 0 && size > 0) {
        (void)fflush(stdout);
        (void)fputs(text, stderr);
    }
    free(text);
    report_free(w.table);
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
    const int exit_status = warm_list(given, &list);
    layers_free(&list);
    return exit_status;
}
