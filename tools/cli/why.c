/* why.c - convjit run --why: how each layer would be computed, and why so. */
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "report.h"
#include "why.h"

/* Lines as the library writes them, one layer's at a time. */
typedef struct lines {
    bool json;
    size_t count;
} lines;

static void print_line(void *state, const char *line) {
    lines *of = state;
    if (of->json) {
        (void)fputs(of->count > 0 ? ",\n      " : "\n      ", stdout);
        json_text(stdout, line);
    } else {
        (void)printf("%s\n", line);
    }
    of->count++;
}

/* True if some family computes the layer; what failed is written to `notes` too. */
static bool explain(const char *target, const named_layer *layer, bool json, FILE *notes) {
    char line[CONVJIT_LAYER_LINE_MAX];
    lines of = {json, 0};
    (void)convjit_layer_line_format(&layer->desc, layer->batch, line, sizeof line);
    if (json) {
        (void)fputs("{\"name\": ", stdout);
        json_text(stdout, layer->name);
        (void)fputs(", \"line\": ", stdout);
        json_text(stdout, line);
        (void)fputs(", \"why\": [", stdout);
    } else {
        (void)printf("%s: %s\n", layer->name, line);
    }
    const convjit_status status = convjit_explain(&layer->desc, layer->batch, target, print_line, &of);
    (void)fputs(json ? "]}" : "", stdout);
    if (status != CONVJIT_SUCCESS) {
        (void)fprintf(notes, "%s: %s: %s\n", layer->name, convjit_status_name(status), convjit_last_error());
    }
    return status == CONVJIT_SUCCESS;
}

/* Where run would run the layers, if the command line does not say. */
static void find_target(const arguments *given, char *target, size_t size) {
    char ignored[256];
    memory *gpu = given->target != NULL ? NULL : memory_open_cuda(ignored, sizeof ignored);
    (void)snprintf(target, size, "%s",
                   given->target != NULL ? given->target
                   : gpu != NULL         ? memory_target(gpu)
                                         : "cpu");
    memory_close(gpu);
}

static bool is_target(const char *name) {
    convjit_desc desc = CONVJIT_DESC_INIT;
    desc.in_channels = desc.out_channels = 1;
    return convjit_supported(&desc, name) != CONVJIT_INVALID_ARGUMENT;
}

int run_why(const arguments *given, const layer_list *list) {
    char target[32];
    char *text = NULL;
    size_t size = 0, computed = 0;
    find_target(given, target, sizeof target);
    if (!is_target(target)) {
        return usage_error("--target: %s", convjit_last_error());
    }
    FILE *notes = open_memstream(&text, &size);
    if (notes == NULL) {
        return usage_error("host memory is used up");
    }
    (void)fputs(given->json ? "{\n  \"layers\": [\n    " : "", stdout);
    for (size_t i = 0; i < list->count; i++) {
        (void)fputs(i == 0 ? "" : given->json ? ",\n    " : "\n", stdout);
        computed += explain(target, &list->layers[i], given->json, notes);
    }
    (void)fputs(given->json ? "\n  ]\n}\n" : "", stdout);
    layers_print_refused(list, notes);
    if (fclose(notes) == 0 && size > 0) {
        (void)fflush(stdout);
        (void)fputs(text, stderr);
    }
    free(text);
    return computed == list->count && list->refused_count == 0 ? CLI_PASSED : CLI_FAILED;
}
