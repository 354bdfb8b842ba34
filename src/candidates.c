#include "candidates.h"

#include <stdio.h>
#include <string.h>

void cj_candidates_add(cj_candidates *list, double ms, const char *config) {
    for (size_t i = 0; i < list->kept; ++i) { /* a search may come by a configuration again */
        if (strcmp(list->best[i].config, config) == 0) {
            return;
        }
    }
    list->slowest_ms = list->added == 0 || ms > list->slowest_ms ? ms : list->slowest_ms;
    ++list->added;
    size_t at = list->kept;
    while (at > 0 && ms < list->best[at - 1].ms) {
        --at;
    }
    if (at == CJ_CANDIDATES_BEST) {
        return;
    }
    list->kept += list->kept < CJ_CANDIDATES_BEST;
    memmove(&list->best[at + 1], &list->best[at], (list->kept - 1 - at) * sizeof list->best[0]);
    list->best[at].ms = ms;
    snprintf(list->best[at].config, CJ_CONFIG_MAX, "%s", config);
}

void cj_candidates_drop(cj_candidates *list, const char *reason, const char *config) {
    size_t at = 0;
    while (at < list->reasons && strcmp(list->dropped[at].reason, reason) != 0) {
        ++at;
    }
    if (at == CJ_CANDIDATES_REASONS) {
        ++list->dropped_otherwise;
        return;
    }
    if (at == list->reasons) {
        list->dropped[list->reasons++].reason = reason;
        snprintf(list->dropped[at].first, CJ_CONFIG_MAX, "%s", config);
    }
    ++list->dropped[at].count;
}

void cj_candidates_note(cj_candidates *list, const char *dropped, double ms, const char *config) {
    if (dropped) {
        cj_candidates_drop(list, dropped, config);
    } else {
        cj_candidates_add(list, ms, config);
    }
}

void cj_candidates_print(const cj_candidates *list, const char *chosen, cj_text *out) {
    for (size_t i = 0; i < list->kept; ++i) {
        const char mark = strcmp(list->best[i].config, chosen) == 0 ? '*' : ' ';
        cj_text_printf(out, "  %c %10.4f ms  %s\n", mark, list->best[i].ms, list->best[i].config);
    }
    if (list->added > list->kept) {
        cj_text_printf(out, "    %zu slower, the last %.4f ms\n", list->added - list->kept, list->slowest_ms);
    }
    for (size_t i = 0; i < list->reasons; ++i) {
        cj_text_printf(out, "    %zu dropped, %s, like %s\n", list->dropped[i].count, list->dropped[i].reason,
                       list->dropped[i].first);
    }
    if (list->dropped_otherwise > 0) {
        cj_text_printf(out, "    %zu dropped for other reasons\n", list->dropped_otherwise);
    }
}
