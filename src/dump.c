#include "dump.h"

#include <limits.h>
#include <stdio.h>

void cj_dump(const char *directory, const cj_request *request, const cj_binary *binary, const cj_log *log) {
    const struct {
        const char *suffix;
        const void *data;
        size_t size;
    } files[] = {
        {"cu", request->source, request->source_size},
        {request->target->kind == CJ_TARGET_CPU ? "so" : "cubin", binary->blob.data, binary->blob.size},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
        char path[PATH_MAX];
        const int length = snprintf(path, sizeof path, "%s/%s-%s-%.12s.%s", directory, request->family,
                                    request->target->name, binary->key.hex, files[i].suffix);
        FILE *file = length < (int)sizeof path ? fopen(path, "wb") : NULL;
        const bool written = file && fwrite(files[i].data, 1, files[i].size, file) == files[i].size;
        if ((file && fclose(file)) || !written) {
            cj_log_line(log, "convjit: dump failed for %s: cannot write %s", request->line, path);
        }
    }
}
