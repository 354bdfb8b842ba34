/* plans.h - the plan file: ways to compute layers that were found by measuring, for layers that are created later. */
#ifndef CJ_PLANS_H
#define CJ_PLANS_H

#include "family.h"

typedef struct cj_plans cj_plans;

/* Reads those of a target from the file of that name; NULL takes that of the setting, and without one there are none. A
 * plan is a line
 *
 *   TARGET | LAYER LINE | FAMILY | CONFIGURATION | what follows is for people
 *
 * with spaces around; # starts a comment, and of two plans of one layer the last one counts.
 * FILE_FAILED, with the line's number and the rule: cannot be read, or a line is none. OUT_OF_MEMORY. */
convjit_status cj_plans_read(const char *name, const char *target, cj_plans **out);
void cj_plans_free(cj_plans *plans); /* NULL is ignored */

/* That of a layer line, NULL where there is none. Lives as long as the plans, which do not change. */
const cj_way *cj_plans_find(const cj_plans *plans, const char *line);

#endif
