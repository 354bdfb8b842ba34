/* cache.c - convjit cache: looks at the cache, and after it, without compiling. */
#include "cache.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "report.h"

convjit_options cache_options(const arguments *given) {
    convjit_options options = CONVJIT_OPTIONS_INIT;
    options.cache_directory = given->cache;
    options.cache_size = given->size;
    return options;
}

int cache_fail(convjit_status status) {
    (void)fprintf(stderr, "convjit: %s\n", convjit_last_error());
    return status == CONVJIT_INVALID_ARGUMENT ? CLI_USAGE : CLI_FAILED;
}

void cache_write_time(int64_t seconds, char text[CACHE_TIME_MAX]) {
    const time_t time = (time_t)seconds;
    struct tm parts;
    if (localtime_r(&time, &parts) == NULL || strftime(text, CACHE_TIME_MAX, "%Y-%m-%d %H:%M", &parts) == 0) {
        (void)snprintf(text, CACHE_TIME_MAX, "%" PRId64, seconds);
    }
}

static double kib(uint64_t bytes) {
    return (double)bytes / 1024.0;
}

/* ---- path ---- */

static int print_path(const arguments *given) {
    const convjit_options options = cache_options(given);
    char path[PATH_MAX];
    const convjit_status status = convjit_cache_directory(&options, path, sizeof path);
    if (status != CONVJIT_SUCCESS) {
        return cache_fail(status);
    }
    (void)puts(path);
    return CLI_PASSED;
}

/* ---- list, verify ---- */

static const report_column COLUMNS[] = {
    {"path", NULL, REPORT_TEXT},
    {"key", "key", REPORT_TEXT},
    {"target", "target", REPORT_TEXT},
    {"family", "family", REPORT_TEXT},
    {"compiler", NULL, REPORT_TEXT},
    {"version", NULL, REPORT_TEXT},
    {"threads", NULL, 0},
    {"shared_bytes", NULL, 0},
    {"binary_bytes", NULL, 0},
    {"bytes", NULL, 0},
    {"kib", "KiB", 1},
    {"used", "used", REPORT_TEXT},
    {"line", "layer", REPORT_TEXT},
    {"problem", "problem", REPORT_TEXT},
};

typedef struct looking {
    report *table;
    size_t entries, damaged;
    uint64_t bytes;
    bool only_damaged;
} looking;

static void add_entry(void *user, const convjit_cache_entry *entry) {
    looking *at = user;
    char used[CACHE_TIME_MAX];
    at->entries++;
    at->damaged += entry->problem != NULL;
    at->bytes += entry->bytes;
    if (at->only_damaged && entry->problem == NULL) {
        return;
    }
    const double none = entry->problem != NULL ? (double)NAN : 0.0;
    cache_write_time(entry->used, used);
    report_text(at->table, entry->path);
    report_text(at->table, entry->key);
    report_text(at->table, entry->target);
    report_text(at->table, entry->family);
    report_text(at->table, entry->compiler);
    report_text(at->table, entry->version);
    report_number(at->table, entry->threads + none);
    report_number(at->table, entry->shared_bytes + none);
    report_number(at->table, (double)entry->binary_bytes + none);
    report_number(at->table, (double)entry->bytes);
    report_number(at->table, kib(entry->bytes));
    report_text(at->table, used);
    report_text(at->table, entry->line);
    report_text(at->table, entry->problem);
}

static void print_entries(const looking *at, bool json) {
    if (json) {
        (void)fputs("{\n  \"entries\": ", stdout);
        report_json(at->table, stdout);
        (void)printf(",\n  \"summary\": {\"entries\": %zu, \"damaged\": %zu, \"bytes\": %" PRIu64 "}\n}\n", at->entries,
                     at->damaged, at->bytes);
        return;
    }
    if (at->only_damaged ? at->damaged > 0 : at->entries > 0) {
        report_table(at->table, stdout);
        (void)fputc('\n', stdout);
    }
    (void)printf("entries: %zu, damaged: %zu, KiB: %.1f\n", at->entries, at->damaged, kib(at->bytes));
}

