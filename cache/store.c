/* store.c - the cache directory: where it is, how an entry is read, how one is published.
 *
 * A file of the store is ROOT/ab/cdef....entry: the key in hexadecimal, its first byte a folder, so that no folder
 * grows past a 256th of the cache. Files are written once, under a private temporary name in the folder they end in,
 * and renamed; they never change afterwards, so whoever opens one sees a whole file, and nobody needs a lock. A reader
 * verifies the checksum, so a machine that lost power before the data reached the disk costs one rebuild; that is
 * cheaper than an fsync for every entry.
 *
 * Whoever can write to the directory decides what code runs. A directory that was named belongs to the one who named it
 * and follows the umask, so that an image built by root serves another user, or a group shares it. The per-user ones
 * are created for the user alone. */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "settings.h"

enum {
    REASON_SIZE = 160,          /* as in store.h */
    ROOT_MAX = PATH_MAX - 512,  /* leaves room for folder and file names */
    ENTRY_SIZE_MAX = 256 << 20, /* bytes; a cubin has some hundred thousand, a sanitized shared object some million */
    WRITE_ATTEMPTS = 3,         /* the first finds no folder; the second may lose it to a deleter */
    PRIVATE_DIRECTORY_MODE = 0700,
    PRIVATE_FILE_MODE = 0600
};

struct cj_store {
    char root[ROOT_MAX]; /* absolute; "" = none, and `description` says why */
    size_t given;        /* length of the part of root that must exist, for it is not ours to create ($HOME) */
    bool among_others;   /* root lies where every user can write: its owner and mode are checked at each use */
    mode_t directory_mode;
    mode_t file_mode;
    char description[ROOT_MAX + 256];
};

/* ------------------------------------------------------------------------------------- choice of the directory --- */

/* Is the per-user directory in a shared place free for us (absent, or ours alone)? NULL, or why not. A link there is
 * somebody's trap: lstat sees the link itself, which is no directory. */
static const char *distrust(const char *path, bool *exists) {
    struct stat info;
    *exists = lstat(path, &info) == 0;
    if (!*exists) {
        return errno == ENOENT ? NULL : strerror(errno);
    }
    if (!S_ISDIR(info.st_mode)) {
        return "it is not a directory";
    }
    if (info.st_uid != geteuid()) {
        return "it belongs to another user";
    }
    return (info.st_mode & 077) == 0 ? NULL : "other users may enter it (its mode must be 0700)";
}

/* Sets root to PARENT TAIL; the description says where it came from. */
static void choose(cj_store *store, const char *parent, const char *tail, const char *origin) {
    const int length = snprintf(store->root, sizeof store->root, "%s%s", parent, tail);
    if (length < 0 || length >= ROOT_MAX) {
        store->root[0] = '\0';
        snprintf(store->description, sizeof store->description, "none: the path of %s is longer than %d bytes", origin,
                 ROOT_MAX - 1);
        return;
    }
    snprintf(store->description, sizeof store->description, "%s (%s)", store->root, origin);
}

/* A directory that was named in full. A relative name is taken from here and now, so that a later chdir does not move
 * the cache. */
static void choose_named(cj_store *store, const char *directory, const char *origin) {
    store->directory_mode = 0777;
    store->file_mode = 0666;
    char here[ROOT_MAX];
    if (directory[0] == '/') {
        choose(store, directory, "", origin);
    } else if (getcwd(here, sizeof here - 1) != NULL) {
        strcat(here, "/");
        choose(store, here, directory, origin);
    } else {
        snprintf(store->description, sizeof store->description, "none: %s is relative, and the working directory: %s",
                 origin, strerror(errno));
    }
}

/* The per-user directory in the place for temporary files, with the user's number in its name. Others may have created
 * that name before us. */
