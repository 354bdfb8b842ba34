/* arguments.c - the options of every command. */
#include "arguments.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct option {
    const char *name;
    const char *value; /* NULL: a flag */
    size_t offset;     /* of its field in struct arguments: const char *, or bool for a flag */
    unsigned commands; /* that take it */
    const char *meaning;
} option;

#define AT(field) offsetof(arguments, field)

static const option OPTIONS[] = {
    {"--target", "T", AT(target), COMMAND_RUN | COMMAND_TUNE,
     "where to run: cpu, or the GPU's own target; without it the GPU, else cpu"},
    {"--target", "T,T", AT(target), COMMAND_WARM,
     "what to build for, separated by commas: sm_80, sm_90a, cpu, ...; must be given"},
    {"--file", "FILE", AT(file), COMMAND_RUN | COMMAND_WARM | COMMAND_TUNE,
     "read layers from FILE too, after the words; - is standard input"},
    {"--suite", "NAME", AT(suite), COMMAND_RUN | COMMAND_WARM | COMMAND_TUNE,
     "of files, take the lines below \"# suite NAME\" only"},
    {"--cache", "DIR", AT(cache), COMMAND_RUN | COMMAND_WARM | COMMAND_TUNE | COMMAND_CACHE,
     "cache directory, instead of CONVJIT_CACHE_DIR or the per-user default"},
    {"--size", "N", AT(size), COMMAND_CACHE, "size limit for trim, as 512M; instead of CONVJIT_CACHE_SIZE or 4G"},
    {"--dry-run", NULL, AT(dry_run), COMMAND_CACHE, "trim: only tell what would go"},
    {"--plans", "FILE", AT(plans), COMMAND_RUN | COMMAND_WARM,
     "compute layers as this plan file says, instead of CONVJIT_PLANS; convjit tune writes it"},
    {"--plans", "FILE", AT(plans), COMMAND_TUNE,
     "plan file that gains a line a layer, made if not there; must be given"},
    {"--candidates", "N", AT(candidates), COMMAND_WARM,
     "build the N best predicted ways to compute each layer, up to 36, for convjit tune elsewhere"},
    {"--candidates", "N", AT(candidates), COMMAND_TUNE, "measure N ways to compute each layer, up to 36, default 8"},
    {"--jobs", "N", AT(jobs), COMMAND_WARM | COMMAND_TUNE,
     "build N at a time, default one for each processor; NVRTC takes some 100 MB each"},
    {"--shard", "I/N", AT(shard), COMMAND_WARM,
     "take every N-th of what is to be built, from the I-th on; I counts from 0"},
    {"--check", NULL, AT(only_check), COMMAND_WARM, "build nothing, only tell what is missing"},
    {"--math", "M", AT(math), COMMAND_RUN | COMMAND_WARM | COMMAND_TUNE,
     "compute every layer in M, whatever its line says: fp32, fp32_block or tf32"},
    {"--hint", "N", AT(hint), COMMAND_RUN | COMMAND_WARM | COMMAND_TUNE,
     "plan every layer for a batch of N, as by the word hint=N; own: each for its line's n"},
    {"--in", "AxB", AT(in_size), COMMAND_RUN | COMMAND_TUNE,
     "spatial size of the layers whose line gives none, as many numbers as they have axes"},
    {"--distribution", "D", AT(distribution), COMMAND_RUN | COMMAND_TUNE,
     "of the data: normal (default), uniform, wide, outlier, cancel, integer, split, subnormal, huge, tiny, sparse "
     "or mixed"},
    {"--seed", "N", AT(seed), COMMAND_RUN | COMMAND_TUNE, "of the random data, default 1"},
    {"--check", "N", AT(check), COMMAND_RUN | COMMAND_TUNE,
     "compare at most N outputs a layer with float64, spread over y, default 4096; 0 compares none"},
    {"--repeat", "N", AT(repeat), COMMAND_RUN | COMMAND_TUNE,
     "time N forward calls and print the median, default 20 on a GPU, 1 on the cpu; 0 times none"},
    {"--why", NULL, AT(why), COMMAND_RUN,
     "run nothing: print families, their candidates, predicted ms and reasons; --target may be any"},
    {"--dump", "DIR", AT(dump), COMMAND_RUN | COMMAND_WARM,
     "leave each layer's source and binary in DIR, made if it is not there"},
    {"--json", NULL, AT(json), COMMAND_ALL, "print one JSON document instead of text"},
    {"--help", NULL, AT(help), COMMAND_ALL, "print the options of the command"},
};
enum { OPTION_COUNT = sizeof OPTIONS / sizeof OPTIONS[0] };

int usage_error(const char *format, ...) {
    va_list list;
    va_start(list, format);
    (void)fputs("convjit: ", stderr);
    (void)vfprintf(stderr, format, list);
    (void)fputc('\n', stderr);
    va_end(list);
    return CLI_USAGE;
}

/* The option that `word` names, up to its end or to '='. */
static const option *find(const command *of, const char *word) {
    const size_t length = strcspn(word, "=");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const option *candidate = &OPTIONS[i];
        if ((candidate->commands & of->bit) != 0 && strlen(candidate->name) == length &&
            memcmp(candidate->name, word, length) == 0) {
            return candidate;
        }
    }
    return NULL;
}

/* Sets the option's field; `next` is the word behind, or NULL. Returns the words used, 0 after a message. */
static int set(const command *of, const option *o, const char *word, const char *next, arguments *out) {
    const char *value = strchr(word, '=');
    void *field = (char *)out + o->offset;
    if (o->value == NULL) {
        if (value != NULL) {
            (void)usage_error("%s: %s takes no value", of->name, o->name);
            return 0;
        }
        *(bool *)field = true;
        return 1;
    }
    if (value == NULL && next == NULL) {
        (void)usage_error("%s: %s needs a value (%s)", of->name, o->name, o->value);
        return 0;
    }
    *(const char **)field = value != NULL ? value + 1 : next;
    return value != NULL ? 1 : 2;
}

bool arguments_parse(const command *of, int count, char **words, arguments *out) {
    *out = (arguments){.lines = words};
    for (int i = 0; i < count;) {
        char *word = words[i];
        if (word[0] != '-') {
            words[out->line_count++] = word; /* moves down: never past i */
            i++;
            continue;
        }
        const option *o = find(of, word);
        if (o == NULL) {
            (void)usage_error("%s: unknown option '%s'; see convjit %s --help", of->name, word, of->name);
            return false;
        }
        const int used = set(of, o, word, i + 1 < count ? words[i + 1] : NULL, out);
        if (used == 0) {
            return false;
        }
        i += used;
    }
    return true;
}

void arguments_help(const command *of, FILE *out) {
    (void)fprintf(out, "convjit %s %s\n  %s\n\n", of->name, of->synopsis, of->meaning);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const option *o = &OPTIONS[i];
        if ((o->commands & of->bit) != 0) {
            const int width = 18 - (int)strlen(o->name);
            (void)fprintf(out, "  %s %-*s %s\n", o->name, width, o->value != NULL ? o->value : "", o->meaning);
        }
    }
}

bool arguments_number(const char *option_name, const char *text, int64_t most, int64_t missing, int64_t *out) {
    *out = missing;
    if (text == NULL) {
        return true;
    }
    char *end = NULL;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 0 || value > most) {
        (void)usage_error("%s: '%s' is not a whole number from 0 to %lld", option_name, text, (long long)most);
        return false;
    }
    *out = value;
    return true;
}
