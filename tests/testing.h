/* testing.h - what several test programs share. */
#ifndef TESTING_H
#define TESTING_H

#include <stdbool.h>

enum { TESTING_PATH_MAX = 512 };

/* Makes a private folder under TMPDIR, or under /tmp; false where it cannot be made. */
bool testing_folder_make(char path[TESTING_PATH_MAX]);

/* Removes a folder and all in it. */
void testing_folder_remove(const char *path);

#endif