static void choose_temporary(cj_store *store) {
    const char *place = cj_setting_get(CJ_SETTING_TMPDIR);
    const bool set = place != NULL && place[0] == '/';
    char tail[40];
    snprintf(tail, sizeof tail, "/convjit-%lu", (unsigned long)geteuid());
    choose(store, set ? place : "/tmp", tail, set ? "TMPDIR; no absolute HOME" : "no absolute HOME");
    if (store->root[0] == '\0') {
        return;
    }
    store->among_others = true;
    store->given = strlen(store->root); /* claim_root creates it */
    bool exists;
    const char *reason = distrust(store->root, &exists);
    if (reason != NULL) {
        snprintf(store->description, sizeof store->description, "none: no absolute HOME, and %s: %s", store->root,
                 reason);
        store->root[0] = '\0';
    }
}

/* The first candidate that is there:
 *
 *   1. the caller's directory (convjit_options.cache_directory)
 *   2. $CONVJIT_CACHE_DIR
 *   3. $XDG_CACHE_HOME/convjit         if absolute, as the XDG specification demands
 *   4. $HOME/.cache/convjit            if absolute
 *   5. $TMPDIR/convjit-UID, or /tmp/convjit-UID where TMPDIR is not absolute; only if it is ours with mode 0700
 *   6. none: nothing is kept beyond this process
 *
 * "There" means named: a candidate that turns out unwritable is not skipped for the next, since a cache that moves
 * unasked is one that nobody finds again; the failure is reported instead. The user database is never asked: on a
 * compute node a user often has no entry in it. */
static void choose_directory(cj_store *store, const char *directory) {
    store->directory_mode = PRIVATE_DIRECTORY_MODE;
    store->file_mode = PRIVATE_FILE_MODE;
    const char *value;
    if (directory != NULL && directory[0] != '\0') {
        choose_named(store, directory, "cache_directory");
    } else if ((value = cj_setting_get(CJ_SETTING_CACHE_DIR)) != NULL) {
        choose_named(store, value, cj_setting_variable(CJ_SETTING_CACHE_DIR));
    } else if ((value = cj_setting_get(CJ_SETTING_XDG_CACHE_HOME)) != NULL && value[0] == '/') {
        choose(store, value, "/convjit", "XDG_CACHE_HOME");
    } else if ((value = cj_setting_get(CJ_SETTING_HOME)) != NULL && value[0] == '/') {
        choose(store, value, "/.cache/convjit", "HOME");
        store->given = strlen(value);
    } else {
        choose_temporary(store);
    }
}

cj_store *cj_store_open(const char *directory) {
    cj_store *store = calloc(1, sizeof *store);
    if (store != NULL) {
        choose_directory(store, directory);
    }
    return store;
}

void cj_store_close(cj_store *store) {
    free(store);
}

const char *cj_store_describe(const cj_store *store) {
    return store->description;
}

/* -------------------------------------------------------------------------------------------------------- paths --- */

typedef struct entry_path {
    char folder[PATH_MAX];
    char file[PATH_MAX];
} entry_path;

static void make_path(const cj_store *store, const cj_key *key, entry_path *out) {
    snprintf(out->folder, sizeof out->folder, "%s/%.2s", store->root, key->hex);
    snprintf(out->file, sizeof out->file, "%s/%.2s/%s.entry", store->root, key->hex, key->hex + 2);
}

/* --------------------------------------------------------------------------------------------------------- read --- */

/* Fills `bytes` from the file; 0 or errno. `size` becomes smaller where the file did since its size was asked for. */
static int read_bytes(int file, unsigned char *bytes, size_t *size) {
    size_t done = 0;
    ssize_t count = 1;
    while (done < *size && count != 0) {
        count = read(file, bytes + done, *size - done);
        if (count > 0) {
            done += (size_t)count;
        } else if (count < 0 && errno != EINTR) {
            return errno;
        }
    }
    *size = done;
    return 0;
}

