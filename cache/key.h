/* key.h - everything that decides a binary, as a 128-bit hash. key.c names each field with the bug it prevents. */
#ifndef CJ_KEY_H
#define CJ_KEY_H

#include <stddef.h>

#include "text.h"

enum { CJ_KEY_BYTES = 16 };

typedef struct cj_key {
    unsigned char bytes[CJ_KEY_BYTES];
    char hex[2 * CJ_KEY_BYTES + 1]; /* lower case, NUL-terminated */
} cj_key;

/* Fields are tagged and length-prefixed, so no two sets of fields hash the same bytes. Not in the key: the compiler's
 * build, which stands in the entry instead (see key.c). */
cj_key cj_key_make(const char *target, const char *options, const char *source, size_t source_size);

/* The same fields as text, for people: one a line, then options and source as they are. */
void cj_key_describe(const char *target, const char *options, const char *source, size_t source_size, cj_text *out);

/* Fills in `hex` from `bytes`. Inline: entry.c, below key.c in the reading order, spells the keys it decodes. */
static inline void cj_key_spell(cj_key *key) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < CJ_KEY_BYTES; i++) {
        key->hex[2 * i] = digits[key->bytes[i] >> 4];
        key->hex[2 * i + 1] = digits[key->bytes[i] & 15];
    }
    key->hex[sizeof key->hex - 1] = '\0';
}

#endif
