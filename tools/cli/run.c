/* run.c - convjit run: every layer tried, one row each. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "session.h"
#include "trial.h"
#include "why.h"

static const report_column COLUMNS[] = {
    {"name", "name", REPORT_TEXT},
    {"line", "layer", REPORT_TEXT},
    {"family", "family", REPORT_TEXT},
    {"config", "config", REPORT_TEXT},
    {"key", NULL, REPORT_TEXT},
    {"origin", NULL, REPORT_TEXT},
    {"cache", "cache", REPORT_TEXT},
    {"create_ms", "create ms", 3},
    {"forward_ms", "forward ms", 4},
    {"predicted_ms", "predicted ms", 4}, /* on a GPU */
    {"gflops", "GFLOP/s", 1},
    {"checked", NULL, 0},
    {"message", NULL, REPORT_TEXT},
    {"worst_over_sum", "error/S", REPORT_POWER},
    {"worst_over_tolerance", "of limit", 2},
    {"result", "result", REPORT_TEXT},
};

/* ---------------------------------------------------------------- setup */

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

/* ---------------------------------------------------------------- where to run */

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

/* ---------------------------------------------------------------- rows */

static void add_row(report *table, const char *name, const trial *t) {
    report_text(table, name);
    report_text(table, t->line);
    report_text(table, t->info.family);
    report_text(table, t->info.config);
    report_text(table, t->info.key);
    report_text(table, t->info.origin);
    report_text(table, session_cache_word(t->info.origin));
    report_number(table, t->info.create_ms);
    report_number(table, t->forward_ms);
    report_number(table, t->predicted_ms);
    report_number(table, t->gflops);
    report_number(table, (double)t->checked);
    report_text(table, t->message);
    report_number(table, t->over_sum);
    report_number(table, t->over_tolerance);
    report_text(table, t->passed ? "pass" : "FAIL");
}

/* Tries every layer; what failed is written to `notes` too. Returns how many passed. */
static size_t try_layers(const trial_setup *setup, const layer_list *list, report *table, FILE *notes) {
    size_t passed = 0;
    for (size_t i = 0; i < list->count; i++) {
        trial t = trial_run(setup, &list->layers[i]);
        add_row(table, list->layers[i].name, &t);
        passed += t.passed;
        if (!t.passed) {
            (void)fprintf(notes, "%s: %s\n", list->layers[i].name, t.message != NULL ? t.message : "memory is used up");
        }
        trial_free(&t);
    }
    return passed;
}

/* ---------------------------------------------------------------- printing */

static void print_json(const report *table, const trial_setup *setup, size_t count, size_t passed, const char *note) {
    (void)fputs("{\n  \"target\": ", stdout);
    json_text(stdout, memory_target(setup->memory));
    (void)fputs(",\n  \"device\": ", stdout);
    json_text(stdout, memory_device(setup->memory));
    (void)fputs(",\n  \"note\": ", stdout);
    json_text(stdout, note[0] != '\0' ? note : NULL);
    (void)fputs(",\n  \"layers\": ", stdout);
    report_json(table, stdout);
    (void)printf(",\n  \"summary\": {\"layers\": %zu, \"passed\": %zu, \"failed\": %zu", count, passed, count - passed);
    session_counters_json(convjit_get_counters(setup->context), stdout);
    (void)fputs("}\n}\n", stdout);
}

static void print_text(const report *table, const trial_setup *setup, size_t count, size_t passed, const char *note) {
    if (note[0] != '\0') {
        (void)printf("%s\n", note);
    }
    (void)printf("target %s (%s)\n\n", memory_target(setup->memory), memory_device(setup->memory));
    report_table(table, stdout);
    (void)printf("\nlayers: %zu, passed: %zu, failed: %zu; ", count, passed, count - passed);
    session_counters_text(convjit_get_counters(setup->context), stdout);
    (void)fputc('\n', stdout);
}

static int run_and_print(const arguments *given, const trial_setup *setup, const layer_list *list, const char *note) {
    report *table = report_create(COLUMNS, sizeof COLUMNS / sizeof COLUMNS[0]);
    char *text = NULL;
    size_t size = 0;
    FILE *notes = open_memstream(&text, &size);
    int exit_status = CLI_FAILED;
    if (table != NULL && notes != NULL) {
        const size_t passed = try_layers(setup, list, table, notes);
        (void)(given->json ? print_json : print_text)(table, setup, list->count, passed, note);
        layers_print_refused(list, notes);
        const bool all = passed == list->count && list->refused_count == 0;
        exit_status = all && !report_failed(table) ? CLI_PASSED : CLI_FAILED;
    }
    if (notes != NULL && fclose(notes) == 0 && size > 0) {
        (void)fflush(stdout);
        (void)fputs(text, stderr);
    }
    free(text);
    report_free(table);
    return exit_status;
}

int command_run(const arguments *given) {
    trial_setup setup = {0};
    layer_list list;
    char note[384] = "";
    int exit_status = CLI_USAGE;
    if (!layers_read(given, &list)) {
        return CLI_USAGE;
    }
    if (given->why) {
        exit_status = run_why(given, &list);
    } else if (read_setup(given, &list, &setup) && open_target(given, &setup, note, sizeof note)) {
        if (setup.repeat < 0) {
            setup.repeat = memory_is_cuda(setup.memory) ? 20 : 1;
        }
        exit_status = run_and_print(given, &setup, &list, note);
    }
    convjit_close(setup.context);
    memory_close(setup.memory);
    layers_free(&list);
    return exit_status;
}
