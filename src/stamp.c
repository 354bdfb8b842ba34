#include "stamp.h"

#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "embedded.h"
#include "status.h"

void cj_stamp_int(cj_text *out, const char *name, int64_t value, const char *meaning) {
    const char *suffix = value > INT_MAX || value < INT_MIN ? "LL" : "";
    cj_text_printf(out, "#define %s %lld%s /* %s */\n", name, (long long)value, suffix, meaning);
}

void cj_stamp_float(cj_text *out, const char *name, float value, const char *meaning) {
    /* As bits: exact, and the only way to write an infinity. */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    /* The caller's locale may write 0,5, and another comment would be another key. */
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    const locale_t before = uselocale(c_locale);
    cj_text_printf(out, "#define %s __int_as_float(%ld) /* %.9g: %s */\n", name, (long)(int32_t)bits, (double)value,
                   meaning);
    uselocale(before);
    if (c_locale != (locale_t)0) {
        freelocale(c_locale);
    }
}

static const cj_embedded_file *find_file(const char *folder, const char *name, size_t length) {
    const size_t folder_length = strlen(folder);
    for (const cj_embedded_file *file = cj_embedded_files; file->name; ++file) {
        if (strncmp(file->name, folder, folder_length) == 0 && strlen(file->name) == folder_length + length &&
            strncmp(file->name + folder_length, name, length) == 0) {
            return file;
        }
    }
    return NULL;
}

/* Appends a file. A line `#include "NAME"` becomes that file, looked for in the target's own folder first; kernel files
 * include each of their headers once and headers include nothing, so nothing comes twice. #line keeps the numbers of
 * compiler messages those of the files. */
static convjit_status add_file(const char *words, const cj_embedded_file *file, int depth, cj_text *out) {
    static const char include[] = "#include \"";
    int line_number = 1;
    CJ_RETURN_IF(depth > 2, CONVJIT_INTERNAL, "stamp failed for %s: includes nest deeper than 2", file->name);
    cj_text_printf(out, "#line 1 \"%s\"\n", file->name);
    for (const char *line = file->text; *line; ++line_number) {
        const char *newline = strchr(line, '\n');
        const size_t length = newline ? (size_t)(newline - line) + 1 : strlen(line);
        if (strncmp(line, include, sizeof include - 1) == 0) {
            const char *name = line + sizeof include - 1;
            const size_t name_length = strcspn(name, "\"\n");
            const cj_embedded_file *header = find_file(words, name, name_length);
            header = header ? header : find_file("", name, name_length);
            CJ_RETURN_IF(!header, CONVJIT_INTERNAL, "stamp failed for %s: includes \"%.*s\", which is not embedded",
                         file->name, (int)name_length, name);
            CJ_TRY(add_file(words, header, depth + 1, out));
            cj_text_printf(out, "#line %d \"%s\"\n", line_number + 1, file->name);
        } else {
            cj_text_add(out, line, length);
        }
        line += length;
    }
    return CONVJIT_SUCCESS;
}

/* The constants every family shares. */
static void add_common(const cj_problem *problem, const cj_plan *plan, cj_text *out) {
    const convjit_desc *desc = &problem->desc;
    cj_stamp_int(out, "CJ_THREADS", plan->threads, "threads of a block");
    cj_stamp_int(out, "CJ_DATA_TYPE", desc->data_type, "of x, y, z: 0 f32, 1 f16, 2 bf16");
    cj_stamp_int(out, "CJ_WEIGHT_TYPE", desc->weight_type, "of w");
    cj_stamp_int(out, "CJ_BIAS_TYPE", desc->bias_type, "of bias");
    cj_stamp_int(out, "CJ_CHANNELS_LAST", problem->channels_last, "x, y, z are NHWC");
    cj_stamp_int(out, "CJ_WEIGHTS_LAST", desc->weight_layout == CONVJIT_CHANNELS_LAST, "w is KRSC");
    cj_stamp_int(out, "CJ_TRANSPOSED", problem->transposed, "transposed convolution");
    cj_stamp_int(out, "CJ_GROUPS", desc->groups, "groups");
    cj_stamp_int(out, "CJ_GROUP_IN", problem->group_in, "input channels of a group");
    cj_stamp_int(out, "CJ_GROUP_OUT", problem->group_out, "output channels of a group");
    cj_stamp_int(out, "CJ_DYNAMIC", problem->dynamic, "spatial sizes come with the launch");
    for (int d = 0; d < CJ_DIMS; ++d) {
        const struct {
            const char *name;
            int64_t value;
        } constants[] = {
            {"CJ_IN", problem->in_size[d]},    {"CJ_OUT", problem->out_size[d]},      {"CJ_KERNEL", problem->kernel[d]},
            {"CJ_STRIDE", problem->stride[d]}, {"CJ_DILATION", problem->dilation[d]}, {"CJ_PAD", problem->pad_begin[d]},
        };
        for (size_t i = 0; i < sizeof constants / sizeof *constants; ++i) {
            char name[24];
            snprintf(name, sizeof name, "%s_%c", constants[i].name, "ZYX"[d]);
            cj_stamp_int(out, name, constants[i].value, "of the layer");
        }
    }
    cj_stamp_float(out, "CJ_ALPHA", desc->alpha, "y = act(alpha * conv + bias + beta * z)");
    cj_stamp_float(out, "CJ_BETA", desc->beta, "...");
    cj_stamp_int(out, "CJ_HAS_Z", desc->beta != 0.0F, "z is read");
    cj_stamp_int(out, "CJ_ACTIVATION", desc->activation, "number of convjit_activation");
    cj_stamp_float(out, "CJ_ACTIVATION_A", desc->activation_a, "slope or lower bound");
    cj_stamp_float(out, "CJ_ACTIVATION_B", desc->activation_b, "upper bound");
}

convjit_status cj_stamp(const cj_problem *problem, const cj_plan *plan, const cj_target *target, cj_text *out) {
    char name[32];
    const int length = snprintf(name, sizeof name, "%s.cu", plan->family->name);
    const cj_embedded_file *file = find_file("", name, (size_t)length);
    CJ_RETURN_IF(!file, CONVJIT_INTERNAL, "stamp failed: %s is not embedded", name);
    const cj_problem seen = plan->family->view ? plan->family->view(problem) : *problem;
    add_common(&seen, plan, out);
    plan->family->constants(problem, plan, out);
    CJ_TRY(add_file(target->kind == CJ_TARGET_CPU ? "cpu/" : "cuda/", file, 0, out));
    CJ_RETURN_IF(out->failed, CONVJIT_OUT_OF_MEMORY, "stamp failed for family %s: no memory for the source",
                 plan->family->name);
    return CONVJIT_SUCCESS;
}
