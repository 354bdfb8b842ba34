/* why.h - convjit run --why. */
#ifndef WHY_H
#define WHY_H

#include "layers.h"

/* Prints, for each layer, every family with its candidates, their predicted times and the reasons against them. Runs
 * and compiles nothing. Returns the exit status. */
int run_why(const arguments *given, const layer_list *list);

#endif
