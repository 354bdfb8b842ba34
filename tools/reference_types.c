/* reference_types.c - elements as doubles, and rounding to each type. */
#include "reference_types.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- types */

reference_format reference_format_of(convjit_type type) {
    switch (type) {
    case CONVJIT_F16:
        return (reference_format){10, -14, 0x7C00, 0x7E5A};
    case CONVJIT_BF16:
        return (reference_format){7, -126, 0x7F80, 0x7FDE};
    case CONVJIT_F32:
    default:
        return (reference_format){23, -126, 0x7F800000, 0x7FDEAD5A};
    }
}

int64_t reference_type_bytes(convjit_type type) {
    return type == CONVJIT_F32 ? 4 : 2;
}

static double decode(uint32_t bits, reference_format f) {
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
static int exponent_of(double value, reference_format f) {
    int exponent = 0;
    (void)frexp(value, &exponent); /* value = fraction * 2^exponent, fraction in [0.5, 1) */
    return value != 0.0 && exponent - 1 > f.min_exponent ? exponent - 1 : f.min_exponent;
}

/* Rounds to nearest even. */
static uint32_t encode(double value, reference_format f) {
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
    return decode(load_bits(data, type, index), reference_format_of(type));
}

void reference_set(void *data, convjit_type type, int64_t index, double value) {
    if (type == CONVJIT_F32) {
        const float rounded = (float)value;
        memcpy((char *)data + 4 * index, &rounded, 4);
        return;
    }
    store_bits(data, type, index, encode(value, reference_format_of(type)));
}

double reference_half_ulp(convjit_type type, double value) {
    const reference_format f = reference_format_of(type);
    return ldexp(1.0, exponent_of(value, f) - f.mantissa - 1);
}

bool reference_overflows(convjit_type type, double value) {
    const reference_format f = reference_format_of(type);
    return (encode(value, f) & f.infinity) == f.infinity;
}

bool reference_is_poison(const void *data, convjit_type type, int64_t index) {
    return load_bits(data, type, index) == reference_format_of(type).poison;
}

void reference_poison(void *data, convjit_type type, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        store_bits(data, type, i, reference_format_of(type).poison);
    }
}
