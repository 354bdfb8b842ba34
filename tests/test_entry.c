#include "cache/entry.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { HEADER = 96, CHECKSUM = 16, GOLDEN_SIZE = 209 };

/* The entry of tests/golden/entry_v1.bin. */
static cj_entry golden_entry(void) {
    cj_entry entry = {.target = "sm_90a",
                      .compiler = "nvrtc 13.0.88",
                      .version = "0.1.0",
                      .family = "direct",
                      .line = "conv2d c3 k8 in9x9 f3x3 f32 nchw fp32",
                      .threads = 128,
                      .shared_bytes = 9216,
                      .binary = "\177ELF, or so it is",
                      .binary_size = 17};
    for (int i = 0; i < CJ_KEY_BYTES; i++) {
        entry.key.bytes[i] = (unsigned char)(0x11 * i);
    }
    cj_key_spell(&entry.key);
    return entry;
}

static unsigned char *read_golden(void) {
    unsigned char *bytes = malloc(GOLDEN_SIZE + 1);
    FILE *file = fopen("tests/golden/entry_v1.bin", "rb");
    cr_assert(file != NULL, "tests/golden/entry_v1.bin: run from the top of the source tree");
    cr_assert_eq(fread(bytes, 1, GOLDEN_SIZE + 1, file), GOLDEN_SIZE);
    fclose(file);
    return bytes;
}

static void expect_equal(const cj_entry *got, const cj_entry *want) {
    cr_expect_str_eq(got->key.hex, want->key.hex);
    cr_expect_arr_eq(got->key.bytes, want->key.bytes, CJ_KEY_BYTES);
    cr_expect_str_eq(got->target, want->target);
    cr_expect_str_eq(got->compiler, want->compiler);
    cr_expect_str_eq(got->version, want->version);
    cr_expect_str_eq(got->family, want->family);
    cr_expect_str_eq(got->line, want->line);
    cr_expect_eq(got->threads, want->threads);
    cr_expect_eq(got->shared_bytes, want->shared_bytes);
    cr_assert_eq(got->binary_size, want->binary_size);
    cr_expect_arr_eq(got->binary, want->binary, want->binary_size);
}

/* Decodes an exact-size copy, so that AddressSanitizer sees a read past its end. */
static const char *decode_copy(const unsigned char *bytes, size_t size) {
    unsigned char *copy = malloc(size > 0 ? size : 1);
    memcpy(copy, bytes, size);
    cj_entry entry;
    const char *reason = cj_entry_decode(copy, size, &entry);
    free(copy);
    return reason;
}

/* Writes a little-endian number into an entry and mends the checksum: a file that somebody made, not damage. */
static void forge(unsigned char *bytes, size_t size, size_t offset, size_t width, uint64_t value) {
    for (size_t i = 0; i < width; i++) {
        bytes[offset + i] = (unsigned char)(value >> (8 * i));
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, size - CHECKSUM));
    memcpy(bytes + size - CHECKSUM, canonical.digest, CHECKSUM);
}

static const char *decode_forged(size_t offset, size_t width, uint64_t value) {
    unsigned char *bytes = read_golden();
    forge(bytes, GOLDEN_SIZE, offset, width, value);
    const char *reason = decode_copy(bytes, GOLDEN_SIZE);
    free(bytes);
    return reason;
}

Test(entry, is_written_as_in_the_golden_file) {
    const cj_entry entry = golden_entry();
    unsigned char *golden = read_golden();
    size_t size;
    void *bytes = cj_entry_encode(&entry, &size);
    cr_assert_eq(size, GOLDEN_SIZE);
    cr_assert_arr_eq(bytes, golden, GOLDEN_SIZE);
    free(bytes);
    free(golden);
}

Test(entry, is_read_from_the_golden_file) {
    const cj_entry want = golden_entry();
    unsigned char *golden = read_golden();
    cj_entry got;
    const char *reason = cj_entry_decode(golden, GOLDEN_SIZE, &got);
    cr_assert(reason == NULL, "%s", reason);
    expect_equal(&got, &want);
    free(golden);
}

