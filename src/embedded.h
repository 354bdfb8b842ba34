/* embedded.h - the files of kernel_src/ as text inside the library; embedded.c is written by tools/embed.cmake. */
#ifndef CJ_EMBEDDED_H
#define CJ_EMBEDDED_H

#include <stddef.h>

typedef struct cj_embedded_file {
    const char *name; /* relative to kernel_src/: "direct.cu", "cpu/words.cuh" */
    const char *text;
    size_t size;
} cj_embedded_file;

extern const cj_embedded_file cj_embedded_files[]; /* ends with a NULL name */

#endif
