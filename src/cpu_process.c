/* cpu_process.c - private folder, posix_spawn, a wait with an end. */
#include "cpu_process.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------------------------------------------------------------
 * The private folder
 * ------------------------------------------------------------------------------------------------------------------ */

bool cj_workspace_make(cj_workspace *w) {
    const char *parent = getenv("TMPDIR");
    if (!parent || !*parent) {
        parent = "/tmp";
    }
    const int length = snprintf(w->folder, sizeof(w->folder), "%s/convjit-XXXXXX", parent);
    if (length >= (int)sizeof(w->folder)) {
        errno = ENAMETOOLONG;
        return false;
    }
    if (!mkdtemp(w->folder)) {
        return false;
    }
    snprintf(w->source, sizeof(w->source), "%s/source", w->folder);
    snprintf(w->output, sizeof(w->output), "%s/output", w->folder);
    snprintf(w->log, sizeof(w->log), "%s/log", w->folder);
    snprintf(w->binary, sizeof(w->binary), "%s/binary", w->folder);
    return true;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *position) {
    (void)status, (void)type, (void)position;
    (void)remove(path); /* what cannot be removed is left; there is nobody to tell */
    return 0;
}

void cj_workspace_remove(const cj_workspace *w) {
    nftw(w->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

bool cj_write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "wxe");
    if (!file) {
        return false;
    }
    const bool written = fputs(text, file) >= 0;
    return fclose(file) == 0 && written;
}

char *cj_read_file(const char *path, size_t limit, size_t *size) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0) {
        if (file >= 0) {
            close(file);
        }
        return NULL;
    }
    const size_t wanted = (size_t)status.st_size < limit ? (size_t)status.st_size : limit;
    char *data = malloc(wanted + 1);
    *size = 0;
    while (data && *size < wanted) {
        const ssize_t count = read(file, data + *size, wanted - *size);
        if (count == 0 || (count < 0 && errno != EINTR)) {
            break;
        }
        *size += count > 0 ? (size_t)count : 0;
    }
    close(file);
    if (data) {
        data[*size] = '\0';
    }
    return data;
}

/* ---------------------------------------------------------------------------------------------------------------------
 * The child process
 * ------------------------------------------------------------------------------------------------------------------ */

/* This process's environment with another TMPDIR; NULL when memory is used up. To be freed, the strings not. */
static char **environment_with(char *tmpdir) {
    size_t count = 0;
    while (environ && environ[count]) {
        ++count;
    }
    char **result = malloc((count + 2) * sizeof(*result));
    size_t used = 0;
    for (size_t i = 0; result && i < count; ++i) {
        if (strncmp(environ[i], "TMPDIR=", 7) != 0) {
            result[used++] = environ[i];
        }
    }
    if (result) {
        result[used++] = tmpdir;
        result[used] = NULL;
    }
    return result;
}

/* Standard input, output and error. 0 or an errno, as all below. */
static int set_files(posix_spawn_file_actions_t *files, const char *input, const cj_workspace *w) {
    int error = posix_spawn_file_actions_addopen(files, 0, input, O_RDONLY, 0);
    if (error == 0) {
        error = posix_spawn_file_actions_addopen(files, 1, w->output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    }
    if (error == 0) {
        error = posix_spawn_file_actions_addopen(files, 2, w->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    }
    return error;
}

/* The child leads a process group, so that what it starts can be ended with it. A compiler waits for children of its
 * own, so it must not inherit an ignored SIGCHLD or a blocked signal. */
static int set_attributes(posix_spawnattr_t *attributes) {
    sigset_t defaults, blocked;
    sigemptyset(&blocked);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGCHLD);
    sigaddset(&defaults, SIGPIPE);
    posix_spawnattr_setsigdefault(attributes, &defaults);
    posix_spawnattr_setsigmask(attributes, &blocked);
    posix_spawnattr_setpgroup(attributes, 0);
    return posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
}

static int spawn(char **argv, const char *input, const cj_workspace *w, char **environment, pid_t *child) {
    posix_spawn_file_actions_t files;
    int error = posix_spawn_file_actions_init(&files);
    if (error != 0) {
        return error;
    }
    posix_spawnattr_t attributes;
    error = posix_spawnattr_init(&attributes);
    if (error == 0) {
        error = set_files(&files, input, w);
        if (error == 0) {
            error = set_attributes(&attributes);
        }
        if (error == 0) {
            error = posix_spawnp(child, argv[0], &files, &attributes, argv, environment);
        }
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&files);
    return error;
}

/* Waits, at most so long. `reason` says how it ended unless well. */
static cj_outcome wait_for(pid_t child, int seconds, char reason[CJ_REASON_BYTES]) {
    const struct timespec pause = {.tv_nsec = 2000000};
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const time_t end = now.tv_sec + seconds;
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(child, &status, WNOHANG)) == 0) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec >= end) {
            kill(-child, SIGKILL);
            while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
            }
            snprintf(reason, CJ_REASON_BYTES, "did not end within %d seconds", seconds);
            return CJ_ENDED_BADLY;
        }
        nanosleep(&pause, NULL);
    }
    if (ended < 0) {
        return CJ_ENDED_UNSEEN;
    }
    if (WIFSIGNALED(status)) {
        snprintf(reason, CJ_REASON_BYTES, "was ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
        return CJ_ENDED_BADLY;
    }
    snprintf(reason, CJ_REASON_BYTES, "ended with exit status %d", WEXITSTATUS(status));
    return WEXITSTATUS(status) == 0 ? CJ_ENDED_WELL : CJ_ENDED_BADLY;
}

cj_outcome cj_process_run(char **argv, const char *input, const cj_workspace *w, int seconds,
                          char reason[CJ_REASON_BYTES]) {
    char tmpdir[CJ_PATH_BYTES + 8];
    snprintf(tmpdir, sizeof(tmpdir), "TMPDIR=%s", w->folder);
    char **environment = environment_with(tmpdir);
    pid_t child = 0;
    const int error = environment ? spawn(argv, input, w, environment, &child) : ENOMEM;
    free(environment);
    if (error != 0) {
        snprintf(reason, CJ_REASON_BYTES, "%s", strerror(error));
        return CJ_NOT_STARTED;
    }
    return wait_for(child, seconds, reason);
}
