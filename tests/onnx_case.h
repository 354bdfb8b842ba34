/* onnx_case.h - ONNX's conformance cases of Conv and ConvTranspose: a model, inputs, and the outputs it must give. */
#ifndef ONNX_CASE_H
#define ONNX_CASE_H

#include "numerics.h"

/* Where the Debian package libonnx-testdata puts them. */
#define ONNX_CASE_ROOT "/usr/share/libonnx-testdata/data"

/* Paths of all case folders (ROOT/SUITE/CASE with a model.onnx) whose model has a Conv or ConvTranspose node, sorted;
 * malloc'ed, as is the array. NULL where there are none or memory is used up. */
char **onnx_case_find(const char *root, size_t *count);
void onnx_case_list_free(char **folders, size_t count);

/* FAILED, SKIPPED (a graph of more than one layer, types that convjit has not) and REFUSED (no family computes the
 * layer) come with the reason. */
typedef enum onnx_verdict { ONNX_PASSED, ONNX_FAILED, ONNX_SKIPPED, ONNX_REFUSED } onnx_verdict;

/* Computes each data set of a case by the float64 reference alone, and compares it with the expected output. */
onnx_verdict onnx_case_check_reference(const char *folder, char *text, size_t size);

/* Runs each data set on the target in a math, and compares with the reference and, but for tf32, with the expected
 * output: the suite's own tolerance is narrower than what tf32 promises. */
onnx_verdict onnx_case_run(numerics *on, convjit_math math, const char *folder, char *text, size_t size);

#endif
