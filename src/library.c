#include "library.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The loader's text starts with the file that it could not open, which may also be one that `name` depends on. */
static bool is_absent(const char *name, const char *reason) {
    const size_t length = strlen(name);
    return strncmp(reason, name, length) == 0 && reason[length] == ':' && strstr(reason, strerror(ENOENT)) != NULL;
}

/* RTLD_LOCAL: another version of the same library, say that of a framework, may be in the process too. */
void *cj_library_open(const char *name, cj_text *why) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *reason = dlerror();
        if (reason == NULL) {
            reason = "the loader gives no reason";
        }
        if (!is_absent(name, reason)) {
            cj_text_printf(why, "\n%s: %s", name, reason);
        }
    }
    return library;
}

void cj_library_path(void *library, char path[PATH_MAX]) {
    struct link_map *map = NULL;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == NULL) {
        snprintf(path, PATH_MAX, "?");
    } else if (realpath(map->l_name, path) == NULL) {
        snprintf(path, PATH_MAX, "%s", map->l_name);
    }
}
