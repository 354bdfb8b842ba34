/* warm.c - convjit warm: every layer built for every target, into the cache.
 *
 * What is to be built are pairs of a target and a layer, in that order. A shard takes every n-th pair, the threads take
 * one pair after the other. Each is stored as soon as it is built, so a run that was stopped goes on where it was. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "layers.h"
#include "progress.h"
#include "report.h"
#include "session.h"

enum { TARGETS_MAX = 64, JOBS_MAX = 256 };

typedef enum result { READY, MISSING, FAILED } result;

/* What became of one pair. */
typedef struct outcome {
    result result;
    char family[32]; /* "" where it was not made */
    char key[40];
    char origin[16];
    char *message; /* NULL: ready */
    double create_ms;
} outcome;

typedef struct warming {
    const layer_list *list;
    char *words; /* that the names point into */
    const char *targets[TARGETS_MAX];
    size_t target_count;
    int64_t shard, shards;
    size_t pair_count; /* of this shard */
    outcome *outcomes;
    int jobs;
    convjit_context **contexts; /* one a thread and target, so that each has counters of its own */
    pthread_mutex_t lock;       /* of what follows */
    size_t next, done, missing;
    progress shown;
} warming;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- one pair ---- */

static const named_layer *layer_of(const warming *w, size_t pair, size_t *target) {
    const size_t index = pair * (size_t)w->shards + (size_t)w->shard;
    *target = index / w->list->count;
    return &w->list->layers[index % w->list->count];
}

static outcome build(convjit_context *context, const named_layer *layer) {
    outcome out = {.create_ms = NAN};
    convjit_layer *made = NULL;
    const uint64_t unwritten = convjit_get_counters(context).store_failures;
    const convjit_status status = convjit_layer_create(context, &layer->desc, &made);
    const char *message = convjit_last_error();
    out.result = status == CONVJIT_SUCCESS ? READY : status == CONVJIT_NOT_CACHED ? MISSING : FAILED;
    if (status == CONVJIT_SUCCESS) {
        const convjit_layer_info info = convjit_layer_get_info(made);
        (void)snprintf(out.family, sizeof out.family, "%s", info.family);
        (void)snprintf(out.key, sizeof out.key, "%s", info.key);
        (void)snprintf(out.origin, sizeof out.origin, "%s", info.origin);
        out.create_ms = info.create_ms;
        convjit_layer_destroy(made);
        if (convjit_get_counters(context).store_failures > unwritten) {
            out.result = FAILED;
            message = "built, but not written to the cache";
        }
    }
    out.message = out.result != READY ? strdup(message) : NULL;
    return out;
}

typedef struct worker {
    warming *all;
    convjit_context **contexts; /* one a target */
    pthread_t thread;
} worker;

