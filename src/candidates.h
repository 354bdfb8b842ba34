/* candidates.h - what a plan's search looked at, for people: the best configurations with their predicted times, and
 * how many others there were and why they were dropped. */
#ifndef CJ_CANDIDATES_H
#define CJ_CANDIDATES_H

#include "text.h"

enum {
    CJ_CONFIG_MAX = 160,        /* bytes of a configuration as one line, with its NUL */
    CJ_CANDIDATES_BEST = 12,    /* kept; the others are counted */
    CJ_CANDIDATES_REASONS = 16, /* kept; drops for any further reason are counted together */
};

typedef struct cj_candidates {
    struct {
        double ms;
        char config[CJ_CONFIG_MAX];
    } best[CJ_CANDIDATES_BEST]; /* fastest first; of equals, the one that was added first */
    size_t kept;
    size_t added;
    double slowest_ms;
    struct {
        const char *reason;
        size_t count;
        char first[CJ_CONFIG_MAX];
    } dropped[CJ_CANDIDATES_REASONS];
    size_t reasons;
    size_t dropped_otherwise;
} cj_candidates; /* all zero: none yet */

/* One that could be used; another time the same counts for nothing. */
void cj_candidates_add(cj_candidates *list, double ms, const char *config);

/* One that could not; `reason` has the limit in it, and lives as long as the list. */
void cj_candidates_drop(cj_candidates *list, const char *reason, const char *config);

/* Either: `dropped` is why it could not be used, or NULL. */
void cj_candidates_note(cj_candidates *list, const char *dropped, double ms, const char *config);

/* One line a candidate, the one whose configuration is `chosen` marked with *; then a line for the slower ones and one
 * for each reason. */
void cj_candidates_print(const cj_candidates *list, const char *chosen, cj_text *out);

#endif
