/* layer_line.c - a layer as one line of words, printed and parsed.
 *
 *   conv2d n8 c32 k64 in512x512 f5x9 s1 p0 f32 nchw fp32
 *
 * Words are separated by white space. The first one is the operation with its rank; the others may come in any order,
 * each at most once, and are printed in this one:
 *
 *   word            printed     absent     meaning
 *   conv2d          always      refused    conv1d conv2d conv3d, transposed: convt1d convt2d convt3d
 *   nN              if >= 0     -1         batch; not part of the layer
 *   cN kN           always      refused    in_channels, out_channels
 *   gN              if not 1    1          groups
 *   inSIZES         if given    dynamic    in_size
 *   hint=N          if not 0    0          batch_hint
 *   fSIZES          always      refused    kernel ("filter"); f16 and f32 are types, so these write filter=16
 *   sSIZES          always      1          stride
 *   pSIZES          always      0          pad_begin and pad_end; p0:1 where they differ
 *   dSIZES          if not 1    1          dilation
 *   opSIZES         if not 0    0          output_padding
 *   f32 f16 bf16    always      f32        data_type
 *   weights=TYPE    if another  data_type  weight_type
 *   bias=TYPE       if not f32  f32        bias_type
 *   nchw nhwc       always      nchw       layout: channels first, channels last; of any rank
 *   krsc            if last     first      weight_layout: channels last
 *   fp32 fp32_block tf32  always  fp32     math
 *   relu leaky_relu=A silu gelu sigmoid tanh hardswish clamp=A:B   if any   none   activation with its parameters
 *   alpha=A beta=B  if not 1, 0 1, 0       factors of the convolution and of the residual
 *
 * N is a decimal int64. SIZES is one N an axis joined by 'x', in the descriptor's order, or a single N for all axes. in
 * and f print every axis, the others a single N where they can. A and B are floats as strtof reads them in the C
 * locale, printed with the fewest digits that give the same float again.
 *
 * Neither direction asks whether the layer is legal; that is desc.c's part. What a layer ignores (axes beyond the rank,
 * parameters its activation does not have) is not printed. */
#include "convjit.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

enum { MAX_RANK = 3 };

/* ------------------------------------------------------------------------------------------------------- words */

static const char *const operations[] = {"conv1d", "conv2d", "conv3d", "convt1d", "convt2d", "convt3d"};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

/* What a word says; no two words of a line may say the same thing. */
typedef enum word_subject {
    BATCH,
    IN_CHANNELS,
    OUT_CHANNELS,
    GROUPS,
    IN_SIZE,
    BATCH_HINT,
    KERNEL,
    STRIDE,
    PADDING,
    DILATION,
    OUTPUT_PADDING,
    DATA_TYPE,
    WEIGHT_TYPE,
    BIAS_TYPE,
    LAYOUT,
    WEIGHT_LAYOUT,
    MATH,
    ACTIVATION,
    ALPHA,
    BETA
} word_subject;

/* Every word but the first: its fixed part, and the enumerator that this part stands for, if any. */
static const struct {
    const char *key;
    word_subject subject;
    int choice;
} words[] = {
    /* clang-format off */
    {"n", BATCH, 0}, {"c", IN_CHANNELS, 0}, {"k", OUT_CHANNELS, 0}, {"g", GROUPS, 0},
    {"in", IN_SIZE, 0}, {"hint=", BATCH_HINT, 0}, {"f", KERNEL, 0}, {"filter=", KERNEL, 0}, {"s", STRIDE, 0},
    {"p", PADDING, 0}, {"d", DILATION, 0}, {"op", OUTPUT_PADDING, 0},
    {"f32", DATA_TYPE, CONVJIT_F32}, {"f16", DATA_TYPE, CONVJIT_F16}, {"bf16", DATA_TYPE, CONVJIT_BF16},
    {"weights=", WEIGHT_TYPE, 0}, {"bias=", BIAS_TYPE, 0},
    {"nchw", LAYOUT, CONVJIT_CHANNELS_FIRST}, {"nhwc", LAYOUT, CONVJIT_CHANNELS_LAST},
    {"krsc", WEIGHT_LAYOUT, CONVJIT_CHANNELS_LAST},
    {"fp32", MATH, CONVJIT_FP32}, {"fp32_block", MATH, CONVJIT_FP32_BLOCK}, {"tf32", MATH, CONVJIT_TF32},
    {"relu", ACTIVATION, CONVJIT_RELU}, {"leaky_relu=", ACTIVATION, CONVJIT_LEAKY_RELU},
    {"silu", ACTIVATION, CONVJIT_SILU}, {"gelu", ACTIVATION, CONVJIT_GELU},
    {"sigmoid", ACTIVATION, CONVJIT_SIGMOID}, {"tanh", ACTIVATION, CONVJIT_TANH},
    {"hardswish", ACTIVATION, CONVJIT_HARDSWISH}, {"clamp=", ACTIVATION, CONVJIT_CLAMP},
    {"alpha=", ALPHA, 0}, {"beta=", BETA, 0},
    /* clang-format on */
};
enum { WORDS = sizeof words / sizeof words[0] };

