/* store.h - cache directories: where they are, read, atomic publish. */
#ifndef CJ_STORE_H
#define CJ_STORE_H

#include <stdbool.h>

#include "entry.h"

typedef struct cj_store cj_store;

/* Chooses the directory; touches nothing on disk. directory NULL: settings, then the per-user default. Never fails but
 * for memory (NULL): without a usable directory the store reads nothing and every write fails with its reason. */
cj_store *cj_store_open(const char *directory);
void cj_store_close(cj_store *store);

/* The directory and where the choice came from ("... (CONVJIT_CACHE_DIR)"), or why there is none. */
const char *cj_store_describe(const cj_store *store);

/* Reads an entry of this key and target; takes no lock, lists nothing. */
typedef enum cj_read_result {
    CJ_READ_HIT,
    CJ_READ_ABSENT,
    CJ_READ_BAD /* unreadable, damaged or another's: `reason` says why; a miss */
} cj_read_result;
typedef struct cj_read {
    void *bytes; /* to be freed by the caller after a hit; `entry` points into it */
    cj_entry entry;
    char reason[160];
} cj_read;
cj_read_result cj_store_read(cj_store *store, const cj_key *key, const char *target, cj_read *out);

/* Publishes an entry: a private temporary, then one rename. false with the reason; never fatal. */
bool cj_store_write(cj_store *store, const cj_entry *entry, char reason[160]);

#endif
