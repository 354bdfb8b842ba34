/* loaded.h - what a context holds: on its device binaries by key, and the layer lines that were created from them;
 * besides, the binaries that were imported. */
#ifndef CJ_LOADED_H
#define CJ_LOADED_H

#include "binary.h"
#include "family.h"

typedef struct cj_loaded cj_loaded;

/* NULL where memory is used up. device NULL: nothing is loaded, only kept. */
cj_loaded *cj_loaded_create(const cj_device *device);

/* Unloads all; no kernel may still run. NULL is ignored. */
void cj_loaded_destroy(cj_loaded *loaded);

/* What a layer line needs to become a layer. */
typedef struct cj_known {
    cj_plan plan;
    cj_key key;
    cj_module *module; /* stays loaded until cj_loaded_destroy: unloading is illegal while another thread captures */
} cj_known;

/* Has a layer of this line been created before? Then it needs no plan, no source and no key, which is what makes
 * creating it again a matter of microseconds. */
bool cj_loaded_find(cj_loaded *loaded, const char *line, cj_known *out);

/* Remembers a line. Where memory is used up it is not, and costs the more next time. */
void cj_loaded_remember(cj_loaded *loaded, const char *line, const cj_known *known);

/* Takes a reference that was given by an import, to hold it until cj_loaded_destroy. OUT_OF_MEMORY: it was given back.
 */
convjit_status cj_loaded_keep(cj_loaded *loaded, cj_binary *binary);

/* Finds a binary of this key among those loaded, or loads it. Takes the reference to `binary` where it succeeds.
 * LOAD_FAILED, OUT_OF_MEMORY. */
convjit_status cj_loaded_share(cj_loaded *loaded, cj_binary *binary, uint32_t shared_bytes, cj_module **out);

#endif
