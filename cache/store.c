/* store.c - the cache: which directories it has, how an entry is looked up in them, where a new one goes.
 *
 * The search path is one directory that is written and any number of others behind it that are only read, such as a
 * warmed one in a container's image or on a share. All are read in order, until one has a sound entry; none of the
 * others is ever changed, and one that is missing is as good as empty. */
#include "store.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "settings.h"
#include "status.h"
#include "trim.h"

enum {
    OTHERS_MAX = 7,
    PRIVATE_DIRECTORY_MODE = 0700,
    PRIVATE_FILE_MODE = 0600,
    GROWN_PART = 16 /* of the size limit: what a process may write until it looks at the directory again */
};
static const char default_size[] = "4G"; /* some fifty thousand kernels, of 60 to 100 KB */

struct cj_store {
    convjit_cache_mode mode;
    bool has_own; /* else `unwritable` says why */
    cj_directory own;
    cj_directory others[OTHERS_MAX];
    size_t other_count;
    uint64_t size_limit;       /* bytes; 0: none */
    atomic_ullong unlooked_at; /* bytes written since the own directory was last trimmed */
    atomic_bool has_written;
    char unwritable[256];
    char notice[512];
    char description[1024];
};

/* ----------------------------------------------------------------------------------- choice of the directories --- */

/* Adds to the description. */
__attribute__((format(printf, 2, 3))) static void describe(cj_store *store, const char *format, ...) {
    const size_t length = strlen(store->description);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(store->description + length, sizeof store->description - length, format, arguments);
    va_end(arguments);
}

/* Nothing can be written. */
__attribute__((format(printf, 2, 3))) static void forgo_own(cj_store *store, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(store->unwritable, sizeof store->unwritable, format, arguments);
    va_end(arguments);
    store->has_own = false;
    describe(store, "none: %s", store->unwritable);
}

/* Sets path to PARENT TAIL. False where that is too long. */
static bool set_path(cj_directory *directory, const char *parent, const char *tail) {
    const int length = snprintf(directory->path, sizeof directory->path, "%s%s", parent, tail);
    return length >= 0 && length < CJ_DIRECTORY_MAX;
}

/* A directory that was named in full. A relative name is taken from here and now, so that a later chdir does not move
 * the cache. NULL, or why it cannot be. */
static const char *set_named(cj_directory *directory, const char *name) {
    static const char too_long[] = "the path is longer than 3583 bytes"; /* CJ_DIRECTORY_MAX - 1 */
    _Static_assert(CJ_DIRECTORY_MAX == 3584, "the text says another length");
    char here[CJ_DIRECTORY_MAX];
    *directory = (cj_directory){.directory_mode = 0777, .file_mode = 0666};
    if (name[0] == '/') {
        return set_path(directory, name, "") ? NULL : too_long;
    }
    if (getcwd(here, sizeof here - 1) == NULL) {
        return strerror(errno);
    }
    strcat(here, "/");
    return set_path(directory, here, name) ? NULL : too_long;
}

/* The per-user directory in the place for temporary files, with the user's number in its name. Others may have created
 * that name before us. */
static void choose_temporary(cj_store *store, const char *why) {
    const char *place = cj_setting_get(CJ_SETTING_TMPDIR);
    const bool set = place != NULL && place[0] == '/';
    char tail[40];
    snprintf(tail, sizeof tail, "/convjit-%lu", (unsigned long)geteuid());
    store->own =
        (cj_directory){.among_others = true, .directory_mode = PRIVATE_DIRECTORY_MODE, .file_mode = PRIVATE_FILE_MODE};
    if (!set_path(&store->own, set ? place : "/tmp", tail)) {
        forgo_own(store, "%s, and the path of TMPDIR is too long", why);
        return;
    }
    store->own.given = strlen(store->own.path); /* publishing claims it before anything is made in it */
    bool exists;
    const char *distrusted = cj_directory_distrust(store->own.path, &exists);
    if (distrusted != NULL) {
        forgo_own(store, "%s, and %.100s: %s", why, store->own.path, distrusted);
        return;
    }
    store->has_own = true;
    describe(store, "%s (%s%s)", store->own.path, set ? "TMPDIR; " : "", why);
}

/* The first of these that can be written:
 *
 *   1. $XDG_CACHE_HOME/convjit         if absolute, as the XDG specification demands
 *   2. $HOME/.cache/convjit            if absolute, and 1 is not set
 *   3. $TMPDIR/convjit-UID, or /tmp/convjit-UID where TMPDIR is not absolute; only if it is ours with mode 0700
 *   4. none: nothing is kept beyond this process
 *
 * Where 1 or 2 cannot be written (a container with a read-only root, a user without a home), it is still read. The user
 * database is never asked: on a compute node a user often has no entry in it. */
