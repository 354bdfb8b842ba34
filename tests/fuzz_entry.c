/* fuzz_entry.c - libFuzzer: no bytes make the decoder read outside them, and what it accepts is an entry.
 *
 * Random bytes hardly ever carry a right checksum, so each input is also tried with its size and checksum mended, which
 * is what lets the fuzzer past them. A good start: tests/golden/entry_v1.bin. */
#include "cache/entry.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { AT_TOTAL_SIZE = 16, HEADER = 96, CHECKSUM = 16 };

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

/* Reads every byte the entry points to, so that AddressSanitizer judges them, and encodes it again. */
static void use(const cj_entry *entry) {
    size_t size;
    void *bytes = cj_entry_encode(entry, &size);
    cj_entry again;
    if (bytes != NULL && (cj_entry_decode(bytes, size, &again) != NULL || strcmp(again.key.hex, entry->key.hex) != 0 ||
                          strcmp(again.target, entry->target) != 0 || strcmp(again.compiler, entry->compiler) != 0 ||
                          strcmp(again.version, entry->version) != 0 || strcmp(again.family, entry->family) != 0 ||
                          strcmp(again.line, entry->line) != 0 || again.threads != entry->threads ||
                          again.shared_bytes != entry->shared_bytes || again.binary_size != entry->binary_size ||
                          memcmp(again.binary, entry->binary, entry->binary_size) != 0)) {
        abort();
    }
    free(bytes);
}

static void mend(unsigned char *bytes, size_t size) {
    for (size_t i = 0; i < 8; i++) {
        bytes[AT_TOTAL_SIZE + i] = (unsigned char)((uint64_t)size >> (8 * i));
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, size - CHECKSUM));
    memcpy(bytes + size - CHECKSUM, canonical.digest, CHECKSUM);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    cj_entry entry;
    if (cj_entry_decode(data, size, &entry) == NULL) {
        use(&entry);
    }
    if (size >= HEADER + CHECKSUM) {
        unsigned char *bytes = malloc(size);
        if (bytes != NULL) {
            memcpy(bytes, data, size);
            mend(bytes, size);
            if (cj_entry_decode(bytes, size, &entry) == NULL) {
                use(&entry);
            }
            free(bytes);
        }
    }
    return 0;
}
