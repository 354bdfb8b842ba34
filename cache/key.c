/* key.c - the hash that names a binary, over its content alone.
 *
 * Each field stands here because a cache without it served a wrong binary, or missed a right one:
 *
 * - key format: a later convjit that hashes other fields, or in another order, must not meet our entries by chance
 * - generator: the same source text may come to mean something else to the host, when a kernel's argument struct or the
 *   packed-weight layout changes while its text does not. Raised by hand for that, instead of hashing the library's
 *   version, which would throw every cache away at every release
 * - target: the exact name. Code for "sm_90a" does not run on sm_90's successors, code for "sm_80" is slow on
 *   sm_90a, and a key of major.minor cannot tell "sm_121" from "sm_121a"
 * - options: the same source under other compiler options is another binary (-fmad=false, a sanitizer)
 * - source: the whole stamped text, included files and all. Hashing the kernel's name and parameters instead serves old
 *   code after an edit; hashing a list of headers misses the one the list forgot
 *
 * What is left out, on purpose:
 *
 *   paths, times, users, process ids   a moved tree, a copied container layer and another user must hit
 *   what the compiler printed or made  compilers put random names into their output, so such a key never hits
 *   the compiler's build               see below
 *
 * The compiler's build. Two wishes contradict each other here: that another compiler build never serves its
 * predecessor's binary - the reason why the build usually is a field of the key - and that a warm cache serves a
 * machine that has no compiler, without looking for one. Who has not opened the compiler cannot know its build, so a
 * key that holds it cannot be computed where the cache is needed most. The build therefore stands in the entry
 * (cj_entry.compiler), and binary.c compares it as soon as this process has opened the compiler: an entry of another
 * build then counts as stale, is built anew and replaced. A process that needs no compiler runs whatever build warmed
 * its cache; `convjit warm` opens the compiler first, so warming again after an upgrade rebuilds everything. The price:
 * machines with different compiler builds that compile into one shared directory replace each other's entries; each
 * should have its own.
 *
 * XXH3 is no cryptographic hash, and need not be one: who can write to the cache directory can plant a binary under any
 * key, so the directory's permissions guard the cache (store.c). Against chance, 128 bits are ample: a thousand million
 * different layers collide with a probability of 1e-21. */
#include "key.h"

#include <stdint.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Raise when the fields, their tags or their order change. */
enum { KEY_FORMAT = 1 };

/* Raise when the host's understanding of an unchanged source changes; see above. */
enum { GENERATOR = 1 };

static void little_endian(unsigned char *out, size_t bytes, uint64_t value) {
    for (size_t i = 0; i < bytes; i++) {
        out[i] = (unsigned char)(value >> (8 * i));
    }
}

/* One field: a tag of four letters, the length (64 bits, little-endian), the bytes. Without lengths, options "-a"
 * before source "bc" would hash like options "-ab" before source "c"; without tags, a field that is left out by one
 * version and added by the next could take its neighbour's place. */
static void field(XXH3_state_t *state, const char tag[5], const void *bytes, size_t size) {
    unsigned char length[8];
    little_endian(length, sizeof length, size);
    XXH3_128bits_update(state, tag, 4);
    XXH3_128bits_update(state, length, sizeof length);
    XXH3_128bits_update(state, bytes, size);
}

static void number_field(XXH3_state_t *state, const char tag[5], uint32_t value) {
    unsigned char bytes[4];
    little_endian(bytes, sizeof bytes, value);
    field(state, tag, bytes, sizeof bytes);
}

void cj_key_describe(const char *target, const char *options, const char *source, size_t source_size, cj_text *out) {
    cj_text_printf(out, "key format: %d\ngenerator: %d\ntarget: %s\noptions:\n%ssource:\n", KEY_FORMAT, GENERATOR,
                   target, options);
    cj_text_add(out, source, source_size);
}

cj_key cj_key_make(const char *target, const char *options, const char *source, size_t source_size) {
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_128bits_reset(&state);
    number_field(&state, "keyf", KEY_FORMAT);
    number_field(&state, "genr", GENERATOR);
    field(&state, "targ", target, strlen(target));
    field(&state, "opts", options, strlen(options));
    field(&state, "srce", source, source_size);

    /* The canonical form is the same on every machine, and the one xxhsum prints. */
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    cj_key key;
    memcpy(key.bytes, canonical.digest, CJ_KEY_BYTES);
    cj_key_spell(&key);
    return key;
}