/* The hex lines of the comment look like " *   0010  d1 00 ...    words". */
Test(entry, format_comment_shows_the_golden_file) {
    unsigned char *golden = read_golden();
    FILE *header = fopen("cache/entry.h", "r");
    cr_assert(header != NULL);
    char line[256];
    unsigned shown = 0;
    while (fgets(line, sizeof line, header) != NULL) {
        unsigned offset;
        int used = 0;
        if (strncmp(line, " *   0", 6) != 0 || sscanf(line, " *   %4x %n", &offset, &used) != 1 || used != 11) {
            continue;
        }
        cr_assert_eq(offset, shown, "line %s", line);
        const char *at = line + used;
        unsigned value;
        for (int i = 0; i < 16 && sscanf(at, "%2x%n", &value, &used) == 1 && used == 2; i++, at += 3) {
            cr_assert_lt(shown, GOLDEN_SIZE);
            cr_expect_eq(value, golden[shown], "byte 0x%x", shown);
            shown++;
        }
    }
    cr_assert_eq(shown, GOLDEN_SIZE);
    fclose(header);
    free(golden);
}

Test(entry, survives_a_round_trip_with_texts_and_binaries_of_any_length) {
    char text[300];
    unsigned char binary[300];
    for (size_t length = 0; length < 300; length += 7) {
        memset(text, 'x', length);
        text[length] = '\0';
        memset(binary, (int)length, sizeof binary);
        cj_entry entry = golden_entry();
        entry.line = text;
        entry.compiler = length % 2 != 0 ? "" : text;
        entry.binary = binary;
        entry.binary_size = length + 1;
        size_t size;
        void *bytes = cj_entry_encode(&entry, &size);
        cr_assert(bytes != NULL);
        cj_entry got;
        const char *reason = cj_entry_decode(bytes, size, &got);
        cr_assert(reason == NULL, "%zu: %s", length, reason);
        expect_equal(&got, &entry);
        cr_expect_eq((uintptr_t)got.binary % 16, 0, "the binary is aligned where it was read to");
        free(bytes);
    }
}

Test(entry, truncated_at_any_length_is_a_miss) {
    unsigned char *golden = read_golden();
    for (size_t size = 0; size < GOLDEN_SIZE; size++) {
        const char *reason = decode_copy(golden, size);
        cr_assert(reason != NULL, "%zu bytes were accepted", size);
        cr_expect_str_eq(reason, size == 0 ? "empty" : "truncated", "%zu bytes", size);
    }
    free(golden);
}

Test(entry, with_any_bit_flipped_is_a_miss) {
    unsigned char *golden = read_golden();
    for (size_t bit = 0; bit < 8 * (size_t)GOLDEN_SIZE; bit++) {
        golden[bit / 8] ^= (unsigned char)(1U << bit % 8);
        cr_expect(decode_copy(golden, GOLDEN_SIZE) != NULL, "bit %zu of byte %zu", bit % 8, bit / 8);
        golden[bit / 8] ^= (unsigned char)(1U << bit % 8);
    }
    cr_assert(decode_copy(golden, GOLDEN_SIZE) == NULL, "all bits are back");
    free(golden);
}

Test(entry, damaged_in_its_body_is_told_from_one_of_another_kind) {
    unsigned char *bytes = read_golden();
    bytes[180] ^= 1; /* binary */
    cr_expect_str_eq(decode_copy(bytes, GOLDEN_SIZE), "checksum");
    bytes[180] ^= 1;
    bytes[GOLDEN_SIZE - 1] ^= 1; /* checksum */
    cr_expect_str_eq(decode_copy(bytes, GOLDEN_SIZE), "checksum");
    bytes[0] = 'C';
    cr_expect_str_eq(decode_copy(bytes, GOLDEN_SIZE), "no entry");
    free(bytes);
    cr_expect_str_eq(decode_forged(8, 4, 2), "other format version");
    cr_expect_str_eq(decode_forged(8, 4, 0), "other format version");
}

