/* maintenance.c - the cache as files: list, trim, export, import. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* By default uthash exits when memory is used up; this way the node stays out of the table, its hh.tbl NULL. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "archive.h"
#include "listing.h"
#include "status.h"
#include "store.h"
#include "trim.h"

/* The store that options describe, whatever mode they or a setting give: maintenance has none. */
static convjit_status open_store(const convjit_options *options, const char *call, cj_store **out) {
    convjit_options used = CONVJIT_OPTIONS_INIT;
    if (options != NULL) {
        CJ_RETURN_IF(options->struct_size != sizeof *options, CONVJIT_INVALID_ARGUMENT,
                     "%s failed: struct_size %zu, must be %zu; initialise with CONVJIT_OPTIONS_INIT", call,
                     options->struct_size, sizeof *options);
        used = *options;
    }
    used.cache_mode = CONVJIT_CACHE_NORMAL;
    const convjit_status status = cj_store_open(&used, out);
    return status == CONVJIT_SUCCESS ? status : cj_fail_prefix(status, "%s failed", call);
}

convjit_status convjit_cache_directory(const convjit_options *options, char *path, size_t size) {
    cj_store *store;
    CJ_RETURN_IF(path == NULL, CONVJIT_INVALID_ARGUMENT, "cache directory failed: path is NULL");
    CJ_TRY(open_store(options, "cache directory", &store));
    const cj_directory *own = cj_store_own(store);
    convjit_status status = CONVJIT_SUCCESS;
    if (own == NULL) {
        status = cj_fail(CONVJIT_FILE_FAILED, "cache directory failed: %s", cj_store_describe(store));
    } else if ((size_t)snprintf(path, size, "%s", own->path) >= size) {
        status = cj_fail(CONVJIT_FILE_FAILED, "cache directory failed: its path is longer than %zu bytes", size);
    }
    cj_store_close(store);
    return status;
}

/* -------------------------------------------------------------------------------------------------------- visit --- */

/* What is done with each entry file: its description, and its bytes where it is sound. */
typedef convjit_status (*visit_fn)(void *user, const convjit_cache_entry *entry, const void *bytes, size_t size);

/* "cdef" of "ab/cdef.entry" and its folder make the key. */
static void key_of(const char *name, char key[2 * CJ_KEY_BYTES + 1]) {
    snprintf(key, 2 * CJ_KEY_BYTES + 1, "%.2s%.30s", name, name + 3);
}

static void describe(convjit_cache_entry *out, const cj_entry *entry) {
    out->target = entry->target;
    out->compiler = entry->compiler;
    out->version = entry->version;
    out->family = entry->family;
    out->line = entry->line;
    out->threads = entry->threads;
    out->shared_bytes = entry->shared_bytes;
    out->binary_bytes = entry->binary_size;
    out->binary = entry->binary;
}

static convjit_status visit_file(const cj_directory *directory, const cj_file *file, visit_fn visit, void *user) {
    char path[PATH_MAX];
    char key[2 * CJ_KEY_BYTES + 1];
    void *bytes = NULL;
    size_t size = 0;
    cj_entry entry = {0};
    cj_directory_path(directory, file->name, path);
    key_of(file->name, key);
    convjit_cache_entry described = {.path = path, .key = key, .bytes = file->size, .used = file->used};
    const int error = cj_directory_read(directory, file->name, false, &bytes, &size);
    if (error == ENOENT) {
        return CONVJIT_SUCCESS; /* removed since it was listed */
    }
    described.problem = error != 0 ? strerror(error) : cj_entry_decode(bytes, size, &entry);
    if (described.problem == NULL && strcmp(entry.key.hex, key) != 0) {
        described.problem = "another entry's key";
    }
    if (described.problem == NULL) {
        describe(&described, &entry);
    }
    const convjit_status status = visit(user, &described, bytes, size);
    free(bytes);
    return status;
}

static convjit_status visit_directory(const cj_directory *directory, visit_fn visit, void *user) {
    cj_listing listing;
    const int error = cj_listing_make(directory, &listing);
    convjit_status status = CONVJIT_SUCCESS;
    if (error != 0) {
        status = cj_fail(error == ENOMEM ? CONVJIT_OUT_OF_MEMORY : CONVJIT_FILE_FAILED, "cannot list %s: %s",
                         directory->path, strerror(error));
    }
    for (size_t i = 0; status == CONVJIT_SUCCESS && i < listing.count; i++) {
        if (cj_file_is_entry(&listing.files[i])) {
            status = visit_file(directory, &listing.files[i], visit, user);
        }
    }
    cj_listing_free(&listing);
    return status;
}

/* Every entry file of the search path, in order. */
static convjit_status visit_store(const cj_store *store, visit_fn visit, void *user) {
    size_t count;
    const cj_directory *own = cj_store_own(store);
    const cj_directory *others = cj_store_others(store, &count);
    if (own != NULL) {
        CJ_TRY(visit_directory(own, visit, user));
    }
    for (size_t i = 0; i < count; i++) {
        CJ_TRY(visit_directory(&others[i], visit, user));
    }
    return CONVJIT_SUCCESS;
}

/* --------------------------------------------------------------------------------------------------------- list --- */

typedef struct caller {
    convjit_cache_fn visit;
    void *user;
    const cj_directory *directory;
} caller;

static convjit_status tell_entry(void *user, const convjit_cache_entry *entry, const void *bytes, size_t size) {
    const caller *to = user;
    (void)bytes, (void)size;
    to->visit(to->user, entry);
    return CONVJIT_SUCCESS;
}

