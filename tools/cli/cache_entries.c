/* cache_entries.c - convjit cache show and diff: single entries. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache.h"
#include "report.h"

/* An entry's header as texts, to be printed or compared. */
enum { FIELDS_MAX = 13, VALUE_MAX = 1024, FIRST_COMPARED = 3 /* behind path, key and time */ };
typedef struct field {
    const char *name;
    char value[VALUE_MAX]; /* "" where the entry has none */
} field;

typedef struct shown {
    const char *wanted; /* a key, the beginning of one, or a path */
    char key[64];       /* the first that fits */
    size_t others;      /* other keys that fit, too */
    bool sound;
    field fields[FIELDS_MAX];
    int count;
} shown;

static void add_text(shown *to, const char *name, const char *text) {
    field *added = &to->fields[to->count++];
    added->name = name;
    (void)snprintf(added->value, sizeof added->value, "%s", text != NULL ? text : "");
}

static void add_number(shown *to, const char *name, uint64_t number) {
    char text[32];
    (void)snprintf(text, sizeof text, "%" PRIu64, number);
    add_text(to, name, text);
}

static bool is_wanted(const char *wanted, const convjit_cache_entry *entry) {
    return strchr(wanted, '/') != NULL ? strcmp(wanted, entry->path) == 0
                                       : strncmp(wanted, entry->key, strlen(wanted)) == 0;
}

/* Keeps the first entry that fits. The same key again is a later directory's, which is not used. */
static void keep_entry(void *user, const convjit_cache_entry *entry) {
    shown *to = user;
    char used[CACHE_TIME_MAX];
    if (!is_wanted(to->wanted, entry) || strcmp(to->key, entry->key) == 0) {
        return;
    }
    if (to->key[0] != '\0') {
        to->others++;
        return;
    }
    cache_write_time(entry->used, used);
    (void)snprintf(to->key, sizeof to->key, "%s", entry->key);
    to->sound = entry->problem == NULL;
    add_text(to, "path", entry->path);
    add_text(to, "key", entry->key);
    add_text(to, "used", used);
    add_number(to, "bytes", entry->bytes);
    add_text(to, "problem", entry->problem);
    if (to->sound) {
        add_text(to, "layer", entry->line);
        add_text(to, "target", entry->target);
        add_text(to, "family", entry->family);
        add_number(to, "threads", entry->threads);
        add_number(to, "shared_bytes", entry->shared_bytes);
        add_text(to, "compiler", entry->compiler);
        add_text(to, "version", entry->version);
        add_number(to, "binary_bytes", entry->binary_bytes);
    }
}

/* The entry of a word; CLI_PASSED, or a message and the exit status. Where none is fine, an absent one has no fields.
 */
static int find(const arguments *given, const char *word, bool none_is_fine, shown *out) {
    const convjit_options options = cache_options(given);
    *out = (shown){.wanted = word};
    const convjit_status status = convjit_cache_list(&options, keep_entry, out);
    if (status != CONVJIT_SUCCESS) {
        return cache_fail(status);
    }
    if (out->others > 0) {
        return usage_error("cache: '%s' is the beginning of %zu keys; give more of one", word, out->others + 1);
    }
    if (out->count == 0 && !none_is_fine) {
        (void)fprintf(stderr, "convjit: no entry of the cache has the key or path %s; see convjit cache list\n", word);
        return CLI_FAILED;
    }
    return CLI_PASSED;
}

int cache_show(const arguments *given) {
    shown entry;
    const int exit_status = find(given, given->lines[1], false, &entry);
    if (exit_status != CLI_PASSED) {
        return exit_status;
    }
    for (int i = 0; i < entry.count; i++) {
        if (given->json) {
            (void)printf("%s  \"%s\": ", i == 0 ? "{\n" : ",\n", entry.fields[i].name);
            json_text(stdout, entry.fields[i].value);
        } else if (entry.fields[i].value[0] != '\0') {
            (void)printf("%-13s %s\n", entry.fields[i].name, entry.fields[i].value);
        }
    }
    (void)fputs(given->json ? "\n}\n" : "", stdout);
    return entry.sound ? CLI_PASSED : CLI_FAILED;
}

/* ---- diff ---- */

/* Prints the fields that differ, but for those that always do; true if any does. */
static bool compare_fields(const shown *a, const shown *b) {
    bool differ = false;
    for (int i = FIRST_COMPARED; i < a->count && i < b->count; i++) {
        const field *x = &a->fields[i];
        const field *y = &b->fields[i];
        if (strcmp(x->value, y->value) != 0) {
            (void)printf("%s\n  - %s\n  + %s\n", x->name, x->value, y->value);
            differ = true;
        }
    }
    return differ;
}

/* The file with what a key hashes, beside its entry or, for a key that was only missed, in the written directory. */
static bool find_hashed(const arguments *given, const shown *of, char path[PATH_MAX]) {
    static const char suffix[] = ".entry";
    if (of->count > 0) {
        const char *entry = of->fields[0].value;
        (void)snprintf(path, PATH_MAX, "%.*s.fields", (int)(strlen(entry) - (sizeof suffix - 1)), entry);
    } else {
        const convjit_options options = cache_options(given);
        char root[PATH_MAX - 128];
        if (convjit_cache_directory(&options, root, sizeof root) != CONVJIT_SUCCESS || strlen(of->wanted) < 3) {
            return false;
        }
        (void)snprintf(path, PATH_MAX, "%s/%.2s/%.64s.fields", root, of->wanted, of->wanted + 2);
    }
    return access(path, R_OK) == 0;
}

/* Has diff compare two files; its exit status, or -1. */
static int run_diff(const char *a, const char *b) {
    const char *const words[] = {"diff", "-U0", a, b, NULL};
    pid_t child;
    int status = -1;
    (void)fflush(stdout);
    if (posix_spawnp(&child, words[0], NULL, NULL, (char *const *)words, environ) != 0 ||
        waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) > 1) {
        return -1;
    }
    return WEXITSTATUS(status);
}

int cache_diff(const arguments *given) {
    shown entries[2];
    char paths[2][PATH_MAX];
    bool hashed[2];
    for (int i = 0; i < 2; i++) {
        const int exit_status = find(given, given->lines[1 + i], true, &entries[i]);
        if (exit_status != CLI_PASSED) {
            return exit_status;
        }
        hashed[i] = find_hashed(given, &entries[i], paths[i]);
        if (entries[i].count == 0 && !hashed[i]) {
            (void)fprintf(stderr, "convjit: nothing is known of the key or path %s\n", given->lines[1 + i]);
            return CLI_FAILED;
        }
    }
    bool differ = compare_fields(&entries[0], &entries[1]);
    if (!hashed[0] || !hashed[1]) {
        (void)puts("what the keys hash is not there for both; CONVJIT_CACHE_FIELDS=1 leaves it at a miss");
        return differ ? CLI_FAILED : CLI_PASSED;
    }
    const int result = run_diff(paths[0], paths[1]);
    if (result < 0) {
        (void)fprintf(stderr, "convjit: diff cannot be run to compare %s with %s\n", paths[0], paths[1]);
    }
    return differ || result != 0 ? CLI_FAILED : CLI_PASSED;
}
