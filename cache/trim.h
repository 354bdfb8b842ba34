/* trim.h - keeps a cache directory within its size limit. */
#ifndef CJ_TRIM_H
#define CJ_TRIM_H

#include "convjit.h"
#include "listing.h"

typedef enum cj_trim_occasion {
    CJ_TRIM_WRITTEN, /* this process wrote a file: trim if nobody has done so for ten minutes */
    CJ_TRIM_GROWN,   /* this process wrote much: trim unless somebody does so at this moment */
    CJ_TRIM_ASKED,   /* a person wants it done, whoever else may be at it */
    CJ_TRIM_DRY_RUN  /* only tell */
} cj_trim_occasion;

/* Removes temporaries that were left behind and, where the rest is larger than `limit` bytes, what was not used for the
 * longest, down to 90 % of it. limit 0: temporaries only. Tells each file that goes to `removed` (may be NULL), before
 * it goes. 0 or errno; files that cannot be removed are passed by. */
typedef void (*cj_trim_fn)(void *user, const cj_file *file);
int cj_trim(const cj_directory *directory, uint64_t limit, cj_trim_occasion occasion, cj_trim_fn removed, void *user,
            convjit_cache_totals *totals);

#endif