convjit_status convjit_cache_list(const convjit_options *options, convjit_cache_fn visit, void *user) {
    cj_store *store;
    caller to = {visit, user, NULL};
    CJ_RETURN_IF(visit == NULL, CONVJIT_INVALID_ARGUMENT, "cache list failed: visit is NULL");
    CJ_TRY(open_store(options, "cache list", &store));
    const convjit_status status = visit_store(store, tell_entry, &to);
    cj_store_close(store);
    return status == CONVJIT_SUCCESS ? status : cj_fail_prefix(status, "cache list failed");
}

/* --------------------------------------------------------------------------------------------------------- trim --- */

static void tell_file(void *user, const cj_file *file) {
    const caller *to = user;
    char path[PATH_MAX];
    char key[2 * CJ_KEY_BYTES + 1] = "";
    cj_directory_path(to->directory, file->name, path);
    if (!file->temporary) {
        key_of(file->name, key);
    }
    const convjit_cache_entry entry = {.path = path, .key = key, .bytes = file->size, .used = file->used};
    to->visit(to->user, &entry);
}

convjit_status convjit_cache_trim(const convjit_options *options, int dry_run, convjit_cache_fn removed, void *user,
                                  convjit_cache_totals *totals) {
    cj_store *store;
    CJ_RETURN_IF(totals == NULL, CONVJIT_INVALID_ARGUMENT, "cache trim failed: totals is NULL");
    CJ_TRY(open_store(options, "cache trim", &store));
    caller to = {removed, user, cj_store_own(store)};
    convjit_status status = CONVJIT_SUCCESS;
    if (to.directory == NULL) {
        status = cj_fail(CONVJIT_FILE_FAILED, "cache trim failed: %s", cj_store_describe(store));
    } else {
        const int error = cj_trim(to.directory, cj_store_size_limit(store), dry_run ? CJ_TRIM_DRY_RUN : CJ_TRIM_ASKED,
                                  removed != NULL ? tell_file : NULL, &to, totals);
        if (error != 0) {
            status = cj_fail(error == ENOMEM ? CONVJIT_OUT_OF_MEMORY : CONVJIT_FILE_FAILED,
                             "cache trim failed: cannot list %s: %s", to.directory->path, strerror(error));
        }
    }
    cj_store_close(store);
    return status;
}

/* ------------------------------------------------------------------------------------------- export and import --- */

typedef struct exported {
    char key[2 * CJ_KEY_BYTES + 1];
    UT_hash_handle hh;
} exported;

typedef struct exporting {
    cj_archive *archive;
    exported *keys;
    uint64_t count;
} exporting;

/* The first sound entry of a key goes into the file. */
static convjit_status export_entry(void *user, const convjit_cache_entry *entry, const void *bytes, size_t size) {
    exporting *run = user;
    exported *found;
    HASH_FIND_STR(run->keys, entry->key, found);
    if (found != NULL || entry->problem != NULL) {
        return CONVJIT_SUCCESS;
    }
    found = calloc(1, sizeof *found);
    CJ_RETURN_IF(found == NULL, CONVJIT_OUT_OF_MEMORY, "no memory for a table of keys");
    snprintf(found->key, sizeof found->key, "%s", entry->key);
    HASH_ADD_STR(run->keys, key, found);
    if (found->hh.tbl == NULL) {
        free(found);
        return cj_fail(CONVJIT_OUT_OF_MEMORY, "no memory for a table of keys");
    }
    run->count++;
    return cj_archive_add(run->archive, bytes, size);
}

static void free_keys(exported *key, exported *table) {
    HASH_CLEAR(hh, table); /* frees the table, leaves the list */
    while (key != NULL) {
        exported *next = key->hh.next;
        free(key);
        key = next;
    }
}

convjit_status convjit_cache_export(const convjit_options *options, const char *file, uint64_t *entries) {
    cj_store *store;
    exporting run = {NULL, NULL, 0};
    CJ_RETURN_IF(file == NULL, CONVJIT_INVALID_ARGUMENT, "cache export failed: file is NULL");
    CJ_TRY(open_store(options, "cache export", &store));
    convjit_status status = cj_archive_begin(file, &run.archive);
    if (status == CONVJIT_SUCCESS) {
        status = visit_store(store, export_entry, &run);
        free_keys(run.keys, run.keys);
        if (status == CONVJIT_SUCCESS) {
            status = cj_archive_end(run.archive);
        } else {
            cj_archive_abandon(run.archive);
        }
    }
    cj_store_close(store);
    if (entries != NULL) {
        *entries = status == CONVJIT_SUCCESS ? run.count : 0;
    }
    return status == CONVJIT_SUCCESS ? status : cj_fail_prefix(status, "cache export failed");
}

typedef struct importing {
    cj_store *store;
    uint64_t count;
} importing;

static convjit_status import_entry(void *user, const cj_entry *entry) {
    importing *run = user;
    char reason[CJ_REASON_SIZE];
    CJ_RETURN_IF(!cj_store_write(run->store, entry, reason), CONVJIT_FILE_FAILED, "%s", reason);
    run->count++;
    return CONVJIT_SUCCESS;
}

convjit_status convjit_cache_import(const convjit_options *options, const char *file, uint64_t *entries) {
    importing run = {NULL, 0};
    CJ_RETURN_IF(file == NULL, CONVJIT_INVALID_ARGUMENT, "cache import failed: file is NULL");
    CJ_TRY(open_store(options, "cache import", &run.store));
    const convjit_status status = cj_archive_read(file, import_entry, &run);
    cj_store_close(run.store);
    if (entries != NULL) {
        *entries = run.count;
    }
    return status == CONVJIT_SUCCESS ? status : cj_fail_prefix(status, "cache import failed");
}
