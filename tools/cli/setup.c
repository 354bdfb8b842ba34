#include "setup.h"

#include <stdlib.h>
#include <string.h>

static bool read_distribution(const char *word, reference_distribution *out) {
    *out = REFERENCE_NORMAL;
    if (word == NULL || reference_distribution_find(word, out)) {
        return true;
    }
    char all[256] = "";
    size_t length = 0;
    for (int i = 0; i < REFERENCE_DISTRIBUTIONS && length < sizeof all; i++) {
        const char *known = reference_distribution_word((reference_distribution)i);
        length += (size_t)snprintf(all + length, sizeof all - length, "%s%s", i > 0 ? ", " : "", known);
    }
    (void)usage_error("--distribution: '%s' is none of %s", word, all);
    return false;
}

/* "AxB" to numbers; returns how many, 0 after a message. */
static int32_t read_in_size(const char *text, int64_t in_size[3]) {
    const char *next = text;
    for (int32_t axis = 0; axis < 3; axis++) {
        char *end = NULL;
        in_size[axis] = strtoll(next, &end, 10);
        if (end == next || in_size[axis] < 1) {
            break;
        }
        if (*end == '\0') {
            return axis + 1;
        }
        if (*end != 'x') {
            break;
        }
        next = end + 1;
    }
    (void)usage_error("--in: '%s' is not one to three whole numbers joined by x", text);
    return 0;
}

/* Layers without a size need --in, and one of their rank. */
static bool check_in_size(const layer_list *list, int32_t given_rank) {
    for (size_t i = 0; i < list->count; i++) {
        const named_layer *layer = &list->layers[i];
        if (layer->desc.in_size[0] == 0 && layer->desc.rank != given_rank) {
            (void)usage_error("layer %s: its line gives no size, so --in must give %d numbers, not %d", layer->name,
                              layer->desc.rank, given_rank);
            return false;
        }
    }
    return true;
}

enum { CHECK_MOST = 1 << 30, REPEAT_MOST = 1 << 20 };

static bool read_setup(const arguments *given, const layer_list *list, trial_setup *out) {
    int64_t seed = 0;
    const int32_t in_rank = given->in_size != NULL ? read_in_size(given->in_size, out->in_size) : 0;
    if ((given->in_size != NULL && in_rank == 0) || !check_in_size(list, in_rank) ||
        !read_distribution(given->distribution, &out->distribution) ||
        !arguments_number("--seed", given->seed, INT64_MAX, 1, &seed) ||
        !arguments_number("--check", given->check, CHECK_MOST, 4096, &out->check) ||
        !arguments_number("--repeat", given->repeat, REPEAT_MOST, -1, &out->repeat)) {
        return false;
    }
    out->seed = (uint64_t)seed;
    return true;
}

/* Fills in memory and context; `note` says why it is the cpu where nobody asked for it. */
static bool open_target(const arguments *given, trial_setup *out, char *note, size_t size) {
    char reason[256] = "";
    const bool cpu = given->target != NULL && strcmp(given->target, "cpu") == 0;
    out->memory = cpu ? NULL : memory_open_cuda(reason, sizeof reason);
    if (out->memory != NULL) {
        const char *here = memory_target(out->memory);
        if (given->target != NULL && strcmp(given->target, here) != 0) {
            (void)usage_error("--target: %s cannot run here, the GPU is %s; convjit warm builds for others",
                              given->target, here);
            return false;
        }
        return session_open(given, NULL, &out->context);
    }
    if (!cpu && given->target != NULL) {
        (void)usage_error("--target: %s cannot run here: %s", given->target, reason);
        return false;
    }
    if (!cpu) {
        (void)snprintf(note, size, "no GPU (%s): running on the target cpu", reason);
    }
    out->memory = memory_open_host();
    if (out->memory == NULL) {
        (void)usage_error("host memory is used up");
        return false;
    }
    return session_open(given, "cpu", &out->context);
}

bool setup_open(const arguments *given, const layer_list *list, trial_setup *out, char *note, size_t size) {
    if (!read_setup(given, list, out) || !open_target(given, out, note, size)) {
        return false;
    }
    if (out->repeat < 0) {
        out->repeat = memory_is_cuda(out->memory) ? 20 : 1;
    }
    return true;
}

void setup_close(trial_setup *of) {
    convjit_close(of->context);
    memory_close(of->memory);
}
