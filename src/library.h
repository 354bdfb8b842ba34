/* library.h - shared libraries that are opened at run time. */
#ifndef CJ_LIBRARY_H
#define CJ_LIBRARY_H

#include <limits.h>
#include <stdbool.h>

#include "text.h"

/* Opens `name`, a path or a name for the loader to search. NULL where that fails; then the loader's reason is added to
 * `why` as one more line - but not for a name or path that simply is not there. */
void *cj_library_open(const char *name, cj_text *why);

/* The file that an open library came from, symbolic links resolved; "?" where the loader does not say. */
void cj_library_path(void *library, char path[PATH_MAX]);

#endif