/* printf and strtof take the decimal point from the locale, and an application may have set any. */
static locale_t enter_c_locale(locale_t *c_locale) {
    *c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return uselocale(*c_locale); /* where there is no memory for it: changes nothing */
}

static void leave_c_locale(locale_t c_locale, locale_t before) {
    uselocale(before);
    if (c_locale != (locale_t)0) {
        freelocale(c_locale);
    }
}

/* ---------------------------------------------------------------------------------------------------- printing */

/* Writes what fits and counts the rest, as snprintf does. */
typedef struct line_writer {
    char *text;
    size_t size;
    size_t length;
} line_writer;

__attribute__((format(printf, 2, 3))) static void put(line_writer *line, const char *format, ...) {
    const bool fits = line->length < line->size;
    va_list arguments;
    va_start(arguments, format);
    const int length =
        vsnprintf(fits ? line->text + line->length : NULL, fits ? line->size - line->length : 0, format, arguments);
    va_end(arguments);
    line->length += length > 0 ? (size_t)length : 0;
}

/* The word of an enumerator; a number that is none prints as such, so that an error text shows it. */
static void put_choice(line_writer *line, word_subject subject, int choice) {
    for (size_t i = 0; i < WORDS; ++i) {
        if (words[i].subject == subject && words[i].choice == choice) {
            put(line, "%s", words[i].key);
            return;
        }
    }
    put(line, "?%d", choice);
}

static bool all_equal(const int64_t *values, int rank, int64_t value) {
    for (int axis = 0; axis < rank; ++axis) {
        if (values[axis] != value) {
            return false;
        }
    }
    return true;
}

static void put_every_size(line_writer *line, const int64_t *values, int rank) {
    for (int axis = 0; axis < rank; ++axis) {
        put(line, "%s%" PRId64, axis > 0 ? "x" : "", values[axis]);
    }
}

static void put_sizes(line_writer *line, const int64_t *values, int rank) {
    put_every_size(line, values, rank > 1 && all_equal(values, rank, values[0]) ? 1 : rank);
}

static void put_float(line_writer *line, float value) {
    enum { FEWEST = 6, ENOUGH = 9 }; /* digits; nine tell any two floats apart */
    char text[32] = "";
    locale_t c_locale;
    const locale_t before = enter_c_locale(&c_locale);
    for (int digits = FEWEST; digits <= ENOUGH; ++digits) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) {
            break;
        }
    }
    leave_c_locale(c_locale, before);
    put(line, "%s", text);
}

