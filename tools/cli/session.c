/* session.c - a context for a command. */
#include "session.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

bool session_open(const arguments *given, const char *target, convjit_context **out) {
    convjit_options options = CONVJIT_OPTIONS_INIT;
    options.target = target;
    options.cache_directory = given->cache;
    options.dump_directory = given->dump;
    options.plan_file = given->plans;
    options.cache_mode = given->only_check ? CONVJIT_CACHE_ONLY : CONVJIT_CACHE_DEFAULT;
    *out = NULL;
    if (given->dump != NULL && mkdir(given->dump, 0777) != 0 && errno != EEXIST) {
        (void)usage_error("--dump: %s cannot be made: %s", given->dump, strerror(errno));
        return false;
    }
    if (convjit_open(&options, out) != CONVJIT_SUCCESS) {
        *out = NULL;
        (void)usage_error("%s", convjit_last_error());
        return false;
    }
    return true;
}

/* ---- ways ---- */

typedef struct ways {
    way *next;
} ways;

static void add_way(void *state, const char *family, const char *config, double predicted_ms) {
    ways *to = state;
    (void)predicted_ms;
    (void)snprintf(to->next->family, sizeof to->next->family, "%s", family);
    (void)snprintf(to->next->config, sizeof to->next->config, "%s", config);
    to->next++;
}

size_t session_ways(const named_layer *layer, const char *target, int64_t most, way out[WAYS_MAX]) {
    ways to = {out};
    (void)convjit_candidates(&layer->desc, target, (size_t)most, add_way, &to);
    return (size_t)(to.next - out);
}

convjit_status session_create(convjit_context *context, const named_layer *layer, const way *as, convjit_layer **out) {
    return as->family[0] == '\0' ? convjit_layer_create(context, &layer->desc, out)
                                 : convjit_layer_create_as(context, &layer->desc, as->family, as->config, out);
}

/* ---- words ---- */

const char *session_cache_word(const char *origin) {
    if (origin == NULL) {
        return NULL;
    }
    return strcmp(origin, "memory") == 0 ? "memory hit" : strcmp(origin, "disk") == 0 ? "disk hit" : "miss";
}

void session_counters_json(convjit_counters c, FILE *out) {
    (void)fprintf(out,
                  ", \"memory_hits\": %llu, \"disk_hits\": %llu, \"misses\": %llu, \"compiles\": %llu, "
                  "\"corrupt\": %llu, \"store_failures\": %llu, \"compile_ms\": %.3f",
                  (unsigned long long)c.memory_hits, (unsigned long long)c.disk_hits, (unsigned long long)c.misses,
                  (unsigned long long)c.compiles, (unsigned long long)c.corrupt, (unsigned long long)c.store_failures,
                  c.compile_ms);
}

void session_counters_text(convjit_counters c, FILE *out) {
    (void)fprintf(out, "memory hits: %llu, disk hits: %llu, misses: %llu, compiles: %llu",
                  (unsigned long long)c.memory_hits, (unsigned long long)c.disk_hits, (unsigned long long)c.misses,
                  (unsigned long long)c.compiles);
    if (c.corrupt > 0) {
        (void)fprintf(out, ", damaged or stale entries: %llu", (unsigned long long)c.corrupt);
    }
    if (c.store_failures > 0) {
        (void)fprintf(out, ", entries not written: %llu", (unsigned long long)c.store_failures);
    }
}
