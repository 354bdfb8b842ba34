/* cpu_fiber.h - fibers: calls that stop in the middle and go on later, all on the OS thread that created them. The cpu
 * target runs each thread of a block on one. */
#ifndef CJ_CPU_FIBER_H
#define CJ_CPU_FIBER_H

#include <stdbool.h>
#include <stdint.h>

typedef void (*cj_fiber_fn)(void *argument, uint32_t index);

/* A set of fibers with a stack each. */
typedef struct cj_fibers cj_fibers;

/* At least `count` fibers that run function(argument, index): an idle set or a new one. NULL when memory is used up. */
cj_fibers *cj_fibers_acquire(uint32_t count, cj_fiber_fn function, void *argument);

/* Keeps the set as an idle one if every call has returned; else frees it, and calls in the middle never go on. */
void cj_fibers_release(cj_fibers *fibers, bool all_ended);

void cj_fibers_free_idle(void);

/* The next resume calls the function from its beginning. Only for a fiber whose last call has returned. */
void cj_fiber_start(cj_fibers *fibers, uint32_t index);

/* Runs one fiber until it suspends itself or its call returns. Not to be called on a fiber. */
void cj_fiber_resume(cj_fibers *fibers, uint32_t index);

/* Called on the running fiber: goes back to who resumed it. */
void cj_fiber_suspend(cj_fibers *fibers);

#endif
