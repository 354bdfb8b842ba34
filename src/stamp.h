/* stamp.h - plan to source: the layer's constants as named #defines, then the embedded kernel text with every #include
 * replaced by what it names, so that the source stands alone. */
#ifndef CJ_STAMP_H
#define CJ_STAMP_H

#include "family.h"

/* Appends the whole source. The same problem, plan and target give the same bytes, on any machine, at any time.
 * OUT_OF_MEMORY. */
convjit_status cj_stamp(const cj_problem *problem, const cj_plan *plan, const cj_target *target, cj_text *out);

/* One constant: "#define NAME VALUE" with a comment; used by the families. */
void cj_stamp_int(cj_text *out, const char *name, int64_t value, const char *meaning);
void cj_stamp_float(cj_text *out, const char *name, float value, const char *meaning);

#endif
