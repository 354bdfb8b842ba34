#include "counters.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* By default uthash exits when memory is used up; this way the node stays out of the table, its hh.tbl NULL. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

/* A key whose entry was warned about. */
typedef struct warned_key {
    unsigned char key[CJ_KEY_BYTES];
    UT_hash_handle hh;
} warned_key;

struct cj_counters {
    pthread_mutex_t lock;
    convjit_counters counts;
    bool store_failure_logged;
    warned_key *warned;
};

cj_counters *cj_counters_create(void) {
    cj_counters *counters = calloc(1, sizeof *counters);
    if (counters != NULL && pthread_mutex_init(&counters->lock, NULL) != 0) {
        free(counters);
        counters = NULL;
    }
    return counters;
}

void cj_counters_destroy(cj_counters *counters) {
    if (counters == NULL) {
        return;
    }
    warned_key *warned = counters->warned;
    HASH_CLEAR(hh, counters->warned); /* frees the table, leaves the list */
    while (warned != NULL) {
        warned_key *next = warned->hh.next;
        free(warned);
        warned = next;
    }
    pthread_mutex_destroy(&counters->lock);
    free(counters);
}

convjit_counters cj_counters_read(const cj_counters *counters) {
    cj_counters *lockable = (cj_counters *)counters; /* the lock is no part of the value */
    pthread_mutex_lock(&lockable->lock);
    const convjit_counters counts = counters->counts;
    pthread_mutex_unlock(&lockable->lock);
    return counts;
}

void cj_counters_found(cj_counters *counters, cj_found found) {
    pthread_mutex_lock(&counters->lock);
    counters->counts.memory_hits += found == CJ_FOUND_IN_MEMORY;
    counters->counts.disk_hits += found == CJ_FOUND_ON_DISK;
    counters->counts.misses += found == CJ_FOUND_NOWHERE;
    pthread_mutex_unlock(&counters->lock);
}

void cj_counters_compiled(cj_counters *counters, bool succeeded, double milliseconds) {
    pthread_mutex_lock(&counters->lock);
    counters->counts.compiles += succeeded;
    counters->counts.compile_ms += milliseconds;
    pthread_mutex_unlock(&counters->lock);
}

/* True the first time for a key. Where memory is used up it stays true: a line too many is better than none. */
static bool warn_first(cj_counters *counters, const cj_key *key) {
    warned_key *warned;
    HASH_FIND(hh, counters->warned, key->bytes, CJ_KEY_BYTES, warned);
    if (warned != NULL) {
        return false;
    }
    warned = calloc(1, sizeof *warned);
    if (warned != NULL) {
        memcpy(warned->key, key->bytes, CJ_KEY_BYTES);
        HASH_ADD(hh, counters->warned, key, CJ_KEY_BYTES, warned);
        if (warned->hh.tbl == NULL) {
            free(warned);
        }
    }
    return true;
}

void cj_counters_corrupt(cj_counters *counters, const cj_log *log, const cj_key *key, const char *reason,
                         const char *instead) {
    pthread_mutex_lock(&counters->lock);
    counters->counts.corrupt++;
    const bool first = warn_first(counters, key);
    pthread_mutex_unlock(&counters->lock);
    if (first) {
        cj_log_line(log, "cache: entry %s not used: %s; %s", key->hex, reason, instead);
    }
}

void cj_counters_store_failure(cj_counters *counters, const cj_log *log, const char *reason) {
    pthread_mutex_lock(&counters->lock);
    counters->counts.store_failures++;
    const bool first = !counters->store_failure_logged;
    counters->store_failure_logged = true;
    pthread_mutex_unlock(&counters->lock);
    if (first) {
        cj_log_line(log, "cache: binary not stored: %s; said once, further failures are only counted", reason);
    }
}
