/* cpu_hopper.h - the words of kernel_src/cpu/hopper.cuh for the blocks of a launch. */
#ifndef CJ_CPU_HOPPER_H
#define CJ_CPU_HOPPER_H

#include "cpu_block.h"

/* Before and after the blocks. */
void cj_hopper_open(cj_block *block);
void cj_hopper_close(cj_block *block);

#endif
