/* binary.c - source to binary: memory, then disk, then compiler.
 *
 * One table for the process holds every binary that somebody uses, by key. A thread that finds its key missing puts an
 * unfinished node into the table and builds outside the lock; a thread that finds an unfinished node waits for it. What
 * was built is used from memory, never read back: on a network file system the file just renamed may not be visible
 * yet.
 *
 * Processes keep apart by claims (cache/claim.c), as long as they can: a claim that is not given in time, or not to be
 * had, only means that two processes build the same.
 *
 * A build that fails takes its node out of the table and hands its error to those who wait for it. They do not try
 * again themselves: the same source would fail the same way, and each of N waiters would fail for all others in turn.
 * The next request starts afresh, so a compiler that was missing may have come. Thus every call builds or waits once,
 * at most; only a wait that ends with NOT_CACHED says nothing to another context.
 *
 * What counts (convjit_counters), once a call of cj_binary_get: memory hit (the wait for another's build included),
 * disk hit, or miss; nothing for a wait that ends with the builder's error. An entry that is damaged, stale or refused
 * by the device counts as corrupt and as a miss. */
#include "binary.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* By default uthash exits when memory is used up; this way the node stays out of the table, its hh.tbl NULL. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "settings.h"
#include "status.h"

/* -------------------------------------------------------------------------------------------------------- table --- */

typedef enum node_state {
    BUILDING, /* one thread builds, others may wait */
    READY,    /* the binary is whole and does not change any more */
    FAILED    /* out of the table; status and error say why */
} node_state;

typedef struct node {
    cj_binary binary; /* the key of the table lies in it */
    node_state state;
    size_t references; /* of users, of the builder and of those who wait */
    bool in_table;
    convjit_status status;
    char *error; /* the builder's error text; NULL where memory was used up */
    UT_hash_handle hh;
} node;

/* Guards the table and all fields of its nodes but the binary, which only the builder touches until READY. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t table_changed = PTHREAD_COND_INITIALIZER; /* some node left BUILDING */
static node *table;

static node *find_node(const cj_key *key) {
    node *found;
    HASH_FIND(hh, table, key->bytes, CJ_KEY_BYTES, found);
    return found;
}

/* A new node with one reference, in the table; NULL when memory is used up. */
static node *add_node(const cj_key *key) {
    node *added = calloc(1, sizeof *added);
    if (added == NULL) {
        return NULL;
    }
    added->binary.key = *key;
    added->state = BUILDING;
    added->references = 1;
    HASH_ADD(hh, table, binary.key.bytes, CJ_KEY_BYTES, added);
    if (added->hh.tbl == NULL) {
        free(added);
        return NULL;
    }
    added->in_table = true;
    return added;
}

static void remove_node(node *removed) {
    if (removed->in_table) {
        HASH_DEL(table, removed);
        removed->in_table = false;
    }
}

/* Gives one reference back, with the lock held. */
static void drop_node(node *dropped) {
    if (--dropped->references == 0) {
        remove_node(dropped);
        free(dropped->binary.blob.data);
        free(dropped->error);
        free(dropped);
    }
}

/* Waits, with the lock held and one reference taken, until the node is built. Drops the reference of one that failed.
 */
static convjit_status wait_for_node(node *awaited) {
    while (awaited->state == BUILDING) {
        pthread_cond_wait(&table_changed, &table_lock);
    }
    if (awaited->state == READY) {
        return CONVJIT_SUCCESS;
    }
    const convjit_status status =
        cj_fail(awaited->status, "%s", awaited->error != NULL ? awaited->error : convjit_status_text(awaited->status));
    drop_node(awaited);
    return status;
}

/* The builder's last step: shows the others what came out. Drops the builder's reference of a node that failed. */
static convjit_status finish_node(node *built, convjit_status status) {
    pthread_mutex_lock(&table_lock);
    if (status == CONVJIT_SUCCESS) {
        built->state = READY;
    } else {
        built->state = FAILED;
        built->status = status;
        built->error = strdup(convjit_last_error());
        remove_node(built);
        drop_node(built);
    }
    pthread_cond_broadcast(&table_changed);
    pthread_mutex_unlock(&table_lock);
    return status;
}

/* -------------------------------------------------------------------------------------------------------- build --- */

/* The work of one call; all but `node` is the caller's. */
typedef struct build {
    const cj_request *request;
    const cj_compiler *compiler;
    cj_store *store;
    cj_counters *counters;
    const cj_log *log;
} build;

