/* counters.h - what a context counts (convjit_counters), and the warnings that go with it. Thread-safe. */
#ifndef CJ_COUNTERS_H
#define CJ_COUNTERS_H

#include <stdbool.h>

#include "../cache/key.h"
#include "log.h"

typedef struct cj_counters cj_counters;
cj_counters *cj_counters_create(void);
void cj_counters_destroy(cj_counters *counters); /* NULL is ignored */
convjit_counters cj_counters_read(const cj_counters *counters);

/* Where a layer's kernel came from. */
typedef enum cj_found { CJ_FOUND_IN_MEMORY, CJ_FOUND_ON_DISK, CJ_FOUND_NOWHERE } cj_found;
void cj_counters_found(cj_counters *counters, cj_found found);

/* A run of the compiler. */
void cj_counters_compiled(cj_counters *counters, bool succeeded, double milliseconds);

/* An entry that was left aside, why, and what was done instead; one line a key, for an entry that cannot be replaced is
 * met at every create. */
void cj_counters_corrupt(cj_counters *counters, const cj_log *log, const cj_key *key, const char *reason,
                         const char *instead);

/* A binary that was not stored; only the first is logged. */
void cj_counters_store_failure(cj_counters *counters, const cj_log *log, const char *reason);

#endif