static int read_opened(int file, void **bytes, size_t *size) {
    struct stat info;
    if (fstat(file, &info) != 0) {
        return errno;
    }
    if (!S_ISREG(info.st_mode)) {
        return EINVAL;
    }
    if (info.st_size > ENTRY_SIZE_MAX) {
        return EFBIG;
    }
    *size = (size_t)info.st_size;
    *bytes = malloc(*size + 1); /* an empty file is no failed allocation */
    const int error = *bytes == NULL ? ENOMEM : read_bytes(file, *bytes, size);
    if (error != 0) {
        free(*bytes);
        *bytes = NULL;
    }
    return error;
}

/* The whole file in memory; 0 or errno. Read, not mapped: a file that is cut on a network file system would kill the
 * process at an access, a short read is merely damage. Links are followed: some systems install files as links, and who
 * can plant a link in this directory could as well plant an entry. O_NONBLOCK keeps a FIFO from holding us up. */
static int read_file(const char *path, void **bytes, size_t *size) {
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        return errno;
    }
    const int error = read_opened(file, bytes, size);
    close(file);
    return error;
}

static cj_read_result bad(cj_read *out, const char *reason) {
    free(out->bytes);
    out->bytes = NULL;
    snprintf(out->reason, sizeof out->reason, "%s", reason);
    return CJ_READ_BAD;
}

cj_read_result cj_store_read(cj_store *store, const cj_key *key, const char *target, cj_read *out) {
    memset(out, 0, sizeof *out);
    bool exists;
    if (store->root[0] == '\0' || (store->among_others && distrust(store->root, &exists) != NULL)) {
        return CJ_READ_ABSENT;
    }
    entry_path path;
    make_path(store, key, &path);
    size_t size = 0;
    int error = read_file(path.file, &out->bytes, &size);
    if (error == ESTALE) { /* another machine replaced the file while we read; its new one is whole */
        error = read_file(path.file, &out->bytes, &size);
    }
    if (error == ENOENT || error == ENOTDIR || error == EACCES || error == ENAMETOOLONG) {
        return CJ_READ_ABSENT; /* not there for us; if the directory is at fault, the write after the build says so */
    }
    if (error == EFBIG) {
        return bad(out, "larger than 256 MiB");
    }
    if (error == EINVAL) {
        return bad(out, "not a regular file");
    }
    if (error != 0) {
        return bad(out, strerror(error));
    }
    const char *reason = cj_entry_decode(out->bytes, size, &out->entry);
    if (reason != NULL) {
        return bad(out, reason);
    }
    if (memcmp(out->entry.key.bytes, key->bytes, CJ_KEY_BYTES) != 0) {
        return bad(out, "another entry's key");
    }
    return strcmp(out->entry.target, target) == 0 ? CJ_READ_HIT : bad(out, "other target");
}

/* -------------------------------------------------------------------------------------------------------- write --- */

/* Creates the folder and what is missing above it, from the front; 0 or errno. A step may fail where the directory is
 * there all the same (read-only or automounted parents), so only the last one counts; the first failure explains it. */
static int make_folders(const cj_store *store, const char *folder) {
    char path[PATH_MAX];
    int first_error = 0;
    const size_t length = strlen(folder);
    for (size_t i = store->given + 1; i <= length; i++) {
        if (folder[i] != '/' && folder[i] != '\0') {
            continue;
        }
        memcpy(path, folder, i);
        path[i] = '\0';
        const bool made = mkdir(path, store->directory_mode) == 0 || errno == EEXIST;
        if (!made && first_error == 0) {
            first_error = errno;
        }
        if (i == length) {
            return made ? 0 : first_error;
        }
    }
    return 0;
}

/* FOLDER/HOST-PID-RANDOM.tmp: no two writers share a name, on whatever machine they are and whatever process numbers
 * their containers show. Host and pid are for people. */