static void choose_default(cj_store *store) {
    const char *xdg = cj_setting_get(CJ_SETTING_XDG_CACHE_HOME);
    const char *home = cj_setting_get(CJ_SETTING_HOME);
    cj_directory user = {.directory_mode = PRIVATE_DIRECTORY_MODE, .file_mode = PRIVATE_FILE_MODE};
    const bool is_xdg = xdg != NULL && xdg[0] == '/';
    if (!is_xdg && (home == NULL || home[0] != '/')) {
        choose_temporary(store, "no absolute HOME");
        return;
    }
    const char *origin = cj_setting_variable(is_xdg ? CJ_SETTING_XDG_CACHE_HOME : CJ_SETTING_HOME);
    const bool fits = is_xdg ? set_path(&user, xdg, "/convjit") : set_path(&user, home, "/.cache/convjit");
    user.given = is_xdg ? 0 : strlen(home);
    const int error = fits ? cj_directory_check_writable(&user) : ENAMETOOLONG;
    if (error == 0) {
        store->own = user;
        store->has_own = true;
        describe(store, "%s (%s)", user.path, origin);
        return;
    }
    char why[200];
    snprintf(why, sizeof why, "%s cannot be written: %s", origin, strerror(error));
    choose_temporary(store, why);
    snprintf(store->notice, sizeof store->notice, "%s, kernels are written to %.200s", why,
             store->has_own ? store->own.path : "no directory");
    if (fits) {
        store->others[store->other_count++] = user;
        describe(store, "; read only: %s (%s)", user.path, origin);
    }
}

/* The parts of "A:B:C". An empty A stands for the per-user default, other empty parts for nothing. */
static convjit_status choose_path(cj_store *store, const char *path, const char *origin) {
    char *parts = strdup(path);
    CJ_RETURN_IF(parts == NULL, CONVJIT_OUT_OF_MEMORY, "no memory for the cache directory");
    char *rest = parts;
    const char *own = strsep(&rest, ":");
    const char *reason = own[0] != '\0' ? set_named(&store->own, own) : NULL;
    store->has_own = true;
    if (own[0] == '\0') {
        choose_default(store);
    } else if (reason != NULL) {
        forgo_own(store, "%.100s (%s): %s", own, origin, reason);
    } else {
        describe(store, "%s (%s)", store->own.path, origin);
    }
    convjit_status status = CONVJIT_SUCCESS;
    for (const char *name; status == CONVJIT_SUCCESS && (name = strsep(&rest, ":")) != NULL;) {
        if (name[0] != '\0' && store->other_count == OTHERS_MAX) {
            status = cj_fail(CONVJIT_INVALID_ARGUMENT, "%s names more than %d directories", origin, OTHERS_MAX + 1);
        } else if (name[0] != '\0' && set_named(&store->others[store->other_count], name) == NULL) {
            describe(store, "; read only: %s", store->others[store->other_count++].path);
        }
    }
    free(parts);
    return status;
}

/* The caller's search path, else that of the setting, else the per-user default. */
static convjit_status choose_directories(cj_store *store, const char *path) {
    const char *setting = cj_setting_get(CJ_SETTING_CACHE_DIR);
    if (path != NULL && path[0] != '\0') {
        return choose_path(store, path, "cache_directory");
    }
    if (setting != NULL) {
        return choose_path(store, setting, cj_setting_variable(CJ_SETTING_CACHE_DIR));
    }
    choose_default(store);
    return CONVJIT_SUCCESS;
}

/* --------------------------------------------------------------------------------------------------------- open --- */

static const char *const mode_names[] = {[CONVJIT_CACHE_NORMAL] = "normal",
                                         [CONVJIT_CACHE_ONLY] = "cache-only",
                                         [CONVJIT_CACHE_REFRESH] = "refresh",
                                         [CONVJIT_CACHE_OFF] = "off"};

