/* directory.h - one cache directory: the names in it, reading a file, publishing one. Knows bytes, not entries.
 *
 * A file lies in ROOT/ab/: the first byte of its key in hexadecimal, so that no folder grows past a 256th of the
 * cache.
 *
 *   ROOT/ab/cdef....entry            the binary of a key (entry.h)
 *   ROOT/ab/cdef....fields           with CONVJIT_CACHE_FIELDS: what a key hashes, as text (key.h)
 *   ROOT/build.lock                  empty; who compiles locks a byte of it (claim.c)
 *   ROOT/trim.lock                   held by who trims; its time is that of the last trim
 *   ROOT/ab/HOST-PID-RANDOM.tmp      being written
 *   ROOT/CACHEDIR.TAG                tells backup programs to pass by (https://bford.info/cachedir/)
 *
 * Nothing else in ROOT is ours: it is neither listed nor removed. */
#ifndef CJ_DIRECTORY_H
#define CJ_DIRECTORY_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "key.h"

enum {
    CJ_DIRECTORY_MAX = PATH_MAX - 512, /* of a root with its terminator; leaves room for the names in it */
    CJ_DIRECTORY_NAME_MAX = 192,       /* of a name below the root */
    CJ_REASON_SIZE = 160,
    CJ_FILE_SIZE_MAX = 256 << 20 /* bytes; a cubin has some hundred thousand, a sanitized shared object some million */
};

typedef struct cj_directory {
    char path[CJ_DIRECTORY_MAX]; /* absolute */
    size_t given;                /* length of the part of path that must exist, for it is not ours to create ($HOME) */
    bool among_others;           /* lies where every user can write: its owner and mode are checked at each use */
    mode_t directory_mode;
    mode_t file_mode;
} cj_directory;

/* "ab/cdef.......entry" */
void cj_directory_name(const cj_key *key, const char *suffix, char name[CJ_DIRECTORY_NAME_MAX]);
void cj_directory_path(const cj_directory *of, const char *name, char path[PATH_MAX]);

/* Is a directory in a shared place free for us (absent, or ours alone)? NULL, or why not. */
const char *cj_directory_distrust(const char *path, bool *exists);

/* 0 where files can be written to it, also if it must be made first; else errno. Creates nothing. */
int cj_directory_check_writable(const cj_directory *of);

/* The whole file in memory that was malloc'ed, and 0; else errno: ENOENT also for a directory that is distrusted,
 * EINVAL for what is no regular file, EFBIG above CJ_FILE_SIZE_MAX. keep_young: a file that was not used for an hour
 * gets the present time, so that its age tells when it was last used. Takes no lock, lists nothing. */
int cj_directory_read(const cj_directory *from, const char *name, bool keep_young, void **bytes, size_t *size);

/* Opens a file of the root to lock it, made where it is missing; -1 where that cannot be, or the directory is missing
 * and not to be made. */
int cj_directory_open_lock(const cj_directory *of, const char *name, bool make_directory);

/* Publishes a file: a private temporary, then one rename. Creates the directory where it is missing. False with the
 * reason. */
bool cj_directory_publish(const cj_directory *to, const char *name, const void *bytes, size_t size,
                          char reason[CJ_REASON_SIZE]);

#endif
