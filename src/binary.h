/* binary.h - source to binary: memory, then disk, then compiler; one build per key per process.
 *
 * Threads that ask for a key that another thread is building wait for it and share the result. */
#ifndef CJ_BINARY_H
#define CJ_BINARY_H

#include "../cache/key.h"
#include "../cache/store.h"
#include "counters.h"
#include "target.h"

typedef enum cj_origin { CJ_ORIGIN_MEMORY, CJ_ORIGIN_DISK, CJ_ORIGIN_COMPILER } cj_origin;
const char *cj_origin_name(cj_origin origin);

/* A binary that several layers, contexts and threads may share. */
typedef struct cj_binary {
    cj_key key;
    cj_blob blob;
    char compiler[CJ_COMPILER_ID_MAX]; /* that built it */
    uint32_t threads;                  /* of the launch it was made for */
    uint32_t shared_bytes;
} cj_binary;

/* What to build. */
typedef struct cj_request {
    const cj_target *target;
    const char *source; /* NUL-terminated; the stamped text */
    size_t source_size;
    const char *line; /* layer line, recorded in the entry for people */
    const char *family;
    uint32_t threads;
    uint32_t shared_bytes;
} cj_request;

/* Gets the binary and one reference to it. Store errors are counted and logged once, never returned.
 * NO_COMPILER, COMPILE_FAILED, NOT_CACHED (cache-only), OUT_OF_MEMORY. A failed build is not remembered: the next
 * request tries again. */
convjit_status cj_binary_get(const cj_request *request, cj_store *store, cj_counters *counters, const cj_log *log,
                             cj_binary **out, cj_origin *origin);

/* The device refused this binary though it came from memory or disk: forget it, build anew, replace the entry, count it
 * as corrupt. Takes the reference of `refused` and gives one to `out`. */
convjit_status cj_binary_rebuild(const cj_request *request, cj_binary *refused, cj_store *store, cj_counters *counters,
                                 const cj_log *log, cj_binary **out);

/* Writes the binary as an entry to `bytes`, of *size bytes; NULL: only sets *size. INVALID_ARGUMENT: too little room.
 */
convjit_status cj_binary_write(const cj_request *request, const cj_binary *binary, void *bytes, size_t *size);

/* Puts an entry's binary into memory, unless one of its key is there, and gives a reference, which keeps it there. */
convjit_status cj_binary_import(const cj_entry *entry, cj_binary **out);

/* Gives the reference back; the last one frees it. NULL is ignored. */
void cj_binary_release(cj_binary *binary);

#endif