static convjit_status make_key(const cj_request *request, cj_key *out) {
    cj_text options = {0};
    cj_target_compiler(request->target)->options(request->target, &options);
    if (options.failed) {
        cj_text_free(&options);
        return cj_fail(CONVJIT_OUT_OF_MEMORY, "memory for compiler options is used up");
    }
    *out = cj_key_make(request->target->name, options.data != NULL ? options.data : "", request->source,
                       request->source_size);
    cj_text_free(&options);
    return CONVJIT_SUCCESS;
}

/* With the setting, leaves what the key of a miss hashes, so that it can be compared with that of a hit. */
static void explain_miss(const build *job, const cj_key *key) {
    cj_text options = {0};
    cj_text fields = {0};
    if (cj_setting_get(CJ_SETTING_CACHE_FIELDS) == NULL) {
        return;
    }
    job->compiler->options(job->request->target, &options);
    cj_key_describe(job->request->target->name, options.data != NULL ? options.data : "", job->request->source,
                    job->request->source_size, &fields);
    cj_store_write_fields(job->store, key, &fields);
    cj_text_free(&options);
    cj_text_free(&fields);
}

/* Another process that builds a key is waited for without a word, and then with one. A build takes a second or two; a
 * process that stopped in the middle of one must not stop us for ever. */
enum { SILENT_WAIT_MS = 3000, LONGEST_WAIT_MS = 30000 };

static const char not_built[] = "not built anew, the cache mode is cache-only";

/* Takes the binary from disk. false is a miss; `reason` says what was wrong with an entry of this key, and is empty
 * where nothing was. The compiler's build counts only where one may be used (key.c tells why it is compared here). */
