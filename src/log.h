/* log.h - lines for the caller's callback or, with CONVJIT_LOG, for standard error. */
#ifndef CJ_LOG_H
#define CJ_LOG_H

#include "convjit.h"

typedef struct cj_log {
    convjit_log_fn fn; /* NULL: standard error if CONVJIT_LOG is set, else nothing */
    void *user;
} cj_log;

void cj_log_line(const cj_log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
