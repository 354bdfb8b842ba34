/* store.h - the cache: a search path of directories, read through and written to in the front. */
#ifndef CJ_STORE_H
#define CJ_STORE_H

#include <stdbool.h>

#include "claim.h"
#include "convjit.h"
#include "entry.h"

typedef struct cj_store cj_store;

/* Chooses the directories by cache_directory, cache_mode and cache_size of the options; touches nothing on disk.
 * Without a usable directory the store reads nothing and every write fails with its reason.
 * INVALID_ARGUMENT: a mode, a size or a setting that is none, or more directories than there may be. OUT_OF_MEMORY. */
convjit_status cj_store_open(const convjit_options *options, cj_store **out);
void cj_store_close(cj_store *store); /* NULL is ignored */

/* Never CONVJIT_CACHE_DEFAULT; and as the setting spells it. */
convjit_cache_mode cj_store_mode(const cj_store *store);
const char *cj_store_mode_name(const cj_store *store);

/* What a log should say of the choice; "" where all is as one expects. */
const char *cj_store_notice(const cj_store *store);

/* The directories and where the choice came from ("... (CONVJIT_CACHE_DIR)"), or why there is none. */
const char *cj_store_describe(const cj_store *store);

/* In bytes; 0: none. */
uint64_t cj_store_size_limit(const cj_store *store);

/* The directory that is written, NULL if there is none; those behind it, which are only read. */
const cj_directory *cj_store_own(const cj_store *store);
const cj_directory *cj_store_others(const cj_store *store, size_t *count);

/* An entry that somebody asks for. */
typedef struct cj_wanted {
    cj_key key;
    const char *target;
    const char *compiler; /* NULL: of any build */
    uint32_t threads;
    uint32_t shared_bytes;
} cj_wanted;

/* Reads the first entry in the search path that is sound and as wanted; takes no lock, lists nothing. `reason` is not
 * empty where an entry of this key had to be left aside, and says why and in which directory. */
typedef enum cj_read_result {
    CJ_READ_HIT,
    CJ_READ_ABSENT,
    CJ_READ_BAD /* none but entries that are unreadable, damaged, stale or another's; a miss */
} cj_read_result;
typedef struct cj_read {
    void *bytes; /* to be freed by the caller after a hit; `entry` points into it */
    cj_entry entry;
    char reason[512];
} cj_read;
cj_read_result cj_store_read(cj_store *store, const cj_wanted *wanted, cj_read *out);

/* Claims a key that was missed, for who will build and write it (claim.h). Wait at most so long. */
cj_claim_result cj_store_claim(const cj_store *store, const cj_key *key, int wait_ms, cj_claim *out);

/* Publishes what a key hashes beside its entry, for people; where that is not possible, it is not done. */
void cj_store_write_fields(cj_store *store, const cj_key *key, const cj_text *fields);

/* Publishes an entry, and keeps the directory within its size limit. false with the reason; never fatal. */
bool cj_store_write(cj_store *store, const cj_entry *entry, char reason[CJ_REASON_SIZE]);

#endif
