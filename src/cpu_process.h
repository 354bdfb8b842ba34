/* cpu_process.h - one run of a program, without a shell, with all its files in one private folder. */
#ifndef CJ_CPU_PROCESS_H
#define CJ_CPU_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

enum { CJ_PATH_BYTES = 1024, CJ_REASON_BYTES = 96 };

/* A folder of this run alone, mode 0700, in TMPDIR or /tmp, and the names of the files in it. */
typedef struct cj_workspace {
    char folder[CJ_PATH_BYTES];
    char source[CJ_PATH_BYTES + 16];
    char output[CJ_PATH_BYTES + 16]; /* standard output */
    char log[CJ_PATH_BYTES + 16];    /* standard error */
    char binary[CJ_PATH_BYTES + 16];
} cj_workspace;

/* false with errno; `folder` then holds what was tried. */
bool cj_workspace_make(cj_workspace *workspace);
/* With everything that the program left in it. */
void cj_workspace_remove(const cj_workspace *workspace);

/* false with errno. */
bool cj_write_file(const char *path, const char *text);
/* At most `limit` bytes and a NUL behind them, malloc'ed; NULL if there is no such file or no memory. */
char *cj_read_file(const char *path, size_t limit, size_t *size);

typedef enum cj_outcome {
    CJ_ENDED_WELL,
    CJ_ENDED_BADLY,
    CJ_ENDED_UNSEEN, /* SIGCHLD is ignored, or someone else took the status: only the output can tell */
    CJ_NOT_STARTED
} cj_outcome;

/* Runs argv[0], found in PATH, with `input` as standard input, and ends it, with all that it started, after so many
 * seconds. Its TMPDIR is the folder. `reason` says how it ended, or why it did not start. */
cj_outcome cj_process_run(char **argv, const char *input, const cj_workspace *workspace, int seconds,
                          char reason[CJ_REASON_BYTES]);

#endif
