/* builder.h - kernels built into the cache, several at a time. */
#ifndef BUILDER_H
#define BUILDER_H

#include "layers.h"
#include "session.h"

typedef enum build_result { BUILD_READY, BUILD_MISSING, BUILD_FAILED } build_result;

/* What is to be built, and what became of it. */
typedef struct build {
    const named_layer *layer;
    size_t target; /* of the builder's */
    way as;        /* as.family "": as the library plans it */
    build_result result;
    char family[32]; /* "" where it was not made */
    char config[160];
    char key[40];
    char origin[16];
    char *message; /* NULL: ready */
    double create_ms;
} build;

typedef struct builder builder;

/* Contexts with the command line's cache, for as many threads as --jobs says and these targets. NULL after a message.
 */
builder *builder_open(const arguments *given, const char *const *targets, size_t target_count);
void builder_close(builder *of); /* NULL is ignored */

/* Builds all, one after the other on each thread, and shows progress. Each is stored as soon as it is built. */
void builder_run(builder *of, build *builds, size_t count);

/* Of all contexts together. */
convjit_counters builder_counters(const builder *of);

#endif
