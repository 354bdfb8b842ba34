#include "onnx_case.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "onnx_reader.h"

/* --------------------------------------------------------------------------------------------------------- finding */

typedef struct path_list {
    char **paths;
    size_t count;
} path_list;

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Adds every entry of a folder as a path of its own; dot files are left out. */
static bool list_folder(const char *folder, path_list *list) {
    DIR *directory = opendir(folder);
    const struct dirent *entry;
    bool complete = true;
    while (directory != NULL && complete && (entry = readdir(directory)) != NULL) {
        char *path = NULL;
        char **grown;
        if (entry->d_name[0] == '.') {
            continue;
        }
        grown = realloc(list->paths, (list->count + 1) * sizeof *grown);
        complete = grown != NULL && asprintf(&path, "%s/%s", folder, entry->d_name) >= 0;
        if (grown != NULL) {
            list->paths = grown;
        }
        if (complete) {
            list->paths[list->count++] = path;
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return complete;
}

static bool has_layer(const char *folder) {
    char path[TESTING_PATH_MAX], reason[ONNX_REASON_MAX];
    onnx_model model;
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    if (access(path, R_OK) != 0) {
        return false;
    }
    if (!onnx_model_load(path, &model, reason)) {
        return true; /* kept, so that running it tells the reason */
    }
    const bool found = model.layer_count > 0;
    onnx_model_free(&model);
    return found;
}

void onnx_case_list_free(char **folders, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        free(folders[i]);
    }
    free(folders);
}

char **onnx_case_find(const char *root, size_t *count) {
    path_list suites = {0}, cases = {0};
    bool complete = list_folder(root, &suites);
    for (size_t i = 0; i < suites.count; ++i) {
        complete = complete && list_folder(suites.paths[i], &cases);
    }
    onnx_case_list_free(suites.paths, suites.count);
    *count = 0;
    for (size_t i = 0; i < cases.count; ++i) {
        if (complete && has_layer(cases.paths[i])) {
            cases.paths[(*count)++] = cases.paths[i];
        } else {
            free(cases.paths[i]);
        }
    }
    if (*count == 0) {
        free(cases.paths);
        return NULL;
    }
    qsort(cases.paths, *count, sizeof *cases.paths, by_name);
    return cases.paths;
}

/* --------------------------------------------------------------------------------------------------------- loading */

/* One data set of a case. */
typedef struct data_set {
    onnx_model model;
    const onnx_layer *node;
    onnx_tensor inputs[3]; /* in the order of the graph's inputs */
    size_t input_count;
    onnx_tensor expected;
    const onnx_tensor *x, *w, *bias;
    reference_layer layer;
} data_set;

__attribute__((format(printf, 4, 5))) static onnx_verdict say(onnx_verdict verdict, char *text, size_t size,
                                                              const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(text, size, format, args);
    va_end(args);
    return verdict;
}

static void data_set_free(data_set *set) {
    for (size_t i = 0; i < set->input_count; ++i) {
        onnx_tensor_free(&set->inputs[i]);
    }
    onnx_tensor_free(&set->expected);
    onnx_model_free(&set->model);
}

/* The value of a name: an input that was read from its file, or an initialiser. */
static const onnx_tensor *find_value(const data_set *set, const char *name) {
    for (size_t i = 0; i < set->input_count && name != NULL; ++i) {
        if (strcmp(set->model.inputs[i], name) == 0) {
            return &set->inputs[i];
        }
    }
    return name != NULL ? onnx_model_weight(&set->model, name) : NULL;
}

static onnx_verdict load_tensors(const char *folder, int number, data_set *set, char *text, size_t size) {
    char path[TESTING_PATH_MAX], reason[ONNX_REASON_MAX];
    for (size_t i = 0; i < set->model.input_count; ++i) {
        snprintf(path, sizeof path, "%s/test_data_set_%d/input_%zu.pb", folder, number, i);
        if (!onnx_tensor_load(path, &set->inputs[i], reason)) {
            return say(ONNX_FAILED, text, size, "%s", reason);
        }
        set->input_count = i + 1;
    }
    snprintf(path, sizeof path, "%s/test_data_set_%d/output_0.pb", folder, number);
    if (!onnx_tensor_load(path, &set->expected, reason)) {
        return say(ONNX_FAILED, text, size, "%s", reason);
    }
    return ONNX_PASSED;
}

/* Joins node and tensors to a layer; every count that memory is read by is checked. */
static onnx_verdict join(data_set *set, char *text, size_t size) {
    set->x = find_value(set, set->node->x);
    set->w = find_value(set, set->node->w);
    set->bias = find_value(set, set->node->bias);
    const convjit_desc *desc = &set->node->desc;
    if (set->x == NULL || set->w == NULL || (set->node->bias != NULL && set->bias == NULL) || set->x->rank < 3) {
        return say(ONNX_FAILED, text, size, "a value of the node is neither an input nor an initialiser");
    }
    if (reference_layer_make(desc, set->x->dims[0], &set->x->dims[2], &set->layer) != CONVJIT_SUCCESS) {
        return say(ONNX_FAILED, text, size, "%s", convjit_last_error());
    }
    if (set->x->count != set->layer.x_count || set->w->count != set->layer.w_count ||
        (set->bias != NULL && set->bias->count != set->layer.bias_count)) {
        return say(ONNX_FAILED, text, size, "an input has not the shape that the model says");
    }
    if (set->expected.rank != desc->rank + 2 || set->expected.count != set->layer.y_count ||
        memcmp(&set->expected.dims[2], set->layer.out_size, (size_t)desc->rank * sizeof *set->layer.out_size) != 0) {
        return say(ONNX_FAILED, text, size, "the output's shape is not the expected one");
    }
    return ONNX_PASSED;
}

static onnx_verdict load(const char *folder, int number, data_set *set, char *text, size_t size) {
    char path[TESTING_PATH_MAX], reason[ONNX_REASON_MAX];
    *set = (data_set){0};
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    if (!onnx_model_load(path, &set->model, reason)) {
        return say(ONNX_FAILED, text, size, "%s", reason);
    }
    if (set->model.layer_count != 1 || set->model.other != NULL) {
        return say(ONNX_SKIPPED, text, size, "the graph is more than one layer: %zu convolutions, other nodes: %s",
                   set->model.layer_count, set->model.other != NULL ? set->model.other : "none");
    }
    set->node = &set->model.layers[0];
    if (set->node->refused[0] != '\0') {
        return say(ONNX_FAILED, text, size, "%s", set->node->refused);
    }
    if (set->model.input_count > sizeof set->inputs / sizeof *set->inputs) {
        return say(ONNX_SKIPPED, text, size, "the graph has %zu inputs", set->model.input_count);
    }
    const onnx_verdict loaded = load_tensors(folder, number, set, text, size);
    return loaded == ONNX_PASSED ? join(set, text, size) : loaded;
}

/* --------------------------------------------------------------------------------------------------------- checking */

/* Is `got` what the conformance suite expects, by the suite's own tolerance? That is one for float32: other maths
 * promise less where numbers cancel each other out, which the comparison with float64 holds them to. */
static bool as_expected(double got, double want) {
    return fabs(got - want) <= 1e-7 + 1e-3 * fabs(want); /* its rtol and atol; a NaN fails */
}

static onnx_verdict check_reference(const data_set *set, char *text, size_t size) {
    const void *bias = set->bias != NULL ? set->bias->data : NULL;
    for (int64_t i = 0; i < set->layer.y_count; ++i) {
        const double want = reference_get(set->expected.data, set->expected.type, i);
        const double got = reference_compute(&set->layer, set->x->data, set->w->data, bias, NULL, i).value;
        if (!as_expected(got, want)) {
            return say(ONNX_FAILED, text, size, "the reference computes %.9g for output %lld, the case expects %.9g",
                       got, (long long)i, want);
        }
    }
    return ONNX_PASSED;
}

static onnx_verdict run(numerics *on, convjit_math math, const data_set *set, char *text, size_t size) {
    void *y = malloc((size_t)(set->layer.y_count * reference_type_bytes(set->layer.desc.data_type)) + 1);
    numerics_job job = {.layer = set->layer, .x = set->x->data, .w = set->w->data, .y = y};
    job.bias = set->bias != NULL ? set->bias->data : NULL;
    job.layer.desc.math = math;
    if (y == NULL) {
        return say(ONNX_FAILED, text, size, "no memory for the output");
    }
    if (convjit_supported(&job.layer.desc, on->target) == CONVJIT_UNSUPPORTED) {
        free(y);
        return say(ONNX_REFUSED, text, size, "%s", convjit_last_error());
    }
    onnx_verdict verdict = numerics_run(on, &job, text, size) ? ONNX_PASSED : ONNX_FAILED;
    for (int64_t i = 0; i < set->layer.y_count && verdict == ONNX_PASSED && math == CONVJIT_FP32; ++i) {
        const double want = reference_get(set->expected.data, set->expected.type, i);
        const double got = reference_get(y, set->layer.desc.data_type, i);
        if (!as_expected(got, want)) {
            verdict =
                say(ONNX_FAILED, text, size, "output %lld is %.9g, the case expects %.9g", (long long)i, got, want);
        }
    }
    free(y);
    return verdict;
}

/* All data sets of a case, with `on` or (NULL) by the reference alone. */
static onnx_verdict check(numerics *on, convjit_math math, const char *folder, char *text, size_t size) {
    onnx_verdict verdict = ONNX_PASSED;
    for (int number = 0; verdict == ONNX_PASSED; ++number) {
        char path[TESTING_PATH_MAX];
        data_set set;
        snprintf(path, sizeof path, "%s/test_data_set_%d", folder, number);
        if (number > 0 && access(path, R_OK) != 0) {
            break; /* a case without a first set fails in load */
        }
        verdict = load(folder, number, &set, text, size);
        if (verdict == ONNX_PASSED) {
            verdict = on != NULL ? run(on, math, &set, text, size) : check_reference(&set, text, size);
        }
        data_set_free(&set);
    }
    return verdict;
}

onnx_verdict onnx_case_check_reference(const char *folder, char *text, size_t size) {
    return check(NULL, CONVJIT_FP32, folder, text, size);
}

onnx_verdict onnx_case_run(numerics *on, convjit_math math, const char *folder, char *text, size_t size) {
    return check(on, math, folder, text, size);
}
