/* status.h - how a function fails: with a status, and a text for people in this thread's error buffer.
 *
 * The text reads "*what failed*: *named value*, *rule*[; *what to do*]", lower case, no full stop, no file or line; a
 * system's own words (strerror, compiler log) come last. */
#ifndef CJ_STATUS_H
#define CJ_STATUS_H

#include "convjit.h"

/* Sets this thread's error text and returns `status`, so that a caller can `return cj_fail(...)`. Long texts (compiler
 * logs) are kept whole where memory allows, else cut. */
convjit_status cj_fail(convjit_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "PREFIX: " in front of this thread's error text, and returns `status`. */
convjit_status cj_fail_prefix(convjit_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns `status` itself, not what cj_fail returns, so that a reader of one file (and the analyzer) sees that it is a
 * failure. */
#define CJ_RETURN_IF(condition, status, ...)    \
    do {                                        \
        if (condition) {                        \
            (void)cj_fail(status, __VA_ARGS__); \
            return status;                      \
        }                                       \
    } while (0)

#define CJ_TRY(call)                                 \
    do {                                             \
        const convjit_status cj_try_status = (call); \
        if (cj_try_status != CONVJIT_SUCCESS) {      \
            return cj_try_status;                    \
        }                                            \
    } while (0)

#endif
