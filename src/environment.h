/* environment.h - what is on this machine: the answer of convjit_get_environment. */
#ifndef CJ_ENVIRONMENT_H
#define CJ_ENVIRONMENT_H

#include "target.h"

/* Fills all of `out`; a part that is missing says why. Looks for driver, NVRTC and host compiler; makes no context.
 * target: of the convjit context, or NULL. cache_description: cj_store_describe. This thread's error text is kept. */
void cj_environment_fill(const cj_target *target_or_null, const char *cache_description, convjit_environment *out);

#endif
