/* record.c - appends layer lines to a file.
 *
 * Each line is one write to a file opened with O_APPEND, so lines of several processes do not mix (network file systems
 * do not promise that). A line is written once a context; who reads the file removes what several wrote. */
#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* By default uthash exits when memory is used up; this way the node stays out of the table, its hh.tbl NULL. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "settings.h"

typedef struct recorded {
    UT_hash_handle hh;
    char line[]; /* is the key */
} recorded;

struct cj_record {
    int file; /* -1: nothing is recorded */
    bool failure_logged;
    pthread_mutex_t lock;
    recorded *lines; /* that were written */
};

cj_record *cj_record_open(const char *path, const cj_log *log) {
    cj_record *record = calloc(1, sizeof *record);
    if (record == NULL || pthread_mutex_init(&record->lock, NULL) != 0) {
        free(record);
        return NULL;
    }
    path = path != NULL ? path : cj_setting_get(CJ_SETTING_RECORD);
    record->file = path != NULL ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (path != NULL && record->file < 0) {
        cj_log_line(log, "record: layers are not recorded: cannot open %s: %s", path, strerror(errno));
    }
    return record;
}

void cj_record_close(cj_record *record) {
    if (record == NULL) {
        return;
    }
    recorded *line = record->lines;
    HASH_CLEAR(hh, record->lines); /* frees the table, leaves the list */
    while (line != NULL) {
        recorded *next = line->hh.next;
        free(line);
        line = next;
    }
    if (record->file >= 0) {
        close(record->file);
    }
    pthread_mutex_destroy(&record->lock);
    free(record);
}

/* True the first time for a line. Where memory is used up it stays true: a line too many does no harm. */
static bool is_new(cj_record *record, const char *line) {
    const size_t length = strlen(line);
    recorded *found;
    HASH_FIND_STR(record->lines, line, found);
    if (found != NULL) {
        return false;
    }
    found = malloc(sizeof *found + length + 1);
    if (found != NULL) {
        memcpy(found->line, line, length + 1);
        HASH_ADD_STR(record->lines, line, found);
        if (found->hh.tbl == NULL) {
            free(found);
        }
    }
    return true;
}

/* Must not be torn, so it is one write; a part of a line (the disk is full) gets an end of its own. */
static bool append(int file, const char *line) {
    char text[CONVJIT_LAYER_LINE_MAX + 1];
    const size_t length = (size_t)snprintf(text, sizeof text, "%s\n", line);
    const ssize_t written = write(file, text, length);
    if (written > 0 && (size_t)written < length) {
        errno = write(file, "\n", 1) == 1 ? ENOSPC : errno;
    }
    return written == (ssize_t)length;
}

void cj_record_add(cj_record *record, const char *line, const cj_log *log) {
    if (record->file < 0) {
        return;
    }
    pthread_mutex_lock(&record->lock);
    const bool failed = is_new(record, line) && !append(record->file, line);
    const int error = errno;
    const bool first = failed && !record->failure_logged;
    record->failure_logged |= failed;
    pthread_mutex_unlock(&record->lock);
    if (first) {
        cj_log_line(log, "record: %s was not recorded: %s; said once", line, strerror(error));
    }
}