static convjit_status choose_mode(cj_store *store, convjit_cache_mode wanted) {
    CJ_RETURN_IF((unsigned)wanted > CONVJIT_CACHE_OFF, CONVJIT_INVALID_ARGUMENT,
                 "cache_mode %d, must be a convjit_cache_mode", (int)wanted);
    const char *setting = cj_setting_get(CJ_SETTING_CACHE_MODE);
    store->mode = wanted;
    if (wanted == CONVJIT_CACHE_DEFAULT && setting == NULL) {
        store->mode = CONVJIT_CACHE_NORMAL;
    }
    for (int mode = CONVJIT_CACHE_NORMAL; store->mode == CONVJIT_CACHE_DEFAULT && mode <= CONVJIT_CACHE_OFF; mode++) {
        store->mode = strcmp(setting, mode_names[mode]) == 0 ? (convjit_cache_mode)mode : CONVJIT_CACHE_DEFAULT;
    }
    CJ_RETURN_IF(store->mode == CONVJIT_CACHE_DEFAULT, CONVJIT_INVALID_ARGUMENT,
                 "%s is \"%.40s\", must be normal, cache-only, refresh or off",
                 cj_setting_variable(CJ_SETTING_CACHE_MODE), setting);
    return CONVJIT_SUCCESS;
}

/* A whole number, and perhaps K, M, G or T behind it. */
static bool read_size(const char *text, uint64_t *out) {
    static const char units[] = "KMGT";
    char *end = NULL;
    errno = 0;
    *out = strtoull(text, &end, 10);
    const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
    const int shift = unit != NULL ? 10 * (int)(unit - units + 1) : 0;
    const bool fits = errno == 0 && *out <= UINT64_MAX >> shift;
    *out <<= shift;
    return fits && text[0] >= '0' && text[0] <= '9' && end[unit != NULL] == '\0';
}

static convjit_status choose_size(cj_store *store, const char *wanted) {
    const char *setting = cj_setting_get(CJ_SETTING_CACHE_SIZE);
    const char *text = wanted != NULL ? wanted : setting != NULL ? setting : default_size;
    CJ_RETURN_IF(!read_size(text, &store->size_limit), CONVJIT_INVALID_ARGUMENT,
                 "%s is \"%.40s\", must be a number of bytes, with K, M, G or T behind it if wanted; 0 is no limit",
                 wanted != NULL ? "cache_size" : cj_setting_variable(CJ_SETTING_CACHE_SIZE), text);
    return CONVJIT_SUCCESS;
}

convjit_status cj_store_open(const convjit_options *options, cj_store **out) {
    cj_store *store = calloc(1, sizeof *store);
    CJ_RETURN_IF(store == NULL, CONVJIT_OUT_OF_MEMORY, "no memory for the cache");
    convjit_status status = choose_mode(store, options->cache_mode);
    if (status == CONVJIT_SUCCESS) {
        status = choose_size(store, options->cache_size);
    }
    if (status == CONVJIT_SUCCESS) {
        status = choose_directories(store, options->cache_directory);
    }
    if (status != CONVJIT_SUCCESS) {
        free(store);
        return status;
    }
    *out = store;
    return CONVJIT_SUCCESS;
}

void cj_store_close(cj_store *store) {
    free(store);
}

convjit_cache_mode cj_store_mode(const cj_store *store) {
    return store->mode;
}

const char *cj_store_mode_name(const cj_store *store) {
    return mode_names[store->mode];
}

const char *cj_store_notice(const cj_store *store) {
    return store->notice;
}

const char *cj_store_describe(const cj_store *store) {
    return store->description;
}

uint64_t cj_store_size_limit(const cj_store *store) {
    return store->size_limit;
}

const cj_directory *cj_store_own(const cj_store *store) {
    return store->has_own ? &store->own : NULL;
}

const cj_directory *cj_store_others(const cj_store *store, size_t *count) {
    *count = store->other_count;
    return store->others;
}

/* --------------------------------------------------------------------------------------------------------- read --- */

/* A sound entry may still be of no use: another's, made by another compiler build (key.c tells why the build is
 * compared here), or for another launch than the plan's, where host and kernel have parted without a new key. */
static bool is_as_wanted(const cj_entry *entry, const cj_wanted *wanted, char *reason, size_t size) {
    if (memcmp(entry->key.bytes, wanted->key.bytes, CJ_KEY_BYTES) != 0) {
        snprintf(reason, size, "another entry's key");
    } else if (strcmp(entry->target, wanted->target) != 0) {
        snprintf(reason, size, "other target");
    } else if (wanted->compiler != NULL && strcmp(entry->compiler, wanted->compiler) != 0) {
        snprintf(reason, size, "built by %.100s, the compiler in use is %.100s", entry->compiler, wanted->compiler);
    } else if (entry->threads != wanted->threads || entry->shared_bytes != wanted->shared_bytes) {
        snprintf(reason, size, "made for %u threads and %u bytes of shared memory, the plan wants %u and %u",
                 entry->threads, entry->shared_bytes, wanted->threads, wanted->shared_bytes);
    } else {
        return true;
    }
    return false;
}

/* What an error of reading means: NULL where the file is simply not there for us. If the directory is at fault, the
 * write after the build says so. */