static int look(const arguments *given, bool verify) {
    const convjit_options options = cache_options(given);
    looking at = {.table = report_create(COLUMNS, sizeof COLUMNS / sizeof COLUMNS[0]), .only_damaged = verify};
    if (at.table == NULL) {
        return usage_error("cache: host memory is used up");
    }
    const convjit_status status = convjit_cache_list(&options, add_entry, &at);
    int exit_status = status == CONVJIT_SUCCESS ? CLI_PASSED : cache_fail(status);
    if (status == CONVJIT_SUCCESS) {
        print_entries(&at, given->json);
        exit_status = (verify && at.damaged > 0) || report_failed(at.table) ? CLI_FAILED : CLI_PASSED;
    }
    report_free(at.table);
    return exit_status;
}

static int list(const arguments *given) {
    return look(given, false);
}

static int verify(const arguments *given) {
    return look(given, true);
}

/* ---- trim ---- */

static void add_removed(void *user, const convjit_cache_entry *entry) {
    FILE *out = user;
    char used[CACHE_TIME_MAX];
    cache_write_time(entry->used, used);
    (void)fprintf(out, "%s  %.1f KiB, used %s\n", entry->path, kib(entry->bytes), used);
}

static int trim(const arguments *given) {
    const convjit_options options = cache_options(given);
    convjit_cache_totals totals;
    const convjit_status status =
        convjit_cache_trim(&options, given->dry_run, given->json ? NULL : add_removed, stdout, &totals);
    if (status != CONVJIT_SUCCESS) {
        return cache_fail(status);
    }
    if (given->json) {
        (void)printf("{\"files\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"removed\": %" PRIu64
                     ", \"removed_bytes\": %" PRIu64 ", \"temporaries\": %" PRIu64 ", \"dry_run\": %s}\n",
                     totals.files, totals.bytes, totals.removed, totals.removed_bytes, totals.temporaries,
                     given->dry_run ? "true" : "false");
    } else {
        (void)printf("%s%" PRIu64 " of %" PRIu64 " files, %.1f of %.1f KiB, and %" PRIu64 " old temporaries\n",
                     given->dry_run ? "would remove " : "removed ", totals.removed, totals.files,
                     kib(totals.removed_bytes), kib(totals.bytes), totals.temporaries);
    }
    return CLI_PASSED;
}

/* ---- export, import ---- */

static int print_moved(const arguments *given, convjit_status status, uint64_t entries) {
    if (status != CONVJIT_SUCCESS) {
        return cache_fail(status);
    }
    (void)printf(given->json ? "{\"entries\": %" PRIu64 "}\n" : "entries: %" PRIu64 "\n", entries);
    return CLI_PASSED;
}

static int export_file(const arguments *given) {
    const convjit_options options = cache_options(given);
    uint64_t entries = 0;
    const convjit_status status = convjit_cache_export(&options, given->lines[1], &entries);
    return print_moved(given, status, entries);
}

static int import_file(const arguments *given) {
    const convjit_options options = cache_options(given);
    uint64_t entries = 0;
    const convjit_status status = convjit_cache_import(&options, given->lines[1], &entries);
    return print_moved(given, status, entries);
}

/* ---- the command ---- */

static const struct {
    const char *name;
    int words; /* behind it */
    int (*run)(const arguments *given);
} ACTIONS[] = {
    {"path", 0, print_path}, {"list", 0, list}, {"verify", 0, verify},      {"show", 1, cache_show},
    {"diff", 2, cache_diff}, {"trim", 0, trim}, {"export", 1, export_file}, {"import", 1, import_file},
};
enum { ACTION_COUNT = sizeof ACTIONS / sizeof ACTIONS[0] };

int command_cache(const arguments *given) {
    if (given->line_count == 0) {
        return usage_error("cache: no action given; see convjit cache --help");
    }
    for (int i = 0; i < ACTION_COUNT; i++) {
        if (strcmp(given->lines[0], ACTIONS[i].name) == 0) {
            const int words = given->line_count - 1;
            return words == ACTIONS[i].words
                       ? ACTIONS[i].run(given)
                       : usage_error("cache: %s takes %d more words, not %d; see convjit cache --help", ACTIONS[i].name,
                                     ACTIONS[i].words, words);
        }
    }
    return usage_error("cache: unknown action '%s'; see convjit cache --help", given->lines[0]);
}
