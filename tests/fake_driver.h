/* fake_driver.h - what fake_driver.c lets a test see, as the exported symbol "fake_driver". */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stddef.h>

enum { FAKE_DRIVER_ARGS_MAX = 512 };

typedef struct fake_driver_state {
    int calls;    /* of every function, since the library was loaded */
    int loads;    /* modules loaded ... */
    int unloads;  /* ... and unloaded */
    int launches; /* kernel launches that succeeded */
    int allocations, frees;
    int max_shared;        /* last value of CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES; 0 = never set */
    char kernel[64];       /* of the last launch: name, */
    unsigned int grid[3];  /* blocks, */
    unsigned int block[3]; /* threads, */
    unsigned int shared;   /* dynamic shared memory, */
    void *stream;
    unsigned char args[FAKE_DRIVER_ARGS_MAX]; /* and its one parameter, as many bytes as its args struct has */
} fake_driver_state;

#endif
