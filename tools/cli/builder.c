#include "builder.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "progress.h"

enum { JOBS_MAX = 256 };

struct builder {
    size_t target_count;
    int jobs;
    convjit_context **contexts; /* one a thread and target, so that each has counters of its own */
    build *builds;              /* of the run */
    size_t count;
    pthread_mutex_t lock; /* of what follows */
    size_t next, done, missing;
    progress shown;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- one kernel ---- */

static void make(convjit_context *context, build *b) {
    convjit_layer *made = NULL;
    const uint64_t unwritten = convjit_get_counters(context).store_failures;
    const convjit_status status = session_create(context, b->layer, &b->as, &made);
    const char *message = convjit_last_error();
    b->result = status == CONVJIT_SUCCESS ? BUILD_READY : status == CONVJIT_NOT_CACHED ? BUILD_MISSING : BUILD_FAILED;
    if (status == CONVJIT_SUCCESS) {
        const convjit_layer_info info = convjit_layer_get_info(made);
        (void)snprintf(b->family, sizeof b->family, "%s", info.family);
        (void)snprintf(b->config, sizeof b->config, "%s", info.config);
        (void)snprintf(b->key, sizeof b->key, "%s", info.key);
        (void)snprintf(b->origin, sizeof b->origin, "%s", info.origin);
        b->create_ms = info.create_ms;
        convjit_layer_destroy(made);
        if (convjit_get_counters(context).store_failures > unwritten) {
            b->result = BUILD_FAILED;
            message = "built, but not written to the cache";
        }
    }
    b->message = b->result != BUILD_READY ? strdup(message) : NULL;
}

typedef struct worker {
    builder *all;
    convjit_context **contexts; /* one a target */
    pthread_t thread;
} worker;

static void *work(void *argument) {
    const worker *me = argument;
    builder *const of = me->all;
    pthread_mutex_lock(&of->lock);
    while (of->next < of->count) {
        build *const b = &of->builds[of->next++];
        pthread_mutex_unlock(&of->lock);
        b->create_ms = NAN;
        make(me->contexts[b->target], b);
        pthread_mutex_lock(&of->lock);
        of->done++;
        of->missing += b->result != BUILD_READY;
        progress_show(&of->shown, of->done, of->missing, now());
    }
    pthread_mutex_unlock(&of->lock);
    return NULL;
}

/* Where a thread cannot be had, the others do its work; the first is the caller's own. */
void builder_run(builder *of, build *builds, size_t count) {
    worker workers[JOBS_MAX] = {{.all = of, .contexts = of->contexts}};
    int started = 1;
    of->builds = builds;
    of->count = count;
    of->next = of->done = of->missing = 0;
    progress_start(&of->shown, stderr, isatty(STDERR_FILENO) == 1, count, now());
    for (int i = 1; i < of->jobs; i++) {
        workers[i] = (worker){.all = of, .contexts = of->contexts + (size_t)i * of->target_count};
    }
    while (started < of->jobs && pthread_create(&workers[started].thread, NULL, work, &workers[started]) == 0) {
        started++;
    }
    (void)work(&workers[0]);
    for (int i = 1; i < started; i++) {
        (void)pthread_join(workers[i].thread, NULL);
    }
    progress_end(&of->shown);
}

/* ---- the contexts ---- */

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

builder *builder_open(const arguments *given, const char *const *targets, size_t target_count) {
    int64_t jobs = 0;
    builder *of = calloc(1, sizeof *of);
    if (of == NULL || pthread_mutex_init(&of->lock, NULL) != 0 ||
        !arguments_number("--jobs", given->jobs, JOBS_MAX, count_processors(), &jobs)) {
        free(of);
        return NULL;
    }
    of->jobs = jobs < 1 ? 1 : (int)jobs;
    of->target_count = target_count;
    const size_t count = (size_t)of->jobs * target_count;
    of->contexts = calloc(count + 1, sizeof *of->contexts);
    bool fine = of->contexts != NULL;
    for (size_t i = 0; fine && i < count; i++) {
        fine = session_open(given, targets[i % target_count], &of->contexts[i]);
    }
    if (!fine) {
        builder_close(of);
        return NULL;
    }
    open_compilers();
    return of;
}

void builder_close(builder *of) {
    if (of == NULL) {
        return;
    }
    for (size_t i = 0; of->contexts != NULL && i < (size_t)of->jobs * of->target_count; i++) {
        convjit_close(of->contexts[i]);
    }
    pthread_mutex_destroy(&of->lock);
    free(of->contexts);
    free(of);
}

convjit_counters builder_counters(const builder *of) {
    convjit_counters sum = {0};
    for (size_t i = 0; i < (size_t)of->jobs * of->target_count; i++) {
        const convjit_counters c = convjit_get_counters(of->contexts[i]);
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
