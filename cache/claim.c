/* claim.c - one build per key among processes, so that eight ranks that start together do not compile everything eight
 * times.
 *
 * A claim is a lock on one byte of the file ROOT/build.lock, at the offset that the key's first 62 bits give; the file
 * stays empty, and is never removed. The system gives the lock back when its process ends, however it ends, so a claim
 * is never stale. Two keys that share an offset only wait for each other.
 *
 * Only who misses claims; hits never come here. Waiting is bounded, and where there are no locks (some network file
 * systems, a directory that is only read) everybody builds: publishing is atomic all the same. These are locks of the
 * open file (F_OFD_SETLK), not of the process, since the latter vanish when any other descriptor of the file is
 * closed. */
#include "claim.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_PAUSE_MS = 2, LONGEST_PAUSE_MS = 50 };

static const char lock_name[] = "build.lock";

/* A lock of this kind on the key's byte; 0 or errno. */
static int lock_byte(int file, const cj_key *key, short kind) {
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++) {
        bits = bits << 8 | key->bytes[i];
    }
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = (off_t)(bits >> 2), .l_len = 1};
    return fcntl(file, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

static void pause_ms(int milliseconds) {
    const struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

cj_claim_result cj_claim_take(const cj_directory *directory, const cj_key *key, int wait_ms, cj_claim *out) {
    int pause = FIRST_PAUSE_MS;
    out->file = cj_directory_open_lock(directory, lock_name, true);
    int error = out->file >= 0 ? lock_byte(out->file, key, F_WRLCK) : ENOENT;
    while (error == EAGAIN && wait_ms > 0) {
        pause_ms(pause);
        wait_ms -= pause;
        pause = 2 * pause < LONGEST_PAUSE_MS ? 2 * pause : LONGEST_PAUSE_MS;
        error = lock_byte(out->file, key, F_WRLCK);
    }
    if (error == 0) {
        return CJ_CLAIM_OURS;
    }
    if (out->file >= 0) {
        close(out->file);
        out->file = -1;
    }
    return error == EAGAIN ? CJ_CLAIM_BUSY : CJ_CLAIM_NONE;
}

/* Unlocked before it is closed: a child that was forked meanwhile has the file open too. */
void cj_claim_release(cj_claim *claim) {
    if (claim->file >= 0) {
        struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET}; /* of all bytes */
        (void)fcntl(claim->file, F_OFD_SETLK, &lock);
        close(claim->file);
        claim->file = -1;
    }
}
