#include "cache/key.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define SOURCE "#define K 3\nvoid f() {}\n"

static cj_key make(const char *target, const char *options, const char *source) {
    return cj_key_make(target, options, source, strlen(source));
}

static bool same(cj_key a, cj_key b) {
    return memcmp(a.bytes, b.bytes, CJ_KEY_BYTES) == 0;
}

/* The key as key.c describes it, from plain bytes. */
typedef struct hashed {
    unsigned char bytes[512];
    size_t size;
} hashed;

static void add(hashed *all, const char *tag, const void *bytes, size_t size) {
    memcpy(all->bytes + all->size, tag, 4);
    all->size += 4;
    for (int i = 0; i < 8; i++) {
        all->bytes[all->size++] = (unsigned char)((uint64_t)size >> (8 * i));
    }
    memcpy(all->bytes + all->size, bytes, size);
    all->size += size;
}

static cj_key expected(unsigned char key_format, unsigned char generator) {
    hashed all = {.size = 0};
    add(&all, "keyf", (unsigned char[]){key_format, 0, 0, 0}, 4);
    add(&all, "genr", (unsigned char[]){generator, 0, 0, 0}, 4);
    add(&all, "targ", "sm_90a", 6);
    add(&all, "opts", "-O\n", 3);
    add(&all, "srce", SOURCE, strlen(SOURCE));
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(all.bytes, all.size));
    cj_key key;
    memcpy(key.bytes, canonical.digest, CJ_KEY_BYTES);
    return key;
}

/* When this fails, every cache in the world is void: intended only together with a new KEY_FORMAT or GENERATOR. */
Test(key, stays_the_same_from_build_to_build) {
    cr_assert_str_eq(make("sm_90a", "-O\n", SOURCE).hex, "a4cf05b8174340d6018d62f390d18ece");
}

Test(key, hashes_the_tagged_fields_that_are_documented) {
    cr_assert(same(make("sm_90a", "-O\n", SOURCE), expected(1, 1)));
}

Test(key, changes_with_each_field) {
    const cj_key key = make("sm_90a", "-O\n", SOURCE);
    cr_expect(!same(key, expected(2, 1)), "key format");
    cr_expect(!same(key, expected(1, 2)), "generator version");
    cr_expect(!same(key, make("sm_90", "-O\n", SOURCE)), "target without its suffix");
    cr_expect(!same(key, make("sm_80", "-O\n", SOURCE)), "target");
    cr_expect(!same(key, make("sm_90a", "-O", SOURCE)), "options");
    cr_expect(!same(key, make("sm_90a", "", SOURCE)), "no options");
    cr_expect(!same(key, make("sm_90a", "-O\n", "#define K 4\nvoid f() {}\n")), "one letter of the source");
    cr_expect(!same(key, make("sm_90a", "-O\n", "")), "no source");
}

Test(key, changes_with_every_byte_of_the_source) {
    char source[] = SOURCE;
    const cj_key key = make("cpu", "", source);
    for (size_t i = 0; i < strlen(SOURCE); i++) {
        source[i] ^= 1;
        cr_expect(!same(key, cj_key_make("cpu", "", source, strlen(SOURCE))), "byte %zu", i);
        source[i] ^= 1;
    }
}

Test(key, does_not_let_bytes_move_from_field_to_field) {
    cr_expect(!same(make("sm_80", "ab", "c"), make("sm_80", "a", "bc")));
    cr_expect(!same(make("sm_80a", "b", "c"), make("sm_80", "ab", "c")));
    cr_expect(!same(make("sm_80", "", "c"), make("sm_80", "c", "")));
}

Test(key, is_spelled_in_lower_case_hexadecimal_byte_by_byte) {
    cj_key key;
    for (int i = 0; i < CJ_KEY_BYTES; i++) {
        key.bytes[i] = (unsigned char)(0xf0 - 15 * i);
    }
    cj_key_spell(&key);
    cr_assert_str_eq(key.hex, "f0e1d2c3b4a5968778695a4b3c2d1e0f");
}

Test(key, depends_on_nothing_but_its_arguments) {
    char elsewhere[sizeof SOURCE + 1];
    memcpy(elsewhere + 1, SOURCE, sizeof SOURCE);
    cr_assert(same(make("cpu", "", SOURCE), make("cpu", "", elsewhere + 1)), "another, unaligned address");
}

Test(key, is_described_by_the_fields_it_hashes) {
    cj_text text = {0};
    cj_key_describe("sm_90a", "-O\n", SOURCE, strlen(SOURCE), &text);
    cr_expect_str_eq(text.data, "key format: 1\ngenerator: 1\ntarget: sm_90a\noptions:\n-O\nsource:\n" SOURCE);
    cj_text_free(&text);
}
