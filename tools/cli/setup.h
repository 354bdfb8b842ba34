/* setup.h - how and where layers are tried, from the command line. */
#ifndef SETUP_H
#define SETUP_H

#include "trial.h"

/* Fills in `out`, all zero before, and opens its memory and context. `note` says why it is the cpu where nobody asked
 * for it. False after a message; then and later the setup is to be closed. */
bool setup_open(const arguments *given, const layer_list *list, trial_setup *out, char *note, size_t size);
void setup_close(trial_setup *of);

#endif
