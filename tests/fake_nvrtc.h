/* fake_nvrtc.h - what fake_nvrtc.c lets a test see, as the exported symbol "fake_nvrtc". */
#ifndef FAKE_NVRTC_H
#define FAKE_NVRTC_H

typedef struct fake_nvrtc_state {
    int compiles;       /* begun since the library was loaded */
    int running;        /* compiles at this moment */
    int most_running;   /* ... and at most so far */
    char options[1024]; /* of the last compile, one a line */
} fake_nvrtc_state;

#endif
