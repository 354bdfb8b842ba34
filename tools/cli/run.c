/* run.c - convjit run: every layer tried, one row each. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "setup.h"
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
        trial t = trial_run(setup, &list->layers[i], &(way){0}, NULL);
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
    } else if (setup_open(given, &list, &setup, note, sizeof note)) {
        exit_status = run_and_print(given, &setup, &list, note);
    }
    setup_close(&setup);
    layers_free(&list);
    return exit_status;
}
