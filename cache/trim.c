/* trim.c - removes what was not used for the longest.
 *
 * A file's age is that of its modification time, which a hit renews once an hour at most (directory.c): access times
 * are switched off on many machines. Whoever writes looks after the limit; readers never list. One process trims at a
 * time, which saves work but is not needed: two that remove the same file disturb nobody, nor does it matter on network
 * file systems whose locks hold on one machine only. The lock's file is never removed, since a lock on a removed file
 * excludes nobody.
 *
 * Times are compared with the file system's own clock, that of the lock's file when it is touched, so that a machine
 * whose clock is wrong does not take its neighbours' temporaries for old ones. If one goes all the same, its writer
 * writes it once more. */
#include "trim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    STALE_SECONDS = 3600, /* a temporary that nobody writes any more: seconds of writing, and then some */
    PERIOD_SECONDS = 600,
    SPARE_PART = 10 /* of the limit is made free, so that the next write does not trim again */
};

static const char lock_name[] = "trim.lock";

/* Is it time? A time in the future counts as long ago. */
static bool is_due(int lock) {
    struct stat info;
    const time_t now = time(NULL);
    return fstat(lock, &info) == 0 &&
           (info.st_size == 0 || info.st_mtime < now - PERIOD_SECONDS || info.st_mtime > now + PERIOD_SECONDS);
}

/* The lock's file, locked; -1 where this is not the time, or somebody else is at it. */
static int take_lock(const cj_directory *directory, cj_trim_occasion occasion) {
    const int lock = cj_directory_open_lock(directory, lock_name, false);
    if (lock < 0) {
        return -1;
    }
    const bool held = flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; /* else there are no locks here */
    if (occasion != CJ_TRIM_ASKED && (held || (occasion == CJ_TRIM_WRITTEN && !is_due(lock)))) {
        close(lock);
        return -1;
    }
    return lock;
}

/* Notes that the directory is trimmed now; the time by the file system's clock. A file that was only just made has no
 * byte yet, and says nothing of a trim. */
static int64_t stamp(int lock) {
    struct stat info;
    if (lock >= 0 && pwrite(lock, "\n", 1, 0) == 1 && futimens(lock, NULL) == 0 && fstat(lock, &info) == 0) {
        return info.st_mtime;
    }
    return time(NULL);
}

/* What one run does. */
typedef struct trimming {
    const cj_directory *directory;
    bool dry_run;
    cj_trim_fn removed;
    void *user;
} trimming;

/* True if the file is gone, or would be. One that somebody replaced since it was listed goes too: a rebuild. */
static bool remove_file(const trimming *run, const cj_file *file) {
    if (run->removed != NULL) {
        run->removed(run->user, file);
    }
    char path[PATH_MAX];
    cj_directory_path(run->directory, file->name, path);
    return run->dry_run || unlink(path) == 0 || errno == ENOENT;
}

static int compare_used(const void *a, const void *b) {
    const int64_t x = (*(const cj_file *const *)a)->used;
    const int64_t y = (*(const cj_file *const *)b)->used;
    return (x > y) - (x < y);
}

/* Removes the oldest of `files` until `bytes` is at most `goal`. */
static void remove_oldest(const trimming *run, const cj_file **files, size_t count, uint64_t goal,
                          convjit_cache_totals *totals) {
    qsort(files, count, sizeof *files, compare_used);
    for (size_t i = 0; i < count && totals->bytes - totals->removed_bytes > goal; i++) {
        if (remove_file(run, files[i])) {
            totals->removed++;
            totals->removed_bytes += files[i]->size;
        }
    }
}

static int trim_listed(const trimming *run, cj_listing *listing, uint64_t limit, int64_t now,
                       convjit_cache_totals *totals) {
    const cj_file **whole = malloc((listing->count + 1) * sizeof *whole);
    if (whole == NULL) {
        return ENOMEM;
    }
    for (size_t i = 0; i < listing->count; i++) {
        cj_file *file = &listing->files[i];
        if (!file->temporary) {
            file->used = file->used < now ? file->used : now; /* a clock was wrong: no reason to stay for ever */
            whole[totals->files++] = file;
            totals->bytes += file->size;
        } else if (file->used < now - STALE_SECONDS && remove_file(run, file)) {
            totals->temporaries++;
        }
    }
    if (limit > 0 && totals->bytes > limit) {
        remove_oldest(run, whole, totals->files, limit - limit / SPARE_PART, totals);
    }
    free(whole);
    return 0;
}

int cj_trim(const cj_directory *directory, uint64_t limit, cj_trim_occasion occasion, cj_trim_fn removed, void *user,
            convjit_cache_totals *totals) {
    const trimming run = {directory, occasion == CJ_TRIM_DRY_RUN, removed, user};
    *totals = (convjit_cache_totals){0};
    const int lock = run.dry_run ? -1 : take_lock(directory, occasion);
    if (lock < 0 && (occasion == CJ_TRIM_WRITTEN || occasion == CJ_TRIM_GROWN)) {
        return 0;
    }
    const int64_t now = stamp(lock);
    cj_listing listing;
    int error = cj_listing_make(directory, &listing);
    if (error == 0) {
        error = trim_listed(&run, &listing, limit, now, totals);
    }
    cj_listing_free(&listing);
    if (lock >= 0) {
        close(lock);
    }
    return error;
}