Test(entry, with_bytes_after_its_end_is_a_miss) {
    unsigned char *bytes = read_golden();
    bytes[GOLDEN_SIZE] = 0;
    cr_expect_str_eq(decode_copy(bytes, GOLDEN_SIZE + 1), "bytes after the end");
    free(bytes);
    cr_expect_str_eq(decode_forged(16, 8, GOLDEN_SIZE - 1), "bytes after the end");
    cr_expect_str_eq(decode_forged(16, 8, 0), "bytes after the end");
}

Test(entry, with_a_total_size_beyond_the_file_is_a_miss) {
    cr_expect_str_eq(decode_forged(16, 8, GOLDEN_SIZE + 1), "truncated");
    cr_expect_str_eq(decode_forged(16, 8, UINT64_MAX), "truncated");
    cr_expect_str_eq(decode_forged(16, 8, (UINT64_C(1) << 32) + GOLDEN_SIZE), "truncated");
}

/* Sound checksum, lying lengths: offset and length fields of each text, and of the binary. */
Test(entry, with_a_text_outside_the_file_is_a_miss) {
    for (size_t at = 56; at < HEADER; at += 8) {
        cr_expect_str_eq(decode_forged(at, 4, UINT32_MAX), "text outside the entry");
        cr_expect_str_eq(decode_forged(at, 4, GOLDEN_SIZE - CHECKSUM), "text outside the entry");
        cr_expect_str_eq(decode_forged(at + 4, 4, UINT32_MAX), "text outside the entry");
        cr_expect_str_eq(decode_forged(at + 4, 4, GOLDEN_SIZE), "text outside the entry");
        cr_expect_str_eq(decode_forged(at, 8, UINT64_MAX), "text outside the entry");
    }
}

Test(entry, with_a_text_that_does_not_end_at_its_length_is_a_miss) {
    for (size_t at = 56; at < HEADER; at += 8) {
        cr_expect_str_eq(decode_forged(at + 4, 4, 4), "text not terminated where its length says", "too short");
        cr_expect_str_eq(decode_forged(at + 4, 4, 47), "text not terminated where its length says", "too long");
    }
    cr_expect_str_eq(decode_forged(0x66, 1, 'b'), "text not terminated where its length says", "NUL overwritten");
    cr_expect_str_eq(decode_forged(0x62, 1, 0), "text not terminated where its length says", "NUL inside");
}

Test(entry, with_a_binary_outside_the_file_is_a_miss) {
    cr_expect_str_eq(decode_forged(12, 4, UINT32_MAX), "binary outside the entry");
    cr_expect_str_eq(decode_forged(12, 4, 177), "binary outside the entry", "reaches into the checksum");
    cr_expect_str_eq(decode_forged(48, 8, 18), "binary outside the entry", "reaches into the checksum");
    cr_expect_str_eq(decode_forged(48, 8, UINT64_MAX), "binary outside the entry");
    cr_expect_str_eq(decode_forged(48, 8, UINT64_MAX - 0xb0 + 1), "binary outside the entry", "offset + size = 0");
}

Test(entry, without_a_binary_is_a_miss) {
    cr_expect_str_eq(decode_forged(48, 8, 0), "binary is empty");
}

Test(entry, that_is_refused_leaves_the_result_alone) {
    unsigned char *bytes = read_golden();
    cj_entry entry = {.threads = 77};
    cr_expect(cj_entry_decode(bytes, GOLDEN_SIZE - 1, &entry) != NULL);
    forge(bytes, GOLDEN_SIZE, 48, 8, 0);
    cr_expect(cj_entry_decode(bytes, GOLDEN_SIZE, &entry) != NULL);
    cr_expect_eq(entry.threads, 77);
    cr_expect(entry.target == NULL);
    free(bytes);
}
