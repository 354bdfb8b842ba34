/* arguments.h - what the command line says: one table of options for parsing and for --help. */
#ifndef ARGUMENTS_H
#define ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Exit statuses. */
enum { CLI_PASSED = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

typedef struct arguments {
    const char *target;
    const char *file;
    const char *cache;
    const char *dump;
    const char *math;
    const char *hint;
    const char *distribution;
    const char *in_size;
    const char *check; /* of run */
    const char *repeat;
    const char *seed;
    const char *size;
    const char *suite;
    const char *jobs;
    const char *plans;
    const char *candidates;
    const char *shard;
    bool only_check;
    bool dry_run;
    bool why;
    bool json;
    bool help;
    char **lines; /* the other words: layer lines; of cache, its action and what that takes */
    int line_count;
} arguments;

/* One subcommand; main.c holds the table. */
typedef struct command {
    const char *name;
    const char *synopsis; /* what follows the name in the usage line */
    const char *meaning;
    unsigned bit; /* in the options' `commands` */
    int (*run)(const arguments *given);
} command;

enum { COMMAND_RUN = 1, COMMAND_WARM = 2, COMMAND_TUNE = 4, COMMAND_CACHE = 8, COMMAND_INFO = 16, COMMAND_ALL = 31 };

int command_run(const arguments *given);
int command_warm(const arguments *given);
int command_tune(const arguments *given);
int command_cache(const arguments *given);
int command_info(const arguments *given);

/* Reads the words after the command's name. False, with a message on standard error, where one is unknown, lacks its
 * value or is not the command's. `lines` points into `words`. */
bool arguments_parse(const command *of, int count, char **words, arguments *out);

/* The options of a command, one sentence each. */
void arguments_help(const command *of, FILE *out);

/* A whole number from 0 to `most`, or `missing` where text is NULL; false with a message naming the option. */
bool arguments_number(const char *option, const char *text, int64_t most, int64_t missing, int64_t *out);

/* One line "convjit: ..." on standard error; returns CLI_USAGE. */
int usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
