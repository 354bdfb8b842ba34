/* text.h - a text that grows. A failed allocation is remembered, not reported: build the whole text, then look at
 * `failed` once. */
#ifndef CJ_TEXT_H
#define CJ_TEXT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cj_text {
    char *data;  /* NUL-terminated once anything was added; NULL before */
    size_t size; /* without the NUL */
    size_t capacity;
    bool failed;
} cj_text;

void cj_text_add(cj_text *text, const char *bytes, size_t size);
void cj_text_printf(cj_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cj_text_free(cj_text *text); /* leaves an empty text */

#endif