static void *work(void *argument) {
    const worker *me = argument;
    warming *w = me->all;
    pthread_mutex_lock(&w->lock);
    while (w->next < w->pair_count) {
        const size_t pair = w->next++;
        pthread_mutex_unlock(&w->lock);
        size_t target;
        const named_layer *layer = layer_of(w, pair, &target);
        w->outcomes[pair] = build(me->contexts[target], layer);
        pthread_mutex_lock(&w->lock);
        w->done++;
        w->missing += w->outcomes[pair].result != READY;
        progress_show(&w->shown, w->done, w->missing, now());
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Where a thread cannot be had, the others do its work; the first is the caller's own. */
static void build_all(warming *w) {
    worker workers[JOBS_MAX] = {{.all = w, .contexts = w->contexts}};
    int started = 1;
    progress_start(&w->shown, stderr, isatty(STDERR_FILENO) == 1, w->pair_count, now());
    for (int i = 1; i < w->jobs; i++) {
        workers[i] = (worker){.all = w, .contexts = w->contexts + (size_t)i * w->target_count};
    }
    while (started < w->jobs && pthread_create(&workers[started].thread, NULL, work, &workers[started]) == 0) {
        started++;
    }
    (void)work(&workers[0]);
    for (int i = 1; i < started; i++) {
        (void)pthread_join(workers[i].thread, NULL);
    }
    progress_end(&w->shown);
}

/* ---- what to do ---- */

/* A warm cache must serve machines that have this compiler, and an entry of another build of it is stale there. Create
 * sees that only while the compiler is open, which it otherwise avoids; looking for the environment opens it. */
static void open_compilers(void) {
    convjit_environment ignored;
    convjit_get_environment(NULL, &ignored);
}

static int count_processors(void) {
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < JOBS_MAX ? count : JOBS_MAX;
}

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

/* A context for each thread and target. False after a message: then nothing is built. */
static bool open_contexts(const arguments *given, warming *w) {
    const size_t count = (size_t)w->jobs * w->target_count;
    w->contexts = calloc(count, sizeof *w->contexts);
    for (size_t i = 0; w->contexts != NULL && i < count; i++) {
        if (!session_open(given, w->targets[i % w->target_count], &w->contexts[i])) {
            return false;
        }
    }
    return w->contexts != NULL;
}

static bool prepare(const arguments *given, const layer_list *list, warming *w) {
    int64_t jobs = 0;
    *w = (warming){.list = list};
    if (!read_shard(given->shard, w) || !split_targets(given->target, w) ||
        !arguments_number("--jobs", given->jobs, JOBS_MAX, count_processors(), &jobs)) {
        return false;
    }
    const size_t all = list->count * w->target_count;
    w->pair_count = (all + (size_t)(w->shards - 1 - w->shard)) / (size_t)w->shards;
    w->jobs = jobs < 1 ? 1 : (int)jobs;
    w->outcomes = calloc(w->pair_count + 1, sizeof *w->outcomes);
    return w->outcomes != NULL && pthread_mutex_init(&w->lock, NULL) == 0 && open_contexts(given, w);
}

static void clean_up(warming *w) {
    for (size_t i = 0; w->contexts != NULL && i < (size_t)w->jobs * w->target_count; i++) {
        convjit_close(w->contexts[i]);
    }
    for (size_t i = 0; w->outcomes != NULL && i < w->pair_count; i++) {
        free(w->outcomes[i].message);
    }
    free(w->contexts);
    free(w->outcomes);
    free(w->words);
}

/* ---- report ---- */

static const report_column COLUMNS[] = {
    {"name", "name", REPORT_TEXT},     {"target", "target", REPORT_TEXT}, {"line", "layer", REPORT_TEXT},
    {"family", "family", REPORT_TEXT}, {"key", NULL, REPORT_TEXT},        {"origin", NULL, REPORT_TEXT},
    {"message", NULL, REPORT_TEXT},    {"cache", "cache", REPORT_TEXT},   {"create_ms", "ms", 1},
    {"result", "result", REPORT_TEXT},
};

static const char *or_null(const char *text) {
    return text[0] != '\0' ? text : NULL;
}

static void add_row(const warming *w, size_t pair, report *table) {
    static const char *const words[] = {[READY] = "ready", [MISSING] = "missing", [FAILED] = "FAIL"};
    const outcome *of = &w->outcomes[pair];
    char line[CONVJIT_LAYER_LINE_MAX];
    size_t target;
    const named_layer *layer = layer_of(w, pair, &target);
    (void)convjit_layer_line_format(&layer->desc, -1, line, sizeof line);
    report_text(table, layer->name);
    report_text(table, w->targets[target]);
    report_text(table, line);
    report_text(table, or_null(of->family));
    report_text(table, or_null(of->key));
    report_text(table, or_null(of->origin));
    report_text(table, of->message);
    report_text(table, session_cache_word(or_null(of->origin)));
    report_number(table, of->create_ms);
    report_text(table, words[of->result]);
    if (of->result == FAILED) { /* what is missing, the table says */
        (void)fprintf(stderr, "%s for %s: %s\n", layer->name, w->targets[target], of->message);
    }
}

static convjit_counters add_counters(const warming *w) {
    convjit_counters sum = {0};
    for (size_t i = 0; i < (size_t)w->jobs * w->target_count; i++) {
        const convjit_counters c = convjit_get_counters(w->contexts[i]);
        sum.memory_hits += c.memory_hits;
        sum.disk_hits += c.disk_hits;
        sum.misses += c.misses;
        sum.compiles += c.compiles;
        sum.corrupt += c.corrupt;
        sum.store_failures += c.store_failures;
        sum.compile_ms += c.compile_ms;
    }
    return sum;
}

static void print(const warming *w, const report *table, size_t united, bool json) {
    size_t counts[FAILED + 1] = {0};
    for (size_t i = 0; i < w->pair_count; i++) {
        counts[w->outcomes[i].result]++;
    }
    if (json) {
        (void)fputs("{\n  \"layers\": ", stdout);
        report_json(table, stdout);
        (void)printf(",\n  \"summary\": {\"layers\": %zu, \"ready\": %zu, \"missing\": %zu, \"failed\": %zu, "
                     "\"refused\": %zu, \"duplicates\": %zu, \"other_nodes\": %zu",
                     w->pair_count, counts[READY], counts[MISSING], counts[FAILED], w->list->refused_count, united,
                     w->list->other_nodes);
        session_counters_json(add_counters(w), stdout);
        (void)fputs("}\n}\n", stdout);
        return;
    }
    report_table(table, stdout);
    (void)printf("\nlayers: %zu, ready: %zu, missing: %zu, failed: %zu", w->pair_count, counts[READY], counts[MISSING],
                 counts[FAILED]);
    if (w->list->refused_count > 0 || w->list->other_nodes > 0) {
        (void)printf(", refused: %zu, nodes that are no convolution: %zu", w->list->refused_count,
                     w->list->other_nodes);
    }
    (void)fputs("; ", stdout);
    session_counters_text(add_counters(w), stdout);
    (void)fputc('\n', stdout);
}

static int warm(const arguments *given, layer_list *list) {
    warming w = {0};
    const size_t united = layers_unite(list);
    report *table = report_create(COLUMNS, sizeof COLUMNS / sizeof COLUMNS[0]);
    int exit_status = CLI_USAGE;
    if (table != NULL && prepare(given, list, &w)) {
        open_compilers();
        build_all(&w);
        for (size_t i = 0; i < w.pair_count; i++) {
            add_row(&w, i, table);
        }
        layers_print_refused(list, stderr);
        (void)fflush(stderr);
        print(&w, table, united, given->json);
        const bool all = w.missing == 0 && list->refused_count == 0 && !report_failed(table);
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