static int temporary_path(const char *folder, char path[PATH_MAX]) {
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    for (char *c = host; *c != '\0'; c++) {
        *c = *c == '/' ? '_' : *c;
    }
    unsigned long long random;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
        return errno;
    }
    const int length = snprintf(path, PATH_MAX, "%s/%s-%ld-%016llx.tmp", folder, host, (long)getpid(), random);
    return length < PATH_MAX ? 0 : ENAMETOOLONG;
}

static int write_bytes(int file, const unsigned char *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        const ssize_t count = write(file, bytes + done, size - done);
        if (count > 0) {
            done += (size_t)count;
        } else if (count == 0) {
            return EIO;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

/* One attempt, private until the rename. 0 or errno; `step` names what failed. */
static int publish(const cj_store *store, const entry_path *path, const void *bytes, size_t size, const char **step) {
    char temporary[PATH_MAX];
    *step = "create a temporary in";
    int error = temporary_path(path->folder, temporary);
    if (error != 0) {
        return error;
    }
    /* O_EXCL and O_NOFOLLOW: a file or link planted under the name is refused, never written through. */
    const int file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, store->file_mode);
    if (file < 0) {
        return errno;
    }
    *step = "write a temporary in";
    error = write_bytes(file, bytes, size);
    if (close(file) != 0 && error == 0) { /* network file systems report a full disk here */
        error = errno;
    }
    if (error == 0) {
        *step = "rename a temporary in";
        error = rename(temporary, path->file) == 0 ? 0 : errno;
    }
    if (error != 0) {
        unlink(temporary);
    }
    return error;
}

static bool refuse(char reason[REASON_SIZE], const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(char reason[REASON_SIZE], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, REASON_SIZE, format, arguments);
    va_end(arguments);
    return false;
}

/* In a place where others can write, the root must be ours before anything is created below it. */
static bool claim_root(const cj_store *store, char reason[REASON_SIZE]) {
    if (!store->among_others) {
        return true;
    }
    bool exists;
    const char *distrusted = distrust(store->root, &exists);
    if (distrusted == NULL && !exists) {
        if (mkdir(store->root, PRIVATE_DIRECTORY_MODE) != 0 && errno != EEXIST) {
            return refuse(reason, "cannot create %.80s: %s", store->root, strerror(errno));
        }
        distrusted = distrust(store->root, &exists); /* somebody else may have been faster */
    }
    return distrusted == NULL || refuse(reason, "cannot use %.80s: %s", store->root, distrusted);
}

/* Publishes, and creates the folders when they are missing: before the first store, or deleted while we run. */
static bool publish_in_folder(const cj_store *store, const entry_path *path, const void *bytes, size_t size,
                              char reason[REASON_SIZE]) {
    const char *step = "";
    int error = ENOENT;
    for (int attempt = 0; attempt < WRITE_ATTEMPTS && error == ENOENT; attempt++) {
        if (!claim_root(store, reason)) {
            return false;
        }
        error = publish(store, path, bytes, size, &step);
        if (error == ENOENT && attempt + 1 < WRITE_ATTEMPTS) {
            const int folders = make_folders(store, path->folder);
            if (folders != 0 && folders != ENOENT) {
                step = "create";
                error = folders;
            }
        }
    }
    return error == 0 || refuse(reason, "cannot %s %.80s: %s", step, path->folder, strerror(error));
}

bool cj_store_write(cj_store *store, const cj_entry *entry, char reason[REASON_SIZE]) {
    if (store->root[0] == '\0') {
        return refuse(reason, "%s", store->description);
    }
    size_t size;
    void *bytes = cj_entry_encode(entry, &size);
    if (bytes == NULL) {
        return refuse(reason, "memory is used up");
    }
    if (size > ENTRY_SIZE_MAX) {
        free(bytes);
        return refuse(reason, "an entry of %zu bytes, more than 256 MiB", size);
    }
    entry_path path;
    make_path(store, &entry->key, &path);
    const bool done = publish_in_folder(store, &path, bytes, size, reason);
    free(bytes);
    return done;
}
