/* entry.h - one cache file, encoded and decoded in memory. */
#ifndef CJ_ENTRY_H
#define CJ_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "key.h"

/* Views: after decoding, pointers go into the decoded bytes. Texts are NUL-terminated. */
typedef struct cj_entry {
    cj_key key;
    const char *target;   /* "sm_90a" */
    const char *compiler; /* exact build that made the binary */
    const char *version;  /* of the convjit that wrote it; for people */
    const char *family;   /* for people */
    const char *line;     /* layer line of the first layer that asked; for people */
    uint32_t threads;
    uint32_t shared_bytes;
    const void *binary;
    size_t binary_size;
} cj_entry;

/* Encodes into malloc'ed bytes; NULL when memory is used up. */
void *cj_entry_encode(const cj_entry *entry, size_t *size);

/* Decodes. NULL if the bytes are a whole, undamaged entry (of any key and target), else the reason in a few words:
 * "truncated", "no entry", "other format version", "checksum", ... Never reads outside the bytes. */
const char *cj_entry_decode(const void *bytes, size_t size, cj_entry *out);

#endif
