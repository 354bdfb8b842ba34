/* memory.h - where the tool's layers run: buffers and a clock, on the host or on CUDA device 0. */
#ifndef MEMORY_H
#define MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "convjit.h"

typedef struct memory memory;

/* Host memory, for the target cpu. NULL when memory is used up. */
memory *memory_open_host(void);

/* Makes the primary context of CUDA device 0 current. NULL with the reason in one line where there is no driver or no
 * device. */
memory *memory_open_cuda(char *reason, size_t size);

void memory_close(memory *of); /* buffers must have been released; NULL is ignored */
bool memory_is_cuda(const memory *of);

/* "sm_90a" or "cpu", and the device's name for people. */
const char *memory_target(const memory *of);
const char *memory_device(const memory *of);

/* 256-byte aligned; NULL where memory is used up. Size 0 gives a buffer too. */
void *memory_allocate(memory *of, size_t size);
void memory_release(memory *of, void *buffer);

/* Copies between the host and a buffer, after all work; false where the device reports an error. */
bool memory_write(memory *of, void *buffer, const void *from, size_t size);
bool memory_read(memory *of, const void *buffer, void *to, size_t size);

/* Calls `work` `repeat` times in a row and takes each call's time in milliseconds, on the device's own clock where it
 * has one. False where a call fails or the device reports an error. */
bool memory_time(memory *of, bool (*work)(void *state), void *state, int repeat, double *milliseconds);

/* What the last function that failed said. */
const char *memory_error(const memory *of);

#endif
