/* directory.c - one cache directory: how a file is read and how one is published.
 *
 * Files are written once, under a private temporary name in the folder they end in, and renamed; they never change
 * afterwards, so whoever opens one sees a whole file, and nobody needs a lock. A reader of entries verifies their
 * checksum, so a machine that lost power before the data reached the disk costs one rebuild; that is cheaper than an
 * fsync for every entry.
 *
 * Whoever can write to the directory decides what code runs. A directory that was named belongs to the one who named it
 * and follows the umask, so that an image built by root serves another user, or a group shares it. The per-user ones
 * are created for the user alone. */
#include "directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    WRITE_ATTEMPTS = 3, /* the first finds no folder; the second may lose it to a deleter */
    PRIVATE_DIRECTORY_MODE = 0700,
    YOUNG_SECONDS = 3600
};

static const char tag_name[] = "CACHEDIR.TAG";
static const char tag_text[] = "Signature: 8a477f597d28d172789f06886806bc55\n"
                               "# This directory holds kernels that convjit compiled; it may be deleted at any time.\n"
                               "# About cache directory tags see https://bford.info/cachedir/\n";

void cj_directory_name(const cj_key *key, const char *suffix, char name[CJ_DIRECTORY_NAME_MAX]) {
    snprintf(name, CJ_DIRECTORY_NAME_MAX, "%.2s/%s%s", key->hex, key->hex + 2, suffix);
}

void cj_directory_path(const cj_directory *of, const char *name, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%.*s/%.*s", CJ_DIRECTORY_MAX - 1, of->path, CJ_DIRECTORY_NAME_MAX - 1, name);
}

/* A link there is somebody's trap: lstat sees the link itself, which is no directory. */
const char *cj_directory_distrust(const char *path, bool *exists) {
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

/* Asks about the nearest folder that is there. */
int cj_directory_check_writable(const cj_directory *of) {
    char path[CJ_DIRECTORY_MAX];
    memcpy(path, of->path, sizeof path);
    while (faccessat(AT_FDCWD, path[0] != '\0' ? path : "/", W_OK | X_OK, AT_EACCESS) != 0) {
        char *end = strrchr(path, '/');
        if (errno != ENOENT || end == NULL || strlen(path) <= of->given) {
            return errno;
        }
        *end = '\0';
    }
    return 0;
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

/* A time in the future is a clock that was wrong, so it is mended too. Who may not change it reads all the same. */
static void make_young(int file, const struct stat *info) {
    const time_t now = time(NULL);
    if (info->st_mtime < now - YOUNG_SECONDS || info->st_mtime > now + YOUNG_SECONDS) {
        (void)futimens(file, NULL);
    }
}

static int read_opened(int file, bool keep_young, void **bytes, size_t *size) {
    struct stat info;
    if (fstat(file, &info) != 0) {
        return errno;
    }
    if (!S_ISREG(info.st_mode)) {
        return EINVAL;
    }
    if (info.st_size > CJ_FILE_SIZE_MAX) {
        return EFBIG;
    }
    *size = (size_t)info.st_size;
    *bytes = malloc(*size + 1); /* an empty file is no failed allocation */
    const int error = *bytes == NULL ? ENOMEM : read_bytes(file, *bytes, size);
    if (error != 0) {
        free(*bytes);
        *bytes = NULL;
    } else if (keep_young) {
        make_young(file, &info);
    }
    return error;
}

/* Read, not mapped: a file that is cut on a network file system would kill the process at an access, a short read is
 * merely damage. Links are followed: some systems install files as links, and who can plant a link in this directory
 * could as well plant an entry. O_NONBLOCK keeps a FIFO from holding us up. */
static int read_file(const char *path, bool keep_young, void **bytes, size_t *size) {
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        return errno;
    }
    const int error = read_opened(file, keep_young, bytes, size);
    close(file);
    return error;
}

int cj_directory_read(const cj_directory *from, const char *name, bool keep_young, void **bytes, size_t *size) {
    bool exists;
    if (from->among_others && cj_directory_distrust(from->path, &exists) != NULL) {
        return ENOENT;
    }
    char path[PATH_MAX];
    cj_directory_path(from, name, path);
    const int error = read_file(path, keep_young, bytes, size);
    if (error == ESTALE) { /* another machine replaced the file while we read; its new one is whole */
        return read_file(path, keep_young, bytes, size);
    }
    return error;
}

/* ------------------------------------------------------------------------------------------------------ folders --- */

/* Is there nothing in the root but the two-letter folders and the locks of a cache? A directory that was there before
 * us, with other things in it, is not to be left out of backups. */
static bool holds_only_ours(const char *root) {
    DIR *listing = opendir(root);
    bool only_ours = listing != NULL;
    for (const struct dirent *at; only_ours && (at = readdir(listing)) != NULL;) {
        only_ours = strcmp(at->d_name, ".") == 0 || strcmp(at->d_name, "..") == 0 ||
                    strcmp(at->d_name, "build.lock") == 0 || strcmp(at->d_name, "trim.lock") == 0 ||
                    (strlen(at->d_name) == 2 && strspn(at->d_name, "0123456789abcdef") == 2);
    }
    if (listing != NULL) {
        closedir(listing);
    }
    return only_ours;
}

/* Tags the root as a cache, once; a tag that cannot be written is missed by nobody but backups. */
static void write_tag(const cj_directory *of) {
    char path[PATH_MAX];
    cj_directory_path(of, tag_name, path);
    if (access(path, F_OK) == 0 || !holds_only_ours(of->path)) {
        return;
    }
    const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, of->file_mode);
    if (file >= 0) {
        const ssize_t written = write(file, tag_text, sizeof tag_text - 1);
        (void)written;
        close(file);
    }
}

