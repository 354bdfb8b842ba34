/* info.c - convjit info: what is on this machine. */
#include "arguments.h"
#include "convjit.h"
#include "memory.h"
#include "report.h"

/* The environment with the device's target where a GPU is here, else without a target. */
static convjit_environment look_around(void) {
    convjit_environment found;
    convjit_context *context = NULL;
    char reason[256];
    memory *device = memory_open_cuda(reason, sizeof reason);
    if (device != NULL && convjit_open(NULL, &context) != CONVJIT_SUCCESS) {
        context = NULL; /* the environment says why */
    }
    convjit_get_environment(context, &found);
    convjit_close(context);
    memory_close(device);
    return found;
}

int command_info(const arguments *given) {
    if (given->line_count > 0) {
        return usage_error("info: unexpected word '%s'", given->lines[0]);
    }
    const convjit_environment found = look_around();
    const struct {
        const char *name, *title, *text;
    } parts[] = {
        {"version", "convjit", found.version},
        {"target", "target", found.target},
        {"device", "device", found.device},
        {"driver", "driver", found.driver},
        {"nvrtc", "NVRTC", found.nvrtc},
        {"nvrtc_targets", "NVRTC targets", found.nvrtc_targets},
        {"host_compiler", "host compiler", found.host_compiler},
        {"cache_directory", "cache", found.cache_directory},
    };
    enum { PARTS = sizeof parts / sizeof parts[0] };
    for (int i = 0; i < PARTS; i++) {
        if (given->json) {
            (void)printf("%s  \"%s\": ", i == 0 ? "{\n" : ",\n", parts[i].name);
            json_text(stdout, parts[i].text);
        } else {
            (void)printf("%-13s  %s\n", parts[i].title, parts[i].text[0] != '\0' ? parts[i].text : "-");
        }
    }
    (void)fputs(given->json ? "\n}\n" : "", stdout);
    return CLI_PASSED;
}
