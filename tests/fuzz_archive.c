/* fuzz_archive.c - libFuzzer: no file makes the reader of archives read outside it, and what it takes are entries.
 *
 * Random bytes hardly ever carry a right checksum, so each input is also tried with its size and checksum mended. A
 * good start: tests/golden/archive_v1.bin. */
#include "cache/archive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { TAIL = 32, CHECKSUM = 16 };

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

/* Reads every byte the entry points to, so that AddressSanitizer judges them. */
static convjit_status use(void *user, const cj_entry *entry) {
    size_t size;
    void *bytes = cj_entry_encode(entry, &size);
    free(bytes);
    ++*(size_t *)user;
    return CONVJIT_SUCCESS;
}

static void read_as_file(const unsigned char *data, size_t size) {
    char path[64];
    size_t taken = 0;
    const int file = memfd_create("archive", MFD_CLOEXEC);
    if (file < 0 || write(file, data, size) != (ssize_t)size) {
        abort();
    }
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (cj_archive_read(path, use, &taken) == CONVJIT_SUCCESS && taken > size) {
        abort(); /* an entry has more than one byte */
    }
    close(file);
}

static void mend(unsigned char *bytes, size_t size) {
    for (size_t i = 0; i < 8; i++) {
        bytes[size - TAIL + 8 + i] = (unsigned char)((uint64_t)size >> (8 * i));
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, size - CHECKSUM));
    memcpy(bytes + size - CHECKSUM, canonical.digest, CHECKSUM);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    read_as_file(data, size);
    if (size >= TAIL) {
        unsigned char *bytes = malloc(size);
        if (bytes != NULL) {
            memcpy(bytes, data, size);
            mend(bytes, size);
            read_as_file(bytes, size);
            free(bytes);
        }
    }
    return 0;
}
