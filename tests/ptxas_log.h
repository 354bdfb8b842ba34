/* ptxas_log.h - what ptxas reports of registers that it keeps in memory. */
#ifndef PTXAS_LOG_H
#define PTXAS_LOG_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Both kernels of a layer are reported, and neither spills more than `most` bytes. */
static inline void expect_spilled(long most, const char *line, const char *log) {
    const char *const end = " bytes spill stores";
    int reports = 0;
    for (const char *spill = strstr(log, end); spill != NULL; spill = strstr(spill + 1, end), ++reports) {
        const char *digits = spill;
        while (digits > log && digits[-1] >= '0' && digits[-1] <= '9') {
            --digits;
        }
        cr_expect_leq(strtol(digits, NULL, 10), most, "%s: %s", line, log);
    }
    cr_expect_geq(reports, 2, "%s: ptxas reported nothing: %s", line, log);
}

#endif