static void put_shape(line_writer *line, const convjit_desc *desc, int rank) {
    put(line, " c%" PRId64 " k%" PRId64, desc->in_channels, desc->out_channels);
    if (desc->groups != 1) {
        put(line, " g%" PRId64, desc->groups);
    }
    if (!all_equal(desc->in_size, rank, 0)) {
        put(line, " in");
        put_every_size(line, desc->in_size, rank);
    }
    if (desc->batch_hint != 0) {
        put(line, " hint=%" PRId64, desc->batch_hint);
    }
    const bool reads_as_type = rank == 1 && (desc->kernel[0] == 16 || desc->kernel[0] == 32);
    put(line, reads_as_type ? " filter=" : " f");
    put_every_size(line, desc->kernel, rank);
    put(line, " s");
    put_sizes(line, desc->stride, rank);
    put(line, " p");
    put_sizes(line, desc->pad_begin, rank);
    if (memcmp(desc->pad_begin, desc->pad_end, (size_t)rank * sizeof desc->pad_begin[0]) != 0) {
        put(line, ":");
        put_sizes(line, desc->pad_end, rank);
    }
    if (!all_equal(desc->dilation, rank, 1)) {
        put(line, " d");
        put_sizes(line, desc->dilation, rank);
    }
    if (!all_equal(desc->output_padding, rank, 0)) {
        put(line, " op");
        put_sizes(line, desc->output_padding, rank);
    }
}

static void put_types(line_writer *line, const convjit_desc *desc) {
    put(line, " ");
    put_choice(line, DATA_TYPE, (int)desc->data_type);
    if (desc->weight_type != desc->data_type) {
        put(line, " weights=");
        put_choice(line, DATA_TYPE, (int)desc->weight_type);
    }
    if (desc->bias_type != CONVJIT_F32) {
        put(line, " bias=");
        put_choice(line, DATA_TYPE, (int)desc->bias_type);
    }
    put(line, " ");
    put_choice(line, LAYOUT, (int)desc->layout);
    if (desc->weight_layout != CONVJIT_CHANNELS_FIRST) {
        put(line, " ");
        put_choice(line, WEIGHT_LAYOUT, (int)desc->weight_layout);
    }
    put(line, " ");
    put_choice(line, MATH, (int)desc->math);
}

static void put_epilogue(line_writer *line, const convjit_desc *desc) {
    if (desc->activation != CONVJIT_NONE) {
        put(line, " ");
        put_choice(line, ACTIVATION, (int)desc->activation);
    }
    if (desc->activation == CONVJIT_LEAKY_RELU || desc->activation == CONVJIT_CLAMP) {
        put_float(line, desc->activation_a);
    }
    if (desc->activation == CONVJIT_CLAMP) {
        put(line, ":");
        put_float(line, desc->activation_b);
    }
    if (desc->alpha != 1.0F) {
        put(line, " alpha=");
        put_float(line, desc->alpha);
    }
    if (desc->beta != 0.0F) {
        put(line, " beta=");
        put_float(line, desc->beta);
    }
}

size_t convjit_layer_line_format(const convjit_desc *desc, int64_t batch, char *text, size_t size) {
    line_writer line = {.text = text, .size = text != NULL ? size : 0};
    if (desc == NULL || desc->struct_size != sizeof *desc) {
        put(&line, "no convjit_desc");
        return line.length;
    }
    const int rank = desc->rank < 0 ? 0 : (desc->rank > MAX_RANK ? MAX_RANK : desc->rank);
    put(&line, "conv%s%" PRId32 "d", desc->operation == CONVJIT_TRANSPOSED ? "t" : "", desc->rank);
    if (batch >= 0) {
        put(&line, " n%" PRId64, batch);
    }
    put_shape(&line, desc, rank);
    put_types(&line, desc);
    put_epilogue(&line, desc);
    return line.length;
}

/* ----------------------------------------------------------------------------------------------------- parsing */

/* The functions below take a text from its front and return NULL, or the reason why they cannot. */

static const char *read_number(const char **text, int64_t *out) {
    const char *digits = *text + (**text == '-' ? 1 : 0);
    if (*digits < '0' || *digits > '9') {
        return "a number is missing";
    }
    char *end;
    errno = 0;
    *out = strtoll(*text, &end, 10);
    *text = end;
    return errno == ERANGE ? "a number does not fit int64" : NULL;
}

static const char *read_sizes(const char **text, int rank, int64_t *out) {
    int64_t values[MAX_RANK];
    int count = 0;
    do {
        if (count == rank) {
            return "more sizes than the layer has axes";
        }
        *text += count > 0 ? 1 : 0; /* the x */
        const char *reason = read_number(text, &values[count++]);
        if (reason != NULL) {
            return reason;
        }
    } while (**text == 'x');
    if (count != 1 && count != rank) {
        return "fewer sizes than the layer has axes";
    }
    for (int axis = 0; axis < rank; ++axis) {
        out[axis] = values[count == 1 ? 0 : axis];
    }
    return NULL;
}

