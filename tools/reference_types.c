/* reference_types.c - elements as doubles, rounding to each type, and random data. */
#include "reference_types.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- types */

/* The 16-bit types by their fields; float32 is the machine's own. */
typedef struct format {
    int mantissa;     /* stored bits */
    int min_exponent; /* of the normal numbers; subnormals keep its spacing */
    uint32_t infinity;
    uint32_t poison; /* a quiet NaN with a payload */
} format;

static format format_of(convjit_type type) {
    switch (type) {
    case CONVJIT_F16:
        return (format){10, -14, 0x7C00, 0x7E5A};
    case CONVJIT_BF16:
        return (format){7, -126, 0x7F80, 0x7FDE};
    case CONVJIT_F32:
    default:
        return (format){23, -126, 0x7F800000, 0x7FDEAD5A};
    }
}

int64_t reference_type_bytes(convjit_type type) {
    return type == CONVJIT_F32 ? 4 : 2;
}

static double decode(uint32_t bits, format f) {
    const uint32_t magnitude = bits & (f.infinity | (f.infinity - 1)); /* all but the sign */
    const uint32_t fraction = magnitude & ((1U << f.mantissa) - 1);
    const int exponent = (int)(magnitude >> f.mantissa);
    double value = 0.0;
    if (magnitude > f.infinity) {
        return NAN;
    }
    if (magnitude == f.infinity) {
        value = INFINITY;
    } else if (exponent == 0) {
        value = ldexp(fraction, f.min_exponent - f.mantissa);
    } else {
        value = ldexp(fraction + (1U << f.mantissa), f.min_exponent + exponent - 1 - f.mantissa);
    }
    return bits == magnitude ? value : -value;
}

/* Exponent of the spacing that the format has at `value`: its own, or the least for zero and subnormals. */
static int exponent_of(double value, format f) {
    int exponent = 0;
    (void)frexp(value, &exponent); /* value = fraction * 2^exponent, fraction in [0.5, 1) */
    return value != 0.0 && exponent - 1 > f.min_exponent ? exponent - 1 : f.min_exponent;
}

/* Rounds to nearest even. */
static uint32_t encode(double value, format f) {
    const uint32_t sign = signbit(value) ? (f.infinity | (f.infinity - 1)) + 1 : 0;
    if (isnan(value)) {
        return f.infinity | 1U << (f.mantissa - 1);
    }
    if (isinf(value)) {
        return sign | f.infinity;
    }
    const int exponent = exponent_of(value, f);
    if (exponent > -f.min_exponent + 1) {
        return sign | f.infinity;
    }
    /* The hidden bit of `scaled` adds 1 to the exponent field, as does a carry out of the mantissa. */
    const double scaled = nearbyint(ldexp(fabs(value), f.mantissa - exponent));
    const uint32_t bits = ((uint32_t)(exponent - f.min_exponent) << f.mantissa) + (uint32_t)scaled;
    return sign | (bits < f.infinity ? bits : f.infinity);
}

static uint32_t load_bits(const void *data, convjit_type type, int64_t index) {
    const int64_t bytes = reference_type_bytes(type);
    uint32_t wide = 0;
    uint16_t narrow = 0;
    if (bytes == 4) {
        memcpy(&wide, (const char *)data + 4 * index, 4);
        return wide;
    }
    memcpy(&narrow, (const char *)data + 2 * index, 2);
    return narrow;
}

static void store_bits(void *data, convjit_type type, int64_t index, uint32_t bits) {
    const uint16_t narrow = (uint16_t)bits;
    if (reference_type_bytes(type) == 4) {
        memcpy((char *)data + 4 * index, &bits, 4);
    } else {
        memcpy((char *)data + 2 * index, &narrow, 2);
    }
}

double reference_get(const void *data, convjit_type type, int64_t index) {
    if (type == CONVJIT_F32) {
        float value = 0.0F;
        memcpy(&value, (const char *)data + 4 * index, 4);
        return value;
    }
    return decode(load_bits(data, type, index), format_of(type));
}

void reference_set(void *data, convjit_type type, int64_t index, double value) {
    if (type == CONVJIT_F32) {
        const float rounded = (float)value;
        memcpy((char *)data + 4 * index, &rounded, 4);
        return;
    }
    store_bits(data, type, index, encode(value, format_of(type)));
}

double reference_half_ulp(convjit_type type, double value) {
    const format f = format_of(type);
    return ldexp(1.0, exponent_of(value, f) - f.mantissa - 1);
}

bool reference_overflows(convjit_type type, double value) {
    const format f = format_of(type);
    return (encode(value, f) & f.infinity) == f.infinity;
}

bool reference_is_poison(const void *data, convjit_type type, int64_t index) {
    return load_bits(data, type, index) == format_of(type).poison;
}

void reference_poison(void *data, convjit_type type, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        store_bits(data, type, i, format_of(type).poison);
    }
}

/* ---------------------------------------------------------------- random data */

/* The generator splitmix64 (Steele, Lea and Flood 2014), entered at any place of its sequence. */
uint64_t reference_random(uint64_t seed, uint64_t place) {
    uint64_t v = seed + (place + 1) * 0x9E3779B97F4A7C15U;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9U;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBU;
    return v ^ (v >> 31);
}

enum { DRAWS = 8 }; /* places of the sequence an element may use */

/* Sum of 12 uniform numbers less 6: mean 0, deviation 1, tails to +-6. Integer arithmetic alone, so that it is the same
 * on every machine, which a logarithm and a cosine would not be; 32 bits a number, so that float32 mantissas are full.
 */
static double normal(uint64_t seed, uint64_t first) {
    int64_t sum = 0;
    for (uint64_t draw = 0; draw < 6; draw++) {
        const uint64_t bits = reference_random(seed, first + draw);
        sum += (int64_t)(bits >> 32) + (int64_t)(bits & 0xFFFFFFFFU);
    }
    return ldexp((double)(sum - (6LL << 32)), -32);
}

void reference_fill(void *data, convjit_type type, int64_t count, uint64_t seed, reference_distribution distribution) {
    const int digits = format_of(type).mantissa + 1;
    const int widest = type == CONVJIT_F16 ? 6 : 40;
    const uint64_t start = reference_random(seed, 0); /* neighbouring seeds must not be shifted copies */
    for (int64_t i = 0; i < count; i++) {
        const uint64_t first = (uint64_t)i * DRAWS;
        double value = 0.0;
        switch (distribution) {
        case REFERENCE_UNIFORM:
            value = ldexp((double)(reference_random(start, first) >> (64 - digits)), -digits);
            break;
        case REFERENCE_WIDE:
            value = ldexp(normal(start, first),
                          (int)(reference_random(start, first + 6) % (uint64_t)(2 * widest + 1)) - widest);
            break;
        case REFERENCE_NORMAL:
        default:
            value = normal(start, first);
        }
        reference_set(data, type, i, value);
    }
}
