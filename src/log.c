#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "settings.h"

/* One write a line: lines of several threads and processes do not mix. A line that cannot be written is lost. */
static void write_to_stderr(char *line, size_t length) {
    line[length] = '\n';
    const ssize_t written = write(STDERR_FILENO, line, length + 1);
    (void)written;
    line[length] = '\0';
}

/* Hands over the lines of `text` (a compiler log has many), each without its newline. */
static void hand_over(const cj_log *log, char *text) {
    for (char *line = text; line != NULL;) {
        char *end = strchr(line, '\n');
        const size_t length = end != NULL ? (size_t)(end - line) : strlen(line);
        line[length] = '\0';
        if (log->fn != NULL) {
            log->fn(log->user, line);
        } else {
            write_to_stderr(line, length);
        }
        line = end != NULL && end[1] != '\0' ? end + 1 : NULL;
    }
}

void cj_log_line(const cj_log *log, const char *format, ...) {
    if (log->fn == NULL && cj_setting_get(CJ_SETTING_LOG) == NULL) {
        return;
    }
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    const int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) {
        char lost[] = "a log line was lost: memory is used up";
        hand_over(log, lost);
        return;
    }
    hand_over(log, text);
    free(text);
}
