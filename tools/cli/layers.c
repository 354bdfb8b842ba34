/* layers.c - layer lines with an optional name. */
#include "layers.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Takes the name off "name: line": the first word, if it ends with a colon. Returns the rest. */
static const char *take_name(const char *line, char *name, size_t size) {
    const size_t length = strcspn(line, " \t");
    if (length < 2 || line[length - 1] != ':') {
        return line;
    }
    (void)snprintf(name, size, "%.*s", (int)(length - 1), line);
    return line + length + strspn(line + length, " \t");
}

static named_layer *append(layer_list *list) {
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity > 0 ? 2 * list->capacity : 16;
        named_layer *grown = realloc(list->layers, capacity * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        list->layers = grown;
        list->capacity = capacity;
    }
    return &list->layers[list->count++];
}

/* `place` is where the line stands, for the message. */
static bool add(layer_list *list, const char *place, const char *line) {
    named_layer *layer = append(list);
    if (layer == NULL) {
        (void)usage_error("%s: host memory is used up", place);
        return false;
    }
    (void)snprintf(layer->name, sizeof layer->name, "%zu", list->count);
    line = take_name(line, layer->name, sizeof layer->name);
    if (convjit_layer_line_parse(line, &layer->desc, &layer->batch) != CONVJIT_SUCCESS) {
        (void)usage_error("%s: %s", place, convjit_last_error());
        return false;
    }
    layer->batch = layer->batch < 0 ? 1 : layer->batch;
    return true;
}

/* Cuts a comment and the spaces around a line; returns its first character. */
static char *trim(char *line) {
    line[strcspn(line, "#\n")] = '\0';
    line += strspn(line, " \t\r");
    for (size_t length = strlen(line); length > 0 && isspace((unsigned char)line[length - 1]); length--) {
        line[length - 1] = '\0';
    }
    return line;
}

static bool add_file(layer_list *list, const char *path) {
    const bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "r");
    char *line = NULL;
    size_t capacity = 0;
    bool fine = file != NULL;
    if (!fine) {
        (void)usage_error("--file: %s cannot be read: %s", path, strerror(errno));
    }
    for (int number = 1; fine && getline(&line, &capacity, file) >= 0; number++) {
        char place[320];
        const char *text = trim(line);
        (void)snprintf(place, sizeof place, "%s, line %d", standard ? "standard input" : path, number);
        fine = *text == '\0' || add(list, place, text);
    }
    if (fine && ferror(file) != 0) {
        (void)usage_error("--file: %s cannot be read: %s", path, strerror(errno));
        fine = false;
    }
    free(line);
    if (file != NULL && !standard) {
        (void)fclose(file);
    }
    return fine;
}

static bool override_math(layer_list *list, const char *word) {
    static const char *const NAMES[] = {"fp32", "fp32_block", "tf32"}; /* in the order of convjit_math */
    for (int math = 0; math < 3; math++) {
        if (strcmp(word, NAMES[math]) == 0) {
            for (size_t i = 0; i < list->count; i++) {
                list->layers[i].desc.math = (convjit_math)math;
            }
            return true;
        }
    }
    (void)usage_error("--math: '%s' is none of fp32, fp32_block, tf32", word);
    return false;
}

bool layers_read(const arguments *given, layer_list *out) {
    *out = (layer_list){0};
    bool fine = true;
    for (int i = 0; fine && i < given->line_count; i++) {
        char place[32];
        (void)snprintf(place, sizeof place, "layer %d", i + 1);
        fine = add(out, place, given->lines[i]);
    }
    fine = fine && (given->file == NULL || add_file(out, given->file));
    if (fine && out->count == 0) {
        (void)usage_error("no layer line given, neither as a word nor with --file");
        fine = false;
    }
    fine = fine && (given->math == NULL || override_math(out, given->math));
    if (!fine) {
        layers_free(out);
    }
    return fine;
}

void layers_free(layer_list *list) {
    free(list->layers);
    *list = (layer_list){0};
}
