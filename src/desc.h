/* desc.h - a checked descriptor. desc.c owns every refusal text about shapes. */
#ifndef CJ_DESC_H
#define CJ_DESC_H

#include <stdbool.h>

#include "convjit.h"

enum { CJ_Z, CJ_Y, CJ_X, CJ_DIMS }; /* spatial axes; a layer of rank r uses the last r */

/* A descriptor that was checked, widened to three spatial axes (leading ones: size 1, kernel 1, stride 1, no padding)
 * and completed with what follows from it. The descriptor's own arrays are not to be read from `desc`. */
typedef struct cj_problem {
    convjit_desc desc;
    bool transposed;
    bool channels_last;
    bool dynamic;      /* in_size and out_size are 0, known only at forward */
    int64_t group_in;  /* C / groups */
    int64_t group_out; /* K / groups */
    int64_t in_size[CJ_DIMS];
    int64_t out_size[CJ_DIMS];
    int64_t kernel[CJ_DIMS];
    int64_t stride[CJ_DIMS];
    int64_t dilation[CJ_DIMS];
    int64_t pad_begin[CJ_DIMS];
    int64_t pad_end[CJ_DIMS];
    int64_t output_padding[CJ_DIMS];
} cj_problem;

/* Checks everything the descriptor alone can break and fills `out`. INVALID_ARGUMENT (NULL, struct_size),
 * INVALID_LAYER, UNSUPPORTED (a combination of types that no family computes). */
convjit_status cj_problem_make(const convjit_desc *desc, cj_problem *out);

/* Output size of a given input size, both on three axes. INVALID_LAYER where the size breaks a rule. */
convjit_status cj_problem_output_size(const cj_problem *problem, const int64_t in_size[CJ_DIMS],
                                      int64_t out_size[CJ_DIMS]);

int64_t cj_type_bytes(convjit_type type);

/* Elements of w. */
int64_t cj_problem_weight_count(const cj_problem *problem);

#endif
