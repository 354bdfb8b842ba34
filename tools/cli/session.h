/* session.h - what run, warm and tune share: a context, ways to compute a layer, and how a cache answer is named. */
#ifndef SESSION_H
#define SESSION_H

#include "layers.h"

/* Opens a context with the command line's cache and dump directory. False after a message. */
bool session_open(const arguments *given, const char *target, convjit_context **out);

/* A way to compute a layer, as convjit_candidates tells it. */
typedef struct way {
    char family[32]; /* "": as the library plans it */
    char config[160];
} way;

enum { WAYS_MAX = 36 }; /* there are no more of a layer */

/* The layer's best `most` ways, at most WAYS_MAX. Returns how many there are; 0: no family computes it. */
size_t session_ways(const named_layer *layer, const char *target, int64_t most, way out[WAYS_MAX]);

/* Creates a layer in a way. */
convjit_status session_create(convjit_context *context, const named_layer *layer, const way *as, convjit_layer **out);

/* "memory hit", "disk hit" or "miss" of a layer's origin; NULL for NULL. */
const char *session_cache_word(const char *origin);

/* ", \"memory_hits\": 0, ..." for the end of a JSON object; and as words. */
void session_counters_json(convjit_counters counters, FILE *out);
void session_counters_text(convjit_counters counters, FILE *out);

#endif
