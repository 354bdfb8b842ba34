#include "testing.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

bool testing_folder_make(char path[TESTING_PATH_MAX]) {
    const char *parent = getenv("TMPDIR");
    const int length = snprintf(path, TESTING_PATH_MAX, "%s/convjit-test-XXXXXX",
                                parent != NULL && parent[0] != '\0' ? parent : "/tmp");
    return length < TESTING_PATH_MAX && mkdtemp(path) != NULL;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status;
    (void)kind;
    (void)place;
    remove(path);
    return 0;
}

void testing_folder_remove(const char *path) {
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); /* 16: descriptors it may hold open */
}

size_t testing_stride(void) {
    const char *text = getenv("CONVJIT_TEST_STRIDE");
    const long stride = text != NULL ? strtol(text, NULL, 10) : 1;
    return stride > 1 ? (size_t)stride : 1;
}
