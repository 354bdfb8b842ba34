/* fuzz.h - what fuzz targets share: a check, and a descriptor from a fuzzer's bytes. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "convjit.h"

#define CHECK(condition)                                                  \
    do {                                                                  \
        if (!(condition)) {                                               \
            abort(); /* libFuzzer keeps the input and prints the stack */ \
        }                                                                 \
    } while (0)

typedef struct fuzz_bytes {
    const uint8_t *data;
    size_t size;
} fuzz_bytes;

/* The next one; 1 behind the last. */
static inline int fuzz_next(fuzz_bytes *bytes) {
    return bytes->size > 0 ? (--bytes->size, *bytes->data++) : 1;
}

/* Operation, rank and whatever is int64, one byte each: small numbers, so that most layers are nearly legal; the rest
 * is the default. From 192 on bytes are powers of two, the last one the most negative number. */
static inline convjit_desc fuzz_fields(fuzz_bytes *bytes) {
    convjit_desc desc = CONVJIT_DESC_INIT;
    int64_t *const fields[] = {&desc.in_channels, &desc.out_channels, &desc.groups,       &desc.batch_hint,
                               desc.in_size,      desc.kernel,        desc.stride,        desc.dilation,
                               desc.pad_begin,    desc.pad_end,       desc.output_padding};
    desc.operation = (convjit_operation)(fuzz_next(bytes) % 2);
    desc.rank = fuzz_next(bytes) % 3 + 1;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; ++i) {
        for (int axis = 0; axis < (i < 4 ? 1 : desc.rank); ++axis) {
            const int value = fuzz_next(bytes);
            fields[i][axis] = value < 192 ? value : (int64_t)((uint64_t)1 << (value - 192));
        }
    }
    return desc;
}

#endif