/* Creates the folder and what is missing above it, from the front; 0 or errno. A step may fail where the directory is
 * there all the same (read-only or automounted parents), so only the last one counts; the first failure explains it. */
static int make_folders(const cj_directory *below, const char *folder) {
    char path[PATH_MAX];
    int first_error = 0;
    const size_t length = strlen(folder);
    for (size_t i = below->given + 1; i <= length; i++) {
        if (folder[i] != '/' && folder[i] != '\0') {
            continue;
        }
        memcpy(path, folder, i);
        path[i] = '\0';
        const bool made = mkdir(path, below->directory_mode) == 0 || errno == EEXIST;
        if (!made && first_error == 0) {
            first_error = errno;
        }
        if (i == length && !made) {
            return first_error;
        }
    }
    write_tag(below);
    return 0;
}

static bool refuse(char reason[CJ_REASON_SIZE], const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(char reason[CJ_REASON_SIZE], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, CJ_REASON_SIZE, format, arguments);
    va_end(arguments);
    return false;
}

/* In a place where others can write, the root must be ours before anything is created below it. */
static bool claim_root(const cj_directory *root, char reason[CJ_REASON_SIZE]) {
    if (!root->among_others) {
        return true;
    }
    bool exists;
    const char *distrusted = cj_directory_distrust(root->path, &exists);
    if (distrusted == NULL && !exists) {
        if (mkdir(root->path, PRIVATE_DIRECTORY_MODE) != 0 && errno != EEXIST) {
            return refuse(reason, "cannot create %.80s: %s", root->path, strerror(errno));
        }
        distrusted = cj_directory_distrust(root->path, &exists); /* somebody else may have been faster */
    }
    return distrusted == NULL || refuse(reason, "cannot use %.80s: %s", root->path, distrusted);
}

int cj_directory_open_lock(const cj_directory *of, const char *name, bool make_directory) {
    char path[PATH_MAX];
    char ignored[CJ_REASON_SIZE];
    bool exists;
    const bool ours = make_directory     ? claim_root(of, ignored)
                      : of->among_others ? cj_directory_distrust(of->path, &exists) == NULL
                                         : true;
    if (!ours) {
        return -1;
    }
    cj_directory_path(of, name, path);
    const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
    int file = open(path, flags, of->file_mode);
    if (file < 0 && errno == ENOENT && make_directory && make_folders(of, of->path) == 0) {
        file = open(path, flags, of->file_mode);
    }
    return file;
}

/* ------------------------------------------------------------------------------------------------------ publish --- */

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

/* Where a file goes, and what. */
typedef struct publication {
    char folder[PATH_MAX];
    char path[PATH_MAX];
    const void *bytes;
    size_t size;
} publication;

/* One attempt, private until the rename. 0 or errno; `step` names what failed. */
static int publish(const cj_directory *to, const publication *what, const char **step) {
    char temporary[PATH_MAX];
    *step = "create a temporary in";
    int error = temporary_path(what->folder, temporary);
    if (error != 0) {
        return error;
    }
    /* O_EXCL and O_NOFOLLOW: a file or link planted under the name is refused, never written through. */
    const int file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, to->file_mode);
    if (file < 0) {
        return errno;
    }
    *step = "write a temporary in";
    error = write_bytes(file, what->bytes, what->size);
    if (close(file) != 0 && error == 0) { /* network file systems report a full disk here */
        error = errno;
    }
    if (error == 0) {
        *step = "rename a temporary in";
        error = rename(temporary, what->path) == 0 ? 0 : errno;
    }
    if (error != 0) {
        unlink(temporary);
    }
    return error;
}

/* The folders are created when they are missing: before the first file, or deleted while we run. */
bool cj_directory_publish(const cj_directory *to, const char *name, const void *bytes, size_t size,
                          char reason[CJ_REASON_SIZE]) {
    publication what = {.bytes = bytes, .size = size};
    cj_directory_path(to, name, what.path);
    snprintf(what.folder, sizeof what.folder, "%.*s", (int)(strrchr(what.path, '/') - what.path), what.path);
    const char *step = "";
    int error = ENOENT;
    for (int attempt = 0; attempt < WRITE_ATTEMPTS && error == ENOENT; attempt++) {
        if (!claim_root(to, reason)) {
            return false;
        }
        error = publish(to, &what, &step);
        if (error == ENOENT && attempt + 1 < WRITE_ATTEMPTS) {
            const int folders = make_folders(to, what.folder);
            if (folders != 0 && folders != ENOENT) {
                step = "create";
                error = folders;
            }
        }
    }
    return error == 0 || refuse(reason, "cannot %s %.80s: %s", step, what.folder, strerror(error));
}