static const char *read_padding(const char **text, convjit_desc *desc) {
    const char *reason = read_sizes(text, desc->rank, desc->pad_begin);
    if (reason != NULL) {
        return reason;
    }
    if (**text == ':') {
        ++*text;
        return read_sizes(text, desc->rank, desc->pad_end);
    }
    memcpy(desc->pad_end, desc->pad_begin, sizeof desc->pad_end);
    return NULL;
}

static const char *read_float(const char **text, float *out) {
    char *end;
    locale_t c_locale;
    const locale_t before = enter_c_locale(&c_locale);
    errno = 0;
    *out = strtof(*text, &end);
    leave_c_locale(c_locale, before);
    if (end == *text) {
        return "a number is missing";
    }
    *text = end;
    return errno == ERANGE && isinf(*out) ? "a number does not fit float" : NULL;
}

static const char *read_type(const char **text, convjit_type *out) {
    for (size_t i = 0; i < WORDS; ++i) {
        if (words[i].subject == DATA_TYPE && strcmp(*text, words[i].key) == 0) {
            *out = (convjit_type)words[i].choice;
            *text += strlen(*text);
            return NULL;
        }
    }
    return "the type is none of f32, f16, bf16";
}

static const char *read_activation(const char **text, convjit_activation activation, convjit_desc *desc) {
    const char *reason = NULL;
    desc->activation = activation;
    if (activation == CONVJIT_LEAKY_RELU || activation == CONVJIT_CLAMP) {
        reason = read_float(text, &desc->activation_a);
    }
    if (reason == NULL && activation == CONVJIT_CLAMP) {
        if (**text != ':') {
            return "a clamp is written clamp=LOWER:UPPER";
        }
        ++*text;
        reason = read_float(text, &desc->activation_b);
    }
    return reason;
}

typedef struct parsed_line {
    convjit_desc desc;
    int64_t batch;
    uint32_t seen; /* a bit for each subject */
} parsed_line;

static const char *read_value(const char **text, word_subject subject, int choice, parsed_line *line) {
    convjit_desc *desc = &line->desc;
    switch (subject) {
    case BATCH:
        return **text == '-' ? "a batch is not negative" : read_number(text, &line->batch);
    case IN_CHANNELS:
        return read_number(text, &desc->in_channels);
    case OUT_CHANNELS:
        return read_number(text, &desc->out_channels);
    case GROUPS:
        return read_number(text, &desc->groups);
    case IN_SIZE:
        return read_sizes(text, desc->rank, desc->in_size);
    case BATCH_HINT:
        return read_number(text, &desc->batch_hint);
    case KERNEL:
        return read_sizes(text, desc->rank, desc->kernel);
    case STRIDE:
        return read_sizes(text, desc->rank, desc->stride);
    case PADDING:
        return read_padding(text, desc);
    case DILATION:
        return read_sizes(text, desc->rank, desc->dilation);
    case OUTPUT_PADDING:
        return read_sizes(text, desc->rank, desc->output_padding);
    case DATA_TYPE:
        desc->data_type = (convjit_type)choice;
        return NULL;
    case WEIGHT_TYPE:
        return read_type(text, &desc->weight_type);
    case BIAS_TYPE:
        return read_type(text, &desc->bias_type);
    case LAYOUT:
        desc->layout = (convjit_layout)choice;
        return NULL;
    case WEIGHT_LAYOUT:
        desc->weight_layout = (convjit_layout)choice;
        return NULL;
    case MATH:
        desc->math = (convjit_math)choice;
        return NULL;
    case ACTIVATION:
        return read_activation(text, (convjit_activation)choice, desc);
    case ALPHA:
        return read_float(text, &desc->alpha);
    case BETA:
        return read_float(text, &desc->beta);
    }
    return "unknown"; /* not reached: every subject returns above */
}

