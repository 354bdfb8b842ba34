/* main.c - convjit: runs, warms and describes; one file a command. */
#include <string.h>

#include "arguments.h"
#include "convjit.h"

static const command COMMANDS[] = {
    {"run", "[OPTION ...] [LAYER-LINE | FILE ...]",
     "create each layer, run it on random data, compare it with float64 and time it", COMMAND_RUN, command_run},
    {"warm", "--target T,T [OPTION ...] [LAYER-LINE | FILE ...]",
     "build each layer for each target into the cache, once; needs no GPU. A run that was stopped goes on where it was",
     COMMAND_WARM, command_warm},
    {"tune", "--plans FILE [OPTION ...] [LAYER-LINE | FILE ...]",
     "compare and time the best predicted ways to compute each layer, and add the fastest to a plan file. Of ways "
     "that\n"
     "  are within 2 % of the fastest the one predicted to be faster is taken. Applications take the file by "
     "CONVJIT_PLANS",
     COMMAND_TUNE, command_tune},
    {"cache", "ACTION [OPTION ...]",
     "look at the cache, and after it, without compiling; ACTION is one of these\n\n"
     "  path                print the directory that is written\n"
     "  list                every entry of every directory: target, family, layer, size and last use\n"
     "  verify              check every entry and print those that are damaged; exit status 1 if there are any\n"
     "  show ENTRY          every field of one entry: its key, the beginning of its key, or its path\n"
     "  diff ENTRY ENTRY    the fields that differ, and of what the keys hash (CONVJIT_CACHE_FIELDS) the lines; 1 if "
     "any\n"
     "  trim                remove what was not used for the longest, as far as the size limit asks for it\n"
     "  export FILE         write every entry into one file, which import reads on any machine\n"
     "  import FILE         put the entries of such a file into the cache",
     COMMAND_CACHE, command_cache},
    {"info", "[OPTION ...]", "show what is here: device, driver, NVRTC, targets, cache directory", COMMAND_INFO,
     command_info},
};
enum { COMMAND_COUNT = sizeof COMMANDS / sizeof COMMANDS[0] };

static void print_help(void) {
    (void)puts("usage: convjit COMMAND [OPTION ...] [LAYER-LINE | FILE ...]\n"
               "       convjit --help | --version\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        arguments_help(&COMMANDS[i], stdout);
        (void)puts("");
    }
    (void)puts(
        "A LAYER-LINE is one quoted word, as \"conv2d n8 c32 k64 in56x56 f3x3\" or \"NAME: conv2d ...\". A FILE is an "
        "ONNX\n"
        "model (*.onnx), all of whose convolutions are taken, or has one layer line a line, and # starts a comment: "
        "one "
        "written\n"
        "by hand, or by CONVJIT_RECORD. Exit status: 0 all passed, 1 a layer failed or is missing, 2 the command line "
        "is\n"
        "wrong.");
}

int main(int count, char **words) {
    const char *name = count > 1 ? words[1] : "";
    if (strcmp(name, "--help") == 0) {
        print_help();
        return CLI_PASSED;
    }
    if (strcmp(name, "--version") == 0) {
        (void)puts(convjit_version());
        return CLI_PASSED;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        const command *chosen = &COMMANDS[i];
        arguments given;
        if (strcmp(name, chosen->name) != 0) {
            continue;
        }
        if (!arguments_parse(chosen, count - 2, words + 2, &given)) {
            return CLI_USAGE;
        }
        if (given.help) {
            arguments_help(chosen, stdout);
            return CLI_PASSED;
        }
        return chosen->run(&given);
    }
    return count < 2 ? usage_error("no command given; see convjit --help")
                     : usage_error("unknown command '%s'; see convjit --help", name);
}
