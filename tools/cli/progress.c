#include "progress.h"

enum { BAR_WIDTH = 30 };

static const double bar_period = 0.1;   /* seconds */
static const double line_period = 10.0; /* a log of an hour has 360 lines */

void progress_start(progress *of, FILE *out, bool bar, size_t total, double now) {
    *of = (progress){.out = out, .bar = bar, .total = total, .start = now, .shown = now};
}

/* "1:02:03", "2:03" */
static void write_duration(double seconds, char text[32]) {
    const long all = (long)(seconds + 0.5);
    if (all >= 3600) {
        (void)snprintf(text, 32, "%ld:%02ld:%02ld", all / 3600, all / 60 % 60, all % 60);
    } else {
        (void)snprintf(text, 32, "%ld:%02ld", all / 60, all % 60);
    }
}

/* "12 of 40, 3.5/s, 0:08 left, 1 missing"; the rate is that since the start. */
static void write_state(const progress *of, size_t done, size_t missing, double now, char text[128]) {
    const double rate = now > of->start ? (double)done / (now - of->start) : 0.0;
    char left[32] = "?";
    if (rate > 0.0) {
        write_duration((double)(of->total - done) / rate, left);
    }
    (void)snprintf(text, 128, "%zu of %zu, %.1f/s, %s left, %zu missing", done, of->total, rate, left, missing);
}

void progress_show(progress *of, size_t done, size_t missing, double now) {
    char state[128];
    if (now - of->shown < (of->bar ? bar_period : line_period)) {
        return;
    }
    of->shown = now;
    write_state(of, done, missing, now, state);
    if (!of->bar) {
        (void)fprintf(of->out, "convjit: %s\n", state);
    } else {
        char bar[BAR_WIDTH + 1];
        const size_t full = of->total > 0 ? done * BAR_WIDTH / of->total : 0;
        for (size_t i = 0; i < BAR_WIDTH; i++) {
            bar[i] = i < full ? '#' : '.';
        }
        bar[BAR_WIDTH] = '\0';
        (void)fprintf(of->out, "\r[%s] %s\033[K", bar, state); /* ... and clear the rest of the line */
    }
    (void)fflush(of->out);
}

void progress_end(progress *of) {
    if (of->bar) {
        (void)fputs("\r\033[K", of->out);
        (void)fflush(of->out);
    }
}
