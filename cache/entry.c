/* entry.c - encodes and decodes one cache file; the format stands in entry.h. */
#include "entry.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static const char magic[8] = {'c', 'o', 'n', 'v', 'j', 'i', 't', '\n'};

/* Written to disk: never reused. */
enum { FORMAT_VERSION = 1 };

/* Offsets of the header's fields. A text has two: its offset, then its length. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 8,
    AT_BINARY_OFFSET = 12,
    AT_TOTAL_SIZE = CJ_ENTRY_SIZE_AT,
    AT_KEY = 24,
    AT_THREADS = 40,
    AT_SHARED_BYTES = 44,
    AT_BINARY_SIZE = 48,
    AT_TARGET = 56,
    AT_COMPILER = 64,
    AT_CONVJIT_VERSION = 72,
    AT_FAMILY = 80,
    AT_LINE = 88,
    HEADER_SIZE = 96,
    TEXTS = (HEADER_SIZE - AT_TARGET) / 8,
    BINARY_ALIGNMENT = 16,
    CHECKSUM_SIZE = 16
};

static void checksum(const unsigned char *bytes, size_t size, unsigned char out[CHECKSUM_SIZE]) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, size));
    memcpy(out, canonical.digest, CHECKSUM_SIZE);
}

/* ------------------------------------------------------------------------------------------------------- encode --- */

static void put(unsigned char *at, size_t bytes, uint64_t value) {
    for (size_t i = 0; i < bytes; i++) {
        at[i] = (unsigned char)(value >> (8 * i));
    }
}

/* Sizes of the parts; false where the header's fields could not hold them. */
static bool measure(const char *const texts[TEXTS], size_t binary_size, size_t *binary_offset, size_t *total) {
    size_t end = HEADER_SIZE;
    for (int i = 0; i < TEXTS; i++) {
        const size_t length = strlen(texts[i]);
        if (length > UINT32_MAX / (TEXTS + 1)) {
            return false;
        }
        end += length + 1;
    }
    *binary_offset = (end + BINARY_ALIGNMENT - 1) / BINARY_ALIGNMENT * BINARY_ALIGNMENT;
    if (binary_size > SIZE_MAX - *binary_offset - CHECKSUM_SIZE) {
        return false;
    }
    *total = *binary_offset + binary_size + CHECKSUM_SIZE;
    return true;
}

void *cj_entry_encode(const cj_entry *entry, size_t *size) {
    const char *const texts[TEXTS] = {entry->target, entry->compiler, entry->version, entry->family, entry->line};
    size_t binary_offset;
    unsigned char *bytes = NULL;
    if (measure(texts, entry->binary_size, &binary_offset, size)) {
        bytes = malloc(*size);
    }
    if (bytes == NULL) {
        return NULL;
    }
    memset(bytes, 0, binary_offset); /* also the gap before the binary, which the checksum covers */
    memcpy(bytes + AT_MAGIC, magic, sizeof magic);
    put(bytes + AT_VERSION, 4, FORMAT_VERSION);
    put(bytes + AT_BINARY_OFFSET, 4, binary_offset);
    put(bytes + AT_TOTAL_SIZE, 8, *size);
    memcpy(bytes + AT_KEY, entry->key.bytes, CJ_KEY_BYTES);
    put(bytes + AT_THREADS, 4, entry->threads);
    put(bytes + AT_SHARED_BYTES, 4, entry->shared_bytes);
    put(bytes + AT_BINARY_SIZE, 8, entry->binary_size);
    size_t end = HEADER_SIZE;
    unsigned char *field = bytes + AT_TARGET;
    for (int i = 0; i < TEXTS; i++, field += 8) {
        const size_t length = strlen(texts[i]);
        put(field, 4, end);
        put(field + 4, 4, length);
        memcpy(bytes + end, texts[i], length);
        end += length + 1;
    }
    memcpy(bytes + binary_offset, entry->binary, entry->binary_size);
    checksum(bytes, *size - CHECKSUM_SIZE, bytes + *size - CHECKSUM_SIZE);
    return bytes;
}

/* ------------------------------------------------------------------------------------------------------- decode --- */

