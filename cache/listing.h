/* listing.h - what lies in a cache directory. For maintenance: looking up an entry never lists. */
#ifndef CJ_LISTING_H
#define CJ_LISTING_H

#include "directory.h"

typedef struct cj_file {
    char name[CJ_DIRECTORY_NAME_MAX]; /* "ab/cdef....entry" */
    bool temporary;                   /* else whole: an entry, or what its key hashes */
    uint64_t size;
    int64_t used; /* seconds since 1970: when it was written or last kept young */
} cj_file;

typedef struct cj_listing {
    cj_file *files; /* sorted by name */
    size_t count, capacity;
} cj_listing;

/* Lists the files that are ours by their names; a folder or file that vanishes meanwhile, or may not be looked at, is
 * left out. 0 or errno; a directory that is missing or distrusted is empty. To be freed in any case. */
int cj_listing_make(const cj_directory *of, cj_listing *out);
void cj_listing_free(cj_listing *listing);

bool cj_file_is_entry(const cj_file *file);

#endif
