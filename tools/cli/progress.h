/* progress.h - how far a long command is: a bar that is drawn again and again on a terminal, a line now and then in a
 * log. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct progress {
    FILE *out;
    bool bar;     /* else lines */
    size_t total; /* steps */
    double start; /* seconds, as all times, of a clock that only goes forward */
    double shown; /* when last */
} progress;

void progress_start(progress *of, FILE *out, bool bar, size_t total, double now);

/* Shows how far it is, unless it did so a moment ago: 0.1 seconds for a bar, 10 for lines. */
void progress_show(progress *of, size_t done, size_t missing, double now);

/* Takes the bar away. */
void progress_end(progress *of);

#endif
