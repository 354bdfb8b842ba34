/* entry.h - one cache file, encoded and decoded in memory.
 *
 * Format, version 1. Numbers are unsigned and little-endian. Offsets count from the start of the file.
 *
 *   offset  size  meaning
 *        0     8  magic, "convjit\n"
 *        8     4  format version, 1
 *       12     4  offset of the binary, a multiple of 16
 *       16     8  size of the whole file, checksum included
 *       24    16  key, in the byte order of the file's name (key.c)
 *       40     4  threads of a forward block
 *       44     4  dynamic shared memory of a forward block, in bytes
 *       48     8  size of the binary, at least 1
 *       56     8  target, as every text: 4 bytes offset, 4 bytes length without the NUL that follows it
 *       64     8  exact build of the compiler
 *       72     8  version of the convjit that wrote the entry; for people
 *       80     8  family; for people
 *       88     8  layer line of the first layer that asked; for people
 *       96        the texts, each with its NUL, then zeros up to the binary
 *                 the binary: a cubin, or a shared object of the target cpu
 *   end-16    16  checksum: XXH3, 128 bits, of everything before it, in the canonical byte order that
 *                 `head -c -16 FILE | xxhsum -H2` prints
 *
 * A real entry, tests/golden/entry_v1.bin (its binary is shorter than most):
 *
 *   0000  63 6f 6e 76 6a 69 74 0a 01 00 00 00 b0 00 00 00    magic; format version 1; binary at 0xb0
 *   0010  d1 00 00 00 00 00 00 00 00 11 22 33 44 55 66 77    0xd1 bytes in all; key 0011223344556677...
 *   0020  88 99 aa bb cc dd ee ff 80 00 00 00 00 24 00 00    ...8899aabbccddeeff; 128 threads; 9216 bytes
 *   0030  11 00 00 00 00 00 00 00 60 00 00 00 06 00 00 00    binary of 17 bytes; target at 0x60, 6 long
 *   0040  67 00 00 00 0d 00 00 00 75 00 00 00 05 00 00 00    compiler at 0x67, 13 long; version at 0x75, 5 long
 *   0050  7b 00 00 00 06 00 00 00 82 00 00 00 25 00 00 00    family at 0x7b, 6 long; layer line at 0x82, 37 long
 *   0060  73 6d 5f 39 30 61 00 6e 76 72 74 63 20 31 33 2e    "sm_90a", "nvrtc 13.
 *   0070  30 2e 38 38 00 30 2e 31 2e 30 00 64 69 72 65 63    0.88", "0.1.0", "direc
 *   0080  74 00 63 6f 6e 76 32 64 20 63 33 20 6b 38 20 69    t", "conv2d c3 k8 i
 *   0090  6e 39 78 39 20 66 33 78 33 20 66 33 32 20 6e 63    n9x9 f3x3 f32 nc
 *   00a0  68 77 20 66 70 33 32 00 00 00 00 00 00 00 00 00    hw fp32"; zeros up to 0xb0
 *   00b0  7f 45 4c 46 2c 20 6f 72 20 73 6f 20 69 74 20 69    the binary
 *   00c0  73 37 b1 55 01 4e b1 3a 29 ce b7 af f3 3d 82 19    its last byte; the checksum
 *   00d0  75
 *
 * Damage. A file is an entry only if its size is the one it states and its checksum holds; after that every offset and
 * length is still checked, for a file may be made by hand. Whatever fails is a miss with a reason: the store never
 * repairs and never deletes, the new build's rename replaces the file. Metadata and binary are one file, so that the
 * binary of one process never meets the metadata of another. A change of this table takes a new version number, and a
 * golden file of its own; numbers once used for a version or an offset are not given another meaning. */
#ifndef CJ_ENTRY_H
#define CJ_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "key.h"

/* Where an entry states its size, in 8 bytes. */
enum { CJ_ENTRY_SIZE_AT = 16 };

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
    size_t binary_size; /* at least 1 */
} cj_entry;

/* Encodes into malloc'ed bytes; NULL when memory is used up. The same entry gives the same bytes. */
void *cj_entry_encode(const cj_entry *entry, size_t *size);

/* Decodes. NULL if the bytes are a whole, undamaged entry (of any key and target), else the reason in a few words:
 * "truncated", "no entry", "other format version", "checksum", ... and `out` is left alone. Never reads outside the
 * bytes. */
const char *cj_entry_decode(const void *bytes, size_t size, cj_entry *out);

#endif
