/* layers.c - layer lines with an optional name. */
#include "layers.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "models.h"

/* Takes the name off "name: line": the first word, if it ends with a colon. Returns the rest. */
static const char *take_name(const char *line, char *name, size_t size) {
    const size_t length = strcspn(line, " \t");
    if (length < 2 || line[length - 1] != ':') {
        return line;
    }
    (void)snprintf(name, size, "%.*s", (int)(length - 1), line);
    return line + length + strspn(line + length, " \t");
}

/* Room for one more element of `size` bytes; NULL, after a message, when memory is used up. */
static void *grow(void *elements, size_t size, size_t count, size_t *capacity) {
    if (count < *capacity) {
        return elements;
    }
    const size_t wanted = *capacity > 0 ? 2 * *capacity : 16;
    void *grown = realloc(elements, wanted * size);
    if (grown == NULL) {
        (void)usage_error("host memory is used up");
        return NULL;
    }
    *capacity = wanted;
    return grown;
}

named_layer *layers_append(layer_list *list) {
    named_layer *grown = grow(list->layers, sizeof *grown, list->count, &list->capacity);
    if (grown == NULL) {
        return NULL;
    }
    list->layers = grown;
    return &grown[list->count++];
}

bool layers_add_refused(layer_list *list, const char *name, const char *reason) {
    refused_layer *grown = grow(list->refused, sizeof *grown, list->refused_count, &list->refused_capacity);
    if (grown == NULL) {
        return false;
    }
    list->refused = grown;
    refused_layer *added = &grown[list->refused_count++];
    (void)snprintf(added->name, sizeof added->name, "%s", name);
    (void)snprintf(added->reason, sizeof added->reason, "%s", reason);
    return true;
}

void layers_print_refused(const layer_list *list, FILE *out) {
    for (size_t i = 0; i < list->refused_count; i++) {
        (void)fprintf(out, "%s: %s\n", list->refused[i].name, list->refused[i].reason);
    }
}

/* `place` is where the line stands, for the message. */
static bool add(layer_list *list, const char *place, const char *line) {
    named_layer *layer = layers_append(list);
    if (layer == NULL) {
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

/* Is this the heading "# suite NAME"? Then `inside` says whether it is the wanted one. */
static bool read_heading(const char *line, const char *suite, bool *inside) {
    static const char heading[] = "# suite ";
    if (strncmp(line, heading, sizeof heading - 1) != 0) {
        return false;
    }
    const char *name = line + sizeof heading - 1;
    *inside = strcspn(name, " \r\n") == strlen(suite) && strncmp(name, suite, strlen(suite)) == 0;
    return true;
}

/* Layer lines of an open file, of one suite or (NULL) all of them. False after a message. */
static bool add_lines(layer_list *list, FILE *file, const char *name, const char *suite) {
    char *line = NULL;
    size_t capacity = 0;
    bool fine = true;
    bool inside = suite == NULL;
    for (int number = 1; fine && getline(&line, &capacity, file) >= 0; number++) {
        char place[320];
        if (suite != NULL && read_heading(line, suite, &inside)) {
            continue;
        }
        const char *text = trim(line);
        (void)snprintf(place, sizeof place, "%s, line %d", name, number);
        fine = !inside || *text == '\0' || add(list, place, text);
    }
    free(line);
    if (fine && ferror(file) != 0) {
        (void)usage_error("%s cannot be read: %s", name, strerror(errno));
        fine = false;
    }
    return fine;
}

/* `option` is where the path was given, for the message. */
static bool add_file(layer_list *list, const char *option, const char *path, const char *suite) {
    if (models_is_model(path)) {
        return models_read(path, list);
    }
    const bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "r");
    if (file == NULL) {
        (void)usage_error("%s%s cannot be read: %s", option, path, strerror(errno));
        return false;
    }
    const bool fine = add_lines(list, file, standard ? "standard input" : path, suite);
    if (!standard) {
        (void)fclose(file);
    }
    return fine;
}

/* A layer line has spaces; where a word has none, it is a file. */
static bool add_word(layer_list *list, const char *word, int number, const char *suite) {
    char place[32];
    (void)snprintf(place, sizeof place, "layer %d", number);
    return strpbrk(word, " \t") != NULL ? add(list, place, word) : add_file(list, "", word, suite);
}

/* A line without batch, and where it stood. */
typedef struct spelled {
    char *line;
    size_t index;
} spelled;

static int compare_spelled(const void *a, const void *b) {
    const spelled *x = a;
    const spelled *y = b;
    const int order = strcmp(x->line, y->line);
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

/* Marks in `same` the layers whose line stood before, and frees the lines. */
static void mark_same(spelled *lines, size_t count, bool *same) {
    qsort(lines, count, sizeof *lines, compare_spelled);
    for (size_t i = 1; i < count; i++) {
        same[lines[i].index] = strcmp(lines[i].line, lines[i - 1].line) == 0;
    }
    for (size_t i = 0; i < count; i++) {
        free(lines[i].line);
    }
}

size_t layers_unite(layer_list *list) {
    char line[CONVJIT_LAYER_LINE_MAX];
    spelled *lines = calloc(list->count + 1, sizeof *lines);
    bool *same = calloc(list->count + 1, sizeof *same);
    size_t spelled_count = 0;
    for (size_t i = 0; lines != NULL && i < list->count; i++) {
        (void)convjit_layer_line_format(&list->layers[i].desc, -1, line, sizeof line);
        char *copy = strdup(line);
        if (copy != NULL) { /* else it stays, and costs a look at the cache */
            lines[spelled_count++] = (spelled){copy, i};
        }
    }
    if (lines != NULL && same != NULL) {
        mark_same(lines, spelled_count, same);
    }
    size_t kept = 0;
    for (size_t i = 0; same != NULL && i < list->count; i++) {
        list->layers[kept] = list->layers[i];
        kept += !same[i];
    }
    const size_t gone = same != NULL ? list->count - kept : 0;
    list->count -= gone;
    free(same);
    free(lines);
    return gone;
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

static bool override_hint(layer_list *list, const char *word) {
    const bool own = strcmp(word, "own") == 0;
    int64_t hint = 0;
    if (!own && !arguments_number("--hint", word, INT64_MAX, 0, &hint)) {
        return false;
    }
    for (size_t i = 0; i < list->count; i++) {
        list->layers[i].desc.batch_hint = own ? list->layers[i].batch : hint;
    }
    return true;
}

bool layers_read(const arguments *given, layer_list *out) {
    *out = (layer_list){0};
    bool fine = true;
    for (int i = 0; fine && i < given->line_count; i++) {
        fine = add_word(out, given->lines[i], i + 1, given->suite);
    }
    fine = fine && (given->file == NULL || add_file(out, "--file: ", given->file, given->suite));
    if (fine && out->count == 0 && out->refused_count == 0) {
        (void)usage_error("no layer given, neither as a line nor in a file");
        fine = false;
    }
    fine = fine && (given->math == NULL || override_math(out, given->math));
    fine = fine && (given->hint == NULL || override_hint(out, given->hint));
    if (!fine) {
        layers_free(out);
    }
    return fine;
}

void layers_free(layer_list *list) {
    free(list->layers);
    free(list->refused);
    *list = (layer_list){0};
}