/* The index of the word: all of it (f32), else its part up to '=' or a number (f3x3, clamp=0:6). WORDS if unknown. */
static size_t find_word(const char *text, size_t *key_size) {
    *key_size = strlen(text);
    for (int pass = 0; pass < 2; ++pass) {
        for (size_t i = 0; i < WORDS; ++i) {
            if (strlen(words[i].key) == *key_size && memcmp(text, words[i].key, *key_size) == 0) {
                return i;
            }
        }
        *key_size = strcspn(text, "=-0123456789");
        *key_size += text[*key_size] == '=' ? 1 : 0;
    }
    return WORDS;
}

static const char *read_word(const char *text, parsed_line *line) {
    size_t key_size;
    const size_t index = find_word(text, &key_size);
    if (index == WORDS) {
        return "unknown";
    }
    const word_subject subject = words[index].subject;
    if ((line->seen & 1U << subject) != 0) {
        return subject == DATA_TYPE ? "a second data type (a filter of 16 or 32 is written filter=16)"
                                    : "repeats an earlier word";
    }
    line->seen |= 1U << subject;
    text += key_size;
    const char *reason = read_value(&text, subject, words[index].choice, line);
    return reason == NULL && *text != '\0' ? "goes on after its end" : reason;
}

static const char *read_operation(const char *text, parsed_line *line) {
    for (int i = 0; i < OPERATIONS; ++i) {
        if (strcmp(text, operations[i]) == 0) {
            line->desc.operation = i < MAX_RANK ? CONVJIT_CONVOLUTION : CONVJIT_TRANSPOSED;
            line->desc.rank = i % MAX_RANK + 1;
            return NULL;
        }
    }
    return "a layer starts with conv1d, conv2d, conv3d, convt1d, convt2d or convt3d";
}

static convjit_status finish(parsed_line *line) {
    static const struct {
        word_subject subject;
        const char *word;
    } required[] = {{IN_CHANNELS, "c (in_channels)"}, {OUT_CHANNELS, "k (out_channels)"}, {KERNEL, "f (kernel)"}};
    for (size_t i = 0; i < sizeof required / sizeof required[0]; ++i) {
        CJ_RETURN_IF((line->seen & 1U << required[i].subject) == 0, CONVJIT_INVALID_ARGUMENT,
                     "layer line: word %s is missing", required[i].word);
    }
    if ((line->seen & 1U << WEIGHT_TYPE) == 0) {
        line->desc.weight_type = line->desc.data_type;
    }
    return CONVJIT_SUCCESS;
}

convjit_status convjit_layer_line_parse(const char *line, convjit_desc *desc, int64_t *batch) {
    static const char space[] = " \t\r\n";
    CJ_RETURN_IF(line == NULL, CONVJIT_INVALID_ARGUMENT, "line is NULL");
    CJ_RETURN_IF(desc == NULL, CONVJIT_INVALID_ARGUMENT, "desc is NULL");
    parsed_line parsed = {.desc = CONVJIT_DESC_INIT, .batch = -1};
    const char *rest = line + strspn(line, space);
    CJ_RETURN_IF(*rest == '\0', CONVJIT_INVALID_ARGUMENT, "layer line: it is empty");
    for (bool first = true; *rest != '\0'; first = false) {
        char word[192]; /* the longest word is p with six numbers of at most 20 characters */
        const size_t size = strcspn(rest, space);
        CJ_RETURN_IF(size >= sizeof word, CONVJIT_INVALID_ARGUMENT, "layer line: word \"%.60s...\": too long", rest);
        memcpy(word, rest, size);
        word[size] = '\0';
        const char *reason = first ? read_operation(word, &parsed) : read_word(word, &parsed);
        CJ_RETURN_IF(reason != NULL, CONVJIT_INVALID_ARGUMENT, "layer line: word \"%s\": %s", word, reason);
        rest += size;
        rest += strspn(rest, space);
    }
    CJ_TRY(finish(&parsed));
    *desc = parsed.desc;
    if (batch != NULL) {
        *batch = parsed.batch;
    }
    return CONVJIT_SUCCESS;
}