/* What is read, and the reason of the first failure; after it, every read gives zeros. */
typedef struct reader {
    const unsigned char *bytes;
    size_t size;
    const char *failure;
} reader;

static void fail(reader *in, const char *reason) {
    if (in->failure == NULL) {
        in->failure = reason;
    }
}

/* The one place that touches the bytes: `size` of them from `offset` on, or NULL and a failure. Both may be any number
 * a damaged file holds; the comparison is written so that neither side can wrap around. */
static const unsigned char *view(reader *in, uint64_t offset, uint64_t size, const char *reason) {
    if (in->failure == NULL && (offset > in->size || size > in->size - offset)) {
        fail(in, reason);
    }
    return in->failure == NULL ? in->bytes + offset : NULL;
}

static uint64_t number(reader *in, uint64_t offset, size_t bytes) {
    const unsigned char *at = view(in, offset, bytes, "truncated");
    uint64_t value = 0;
    for (size_t i = 0; at != NULL && i < bytes; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}

/* The text whose offset and length stand at `offset`. */
static const char *text(reader *in, uint64_t offset) {
    const uint64_t start = number(in, offset, 4);
    const uint64_t length = number(in, offset + 4, 4);
    const unsigned char *at = view(in, start, length + 1, "text outside the entry");
    if (at != NULL && (at[length] != '\0' || memchr(at, '\0', (size_t)length) != NULL)) {
        fail(in, "text not terminated where its length says");
    }
    return (const char *)at;
}

/* Is this a whole entry of our format, as it was written? Nothing else in it is looked at before. */
static void check_whole(reader *in) {
    const unsigned char *start = view(in, AT_MAGIC, sizeof magic, in->size == 0 ? "empty" : "truncated");
    if (start != NULL && memcmp(start, magic, sizeof magic) != 0) {
        fail(in, "no entry");
    }
    if (number(in, AT_VERSION, 4) != FORMAT_VERSION) {
        fail(in, "other format version");
    }
    const uint64_t total = number(in, AT_TOTAL_SIZE, 8);
    if (in->size < HEADER_SIZE + CHECKSUM_SIZE || total > in->size) {
        fail(in, "truncated");
    }
    if (total < in->size) {
        fail(in, "bytes after the end");
    }
    const unsigned char *stored = view(in, total - CHECKSUM_SIZE, CHECKSUM_SIZE, "truncated");
    if (stored != NULL) {
        unsigned char actual[CHECKSUM_SIZE];
        checksum(in->bytes, in->size - CHECKSUM_SIZE, actual);
        if (memcmp(actual, stored, CHECKSUM_SIZE) != 0) {
            fail(in, "checksum");
        }
    }
}

const char *cj_entry_decode(const void *bytes, size_t size, cj_entry *out) {
    reader in = {bytes, size, NULL};
    cj_entry entry = {0};
    check_whole(&in);
    in.size -= in.failure == NULL ? CHECKSUM_SIZE : 0; /* what follows may not reach into the checksum */
    const unsigned char *key = view(&in, AT_KEY, CJ_KEY_BYTES, "truncated");
    if (key != NULL) {
        memcpy(entry.key.bytes, key, CJ_KEY_BYTES);
    }
    cj_key_spell(&entry.key);
    entry.threads = (uint32_t)number(&in, AT_THREADS, 4);
    entry.shared_bytes = (uint32_t)number(&in, AT_SHARED_BYTES, 4);
    entry.target = text(&in, AT_TARGET);
    entry.compiler = text(&in, AT_COMPILER);
    entry.version = text(&in, AT_CONVJIT_VERSION);
    entry.family = text(&in, AT_FAMILY);
    entry.line = text(&in, AT_LINE);
    const uint64_t binary_offset = number(&in, AT_BINARY_OFFSET, 4);
    const uint64_t binary_size = number(&in, AT_BINARY_SIZE, 8);
    entry.binary = view(&in, binary_offset, binary_size, "binary outside the entry");
    entry.binary_size = (size_t)binary_size;
    if (binary_size == 0) {
        fail(&in, "binary is empty");
    }
    if (in.failure == NULL) {
        *out = entry;
    }
    return in.failure;
}