static bool take_from_disk(const build *job, cj_binary *out, char *reason, size_t size) {
    char id[CJ_COMPILER_ID_MAX];
    const bool only = cj_store_mode(job->store) == CONVJIT_CACHE_ONLY;
    const cj_wanted wanted = {.key = out->key,
                              .target = job->request->target->name,
                              .compiler = !only && job->compiler->is_open(id) ? id : NULL,
                              .threads = job->request->threads,
                              .shared_bytes = job->request->shared_bytes};
    cj_read read;
    const bool hit = cj_store_read(job->store, &wanted, &read) == CJ_READ_HIT;
    snprintf(reason, size, "%s", read.reason);
    if (!hit) {
        return false;
    }
    snprintf(out->compiler, sizeof out->compiler, "%s", read.entry.compiler);
    out->threads = read.entry.threads;
    out->shared_bytes = read.entry.shared_bytes;
    out->blob.size = read.entry.binary_size;
    out->blob.data = read.bytes; /* the binary moves to the front of the bytes it was read with */
    memmove(read.bytes, read.entry.binary, read.entry.binary_size);
    return true;
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static convjit_status compile(const build *job, cj_binary *out) {
    CJ_TRY(job->compiler->open(out->compiler));
    out->threads = job->request->threads;
    out->shared_bytes = job->request->shared_bytes;
    const double start = now_ms();
    convjit_status status = job->compiler->compile(job->request->target, job->request->source, &out->blob);
    if (status == CONVJIT_SUCCESS && out->blob.size == 0) {
        status =
            cj_fail(CONVJIT_COMPILE_FAILED, "compile: %s reported success and gave an empty binary", out->compiler);
    }
    cj_counters_compiled(job->counters, status == CONVJIT_SUCCESS, now_ms() - start);
    return status;
}

/* Points into both. */
static cj_entry make_entry(const cj_request *request, const cj_binary *binary) {
    return (cj_entry){.key = binary->key,
                      .target = request->target->name,
                      .compiler = binary->compiler,
                      .version = convjit_version(),
                      .family = request->family,
                      .line = request->line,
                      .threads = binary->threads,
                      .shared_bytes = binary->shared_bytes,
                      .binary = binary->blob.data,
                      .binary_size = binary->blob.size};
}

static void store(const build *job, const cj_binary *binary) {
    const cj_entry entry = make_entry(job->request, binary);
    char reason[CJ_REASON_SIZE];
    if (!cj_store_write(job->store, &entry, reason)) {
        cj_counters_store_failure(job->counters, job->log, reason);
    }
}

/* What a miss is where nothing may be compiled. `reason` is empty where no entry was found. */
static convjit_status refuse_to_compile(const build *job, const cj_key *key, const char *reason) {
    return cj_fail(CONVJIT_NOT_CACHED,
                   "key %s for %s is %s the cache, whose mode is cache-only: %s; convjit warm puts it there", key->hex,
                   job->request->target->name, reason[0] != '\0' ? "of no use in" : "not in",
                   reason[0] != '\0' ? reason : cj_store_describe(job->store));
}

/* Compiles for a node of ours. Those who wait get the binary before it is written to disk. */
static convjit_status compile_node(const build *job, node *built, const char *reason) {
    cj_counters_found(job->counters, CJ_FOUND_NOWHERE);
    const bool only = cj_store_mode(job->store) == CONVJIT_CACHE_ONLY;
    const convjit_status status =
        finish_node(built, only ? refuse_to_compile(job, &built->binary.key, reason) : compile(job, &built->binary));
    if (status == CONVJIT_SUCCESS) {
        store(job, &built->binary);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------- the interface ---
 */

const char *cj_origin_name(cj_origin origin) {
    switch (origin) {
    case CJ_ORIGIN_MEMORY:
        return "memory";
    case CJ_ORIGIN_DISK:
        return "disk";
    case CJ_ORIGIN_COMPILER:
        return "compiler";
    }
    return "unknown";
}

/* One reference to the node of a key. `ours`: it is new, and this thread has to build and finish it. What another
 * context's cache lacks may be in ours, or we may compile: then it is our turn. */
static convjit_status get_node(const cj_key *key, node **out, bool *ours) {
    convjit_status status = CONVJIT_SUCCESS;
    pthread_mutex_lock(&table_lock);
    do {
        *out = find_node(key);
        *ours = *out == NULL;
        if (*ours) {
            *out = add_node(key);
            status = *out != NULL ? CONVJIT_SUCCESS
                                  : cj_fail(CONVJIT_OUT_OF_MEMORY, "memory for the table of binaries is used up");
        } else {
            (*out)->references++;
            status = wait_for_node(*out);
        }
    } while (status == CONVJIT_NOT_CACHED);
    pthread_mutex_unlock(&table_lock);
    return status;
}

/* Claims the key among processes. True if another one may have stored it meanwhile. */
static bool claim(const build *job, const cj_key *key, cj_claim *out) {
    cj_claim_result result = cj_store_claim(job->store, key, SILENT_WAIT_MS, out);
    if (result == CJ_CLAIM_BUSY) {
        cj_log_line(job->log, "cache: waiting for another process that builds %s, for %d s at most", key->hex,
                    LONGEST_WAIT_MS / 1000);
        result = cj_store_claim(job->store, key, LONGEST_WAIT_MS, out);
    }
    return result != CJ_CLAIM_NONE;
}

/* Disk, then compiler, for a node of ours. What another process stored while we waited for it is taken from disk. */
static convjit_status build_node(const build *job, node *ours, cj_origin *origin) {
    char reason[sizeof(((cj_read *)NULL)->reason)];
    cj_claim claimed = {-1};
    const bool may_build = cj_store_mode(job->store) != CONVJIT_CACHE_ONLY;
    bool hit = take_from_disk(job, &ours->binary, reason, sizeof reason);
    if (!hit && may_build && claim(job, &ours->binary.key, &claimed)) {
        hit = take_from_disk(job, &ours->binary, reason, sizeof reason);
    }
    if (reason[0] != '\0') {
        cj_counters_corrupt(job->counters, job->log, &ours->binary.key, reason,
                            hit         ? "another directory has it"
                            : may_build ? "built anew"
                                        : not_built);
    }
    convjit_status status = CONVJIT_SUCCESS;
    if (hit) {
        cj_counters_found(job->counters, CJ_FOUND_ON_DISK);
        status = finish_node(ours, CONVJIT_SUCCESS);
    } else {
        explain_miss(job, &ours->binary.key);
        status = compile_node(job, ours, reason);
    }
    *origin = hit ? CJ_ORIGIN_DISK : CJ_ORIGIN_COMPILER;
    cj_claim_release(&claimed);
    return status;
}

/* Takes a node that is of no use out of the table, and gives our reference to it back. Layers that hold it keep it. */
static void forget(node *useless) {
    pthread_mutex_lock(&table_lock);
    remove_node(useless);
    drop_node(useless);
    pthread_mutex_unlock(&table_lock);
}

/* Not so for one that was imported from a convjit that planned otherwise. */
static bool is_for_launch(const cj_binary *binary, const cj_request *request) {
    return binary->threads == request->threads && binary->shared_bytes == request->shared_bytes;
}

convjit_status cj_binary_get(const cj_request *request, cj_store *store, cj_counters *counters, const cj_log *log,
                             cj_binary **out, cj_origin *origin) {
    const build job = {request, cj_target_compiler(request->target), store, counters, log};
    cj_key key;
    node *found;
    bool ours;
    CJ_TRY(make_key(request, &key));
    CJ_TRY(get_node(&key, &found, &ours));
    if (!ours && !is_for_launch(&found->binary, request)) {
        forget(found);
        cj_counters_corrupt(counters, log, &key, "the one in memory was made for another launch than the plan's",
                            "looked for elsewhere");
        CJ_TRY(get_node(&key, &found, &ours));
    }
    if (ours) {
        CJ_TRY(build_node(&job, found, origin));
    } else {
        cj_counters_found(counters, CJ_FOUND_IN_MEMORY);
        *origin = CJ_ORIGIN_MEMORY;
    }
    *out = &found->binary;
    return CONVJIT_SUCCESS;
}

/* Several threads may have been refused the same binary: the first forgets and rebuilds it, the others find its new
 * node and share that. Layers that hold the old binary keep it: somewhere it was loaded. */
convjit_status cj_binary_rebuild(const cj_request *request, cj_binary *refused, cj_store *store, cj_counters *counters,
                                 const cj_log *log, cj_binary **out) {
    const build job = {request, cj_target_compiler(request->target), store, counters, log};
    const cj_key key = refused->key;
    const bool only = cj_store_mode(store) == CONVJIT_CACHE_ONLY;
    char reason[512];
    snprintf(reason, sizeof reason, "%s", convjit_last_error()); /* the device's words */
    forget((node *)refused);                                     /* its first member */

    node *found;
    bool ours;
    CJ_TRY(get_node(&key, &found, &ours));
    if (ours) {
        cj_counters_corrupt(counters, log, &key, "the device refused the binary", only ? not_built : "built anew");
        CJ_TRY(compile_node(&job, found, reason));
    }
    *out = &found->binary;
    return CONVJIT_SUCCESS;
}

convjit_status cj_binary_write(const cj_request *request, const cj_binary *binary, void *bytes, size_t *size) {
    const cj_entry entry = make_entry(request, binary);
    const size_t room = *size;
    void *encoded = cj_entry_encode(&entry, size);
    CJ_RETURN_IF(encoded == NULL, CONVJIT_OUT_OF_MEMORY, "no memory for an entry");
    const bool fits = bytes == NULL || *size <= room;
    if (bytes != NULL && fits) {
        memcpy(bytes, encoded, *size);
    }
    free(encoded);
    CJ_RETURN_IF(!fits, CONVJIT_INVALID_ARGUMENT, "there is room for %zu bytes, must be %zu", room, *size);
    return CONVJIT_SUCCESS;
}

/* Fills a binary with a copy of an entry's. */
static convjit_status copy_entry(const cj_entry *entry, cj_binary *out) {
    out->blob.data = malloc(entry->binary_size);
    CJ_RETURN_IF(out->blob.data == NULL, CONVJIT_OUT_OF_MEMORY, "memory for a binary is used up");
    memcpy(out->blob.data, entry->binary, entry->binary_size);
    out->blob.size = entry->binary_size;
    out->threads = entry->threads;
    out->shared_bytes = entry->shared_bytes;
    snprintf(out->compiler, sizeof out->compiler, "%s", entry->compiler);
    return CONVJIT_SUCCESS;
}

convjit_status cj_binary_import(const cj_entry *entry, cj_binary **out) {
    node *found;
    bool ours;
    CJ_TRY(get_node(&entry->key, &found, &ours));
    if (ours) {
        CJ_TRY(finish_node(found, copy_entry(entry, &found->binary)));
    }
    *out = &found->binary;
    return CONVJIT_SUCCESS;
}

void cj_binary_release(cj_binary *binary) {
    if (binary != NULL) {
        pthread_mutex_lock(&table_lock);
        drop_node((node *)binary);
        pthread_mutex_unlock(&table_lock);
    }
}