static const char *explain(int error) {
    switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case ENAMETOOLONG:
        return NULL;
    case EFBIG:
        return "larger than 256 MiB";
    case EINVAL:
        return "not a regular file";
    default:
        return strerror(error);
    }
}

/* One directory. False with the reason added to out->reason, if there is one. */
static bool read_directory(const cj_directory *from, bool own, const cj_wanted *wanted, cj_read *out) {
    char name[CJ_DIRECTORY_NAME_MAX];
    char reason[300];
    size_t size = 0;
    cj_directory_name(&wanted->key, ".entry", name);
    const int error = cj_directory_read(from, name, own, &out->bytes, &size);
    const char *fault = error == 0 ? cj_entry_decode(out->bytes, size, &out->entry) : explain(error);
    if (fault != NULL) {
        snprintf(reason, sizeof reason, "%s", fault);
    } else if (error != 0) {
        return false;
    } else if (is_as_wanted(&out->entry, wanted, reason, sizeof reason)) {
        return true;
    }
    free(out->bytes);
    out->bytes = NULL;
    if (out->reason[0] == '\0') {
        snprintf(out->reason, sizeof out->reason, "%s (in %.150s)", reason, from->path);
    }
    return false;
}

cj_read_result cj_store_read(cj_store *store, const cj_wanted *wanted, cj_read *out) {
    memset(out, 0, sizeof *out);
    if (store->mode == CONVJIT_CACHE_OFF || store->mode == CONVJIT_CACHE_REFRESH) {
        return CJ_READ_ABSENT;
    }
    if (store->has_own && read_directory(&store->own, true, wanted, out)) {
        return CJ_READ_HIT;
    }
    for (size_t i = 0; i < store->other_count; i++) {
        if (read_directory(&store->others[i], false, wanted, out)) {
            return CJ_READ_HIT;
        }
    }
    return out->reason[0] != '\0' ? CJ_READ_BAD : CJ_READ_ABSENT;
}

/* -------------------------------------------------------------------------------------------------------- write --- */

cj_claim_result cj_store_claim(const cj_store *store, const cj_key *key, int wait_ms, cj_claim *out) {
    out->file = -1;
    if (!store->has_own || store->mode == CONVJIT_CACHE_OFF) {
        return CJ_CLAIM_NONE;
    }
    return cj_claim_take(&store->own, key, wait_ms, out);
}

void cj_store_write_fields(cj_store *store, const cj_key *key, const cj_text *fields) {
    char name[CJ_DIRECTORY_NAME_MAX];
    char ignored[CJ_REASON_SIZE];
    if (store->has_own && store->mode != CONVJIT_CACHE_OFF && !fields->failed) {
        cj_directory_name(key, ".fields", name);
        (void)cj_directory_publish(&store->own, name, fields->data, fields->size, ignored);
    }
}

/* After a write: the first of this process, which may be the only one, and then whenever it has written much. Thus the
 * limit may be passed by a sixteenth for each process that writes. */
static void keep_within_limit(cj_store *store, size_t size) {
    const unsigned long long unlooked_at = atomic_fetch_add(&store->unlooked_at, size) + size;
    const bool first = !atomic_exchange(&store->has_written, true);
    const bool grown = store->size_limit > 0 && unlooked_at > store->size_limit / GROWN_PART;
    if (first || grown) {
        convjit_cache_totals ignored;
        atomic_store(&store->unlooked_at, 0);
        (void)cj_trim(&store->own, store->size_limit, grown ? CJ_TRIM_GROWN : CJ_TRIM_WRITTEN, NULL, NULL, &ignored);
    }
}

bool cj_store_write(cj_store *store, const cj_entry *entry, char reason[CJ_REASON_SIZE]) {
    if (store->mode == CONVJIT_CACHE_OFF) {
        return true;
    }
    if (!store->has_own) {
        snprintf(reason, CJ_REASON_SIZE, "%.*s", CJ_REASON_SIZE - 1, store->unwritable);
        return false;
    }
    size_t size;
    void *bytes = cj_entry_encode(entry, &size);
    if (bytes == NULL || size > CJ_FILE_SIZE_MAX) {
        snprintf(reason, CJ_REASON_SIZE, "%s", bytes == NULL ? "memory is used up" : "an entry of more than 256 MiB");
        free(bytes);
        return false;
    }
    char name[CJ_DIRECTORY_NAME_MAX];
    cj_directory_name(&entry->key, ".entry", name);
    const bool done = cj_directory_publish(&store->own, name, bytes, size, reason);
    free(bytes);
    if (done) {
        keep_within_limit(store, size);
    }
    return done;
}
