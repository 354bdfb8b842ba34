/* dump.h - source and binary of a layer as files, for people (dump_directory). */
#ifndef CJ_DUMP_H
#define CJ_DUMP_H

#include "binary.h"

/* DIRECTORY/FAMILY-TARGET-KEY.cu, and the binary with .cubin or .so. Failures are only logged: the layer is fine. */
void cj_dump(const char *directory, const cj_request *request, const cj_binary *binary, const cj_log *log);

#endif
