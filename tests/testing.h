/* testing.h - what several test programs share. */
#ifndef TESTING_H
#define TESTING_H

#include <stdbool.h>
#include <stddef.h>

enum { TESTING_PATH_MAX = 512 };

/* Makes a private folder under TMPDIR, or under /tmp; false where it cannot be made. */
bool testing_folder_make(char path[TESTING_PATH_MAX]);

/* Removes a folder and all in it. */
void testing_folder_remove(const char *path);

/* Every how many-th case of a long list is run: CONVJIT_TEST_STRIDE, for builds in which all of them take too long. */
size_t testing_stride(void);

#endif
