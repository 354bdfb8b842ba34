/* reference_place.c - places of a tensor in both layouts. */
#include "reference_place.h"

#include <stdbool.h>

reference_extents reference_widen(const int64_t *array, int32_t rank, int64_t missing) {
    reference_extents size = {{missing, missing, missing}};
    for (int32_t i = 0; i < rank; i++) {
        size.of[REFERENCE_AXES - rank + i] = array[i];
    }
    return size;
}

int64_t reference_offset(reference_place place, int64_t channels, reference_extents size, convjit_layout layout) {
    const bool last = layout == CONVJIT_CHANNELS_LAST;
    int64_t index = last ? place.outer : place.outer * channels + place.channel;
    for (int axis = 0; axis < REFERENCE_AXES; axis++) {
        index = index * size.of[axis] + place.at[axis];
    }
    return last ? index * channels + place.channel : index;
}

reference_place reference_place_of(int64_t index, int64_t channels, reference_extents size, convjit_layout layout) {
    reference_place place = {0};
    if (layout == CONVJIT_CHANNELS_LAST) {
        place.channel = index % channels;
        index /= channels;
    }
    for (int axis = REFERENCE_AXES - 1; axis >= 0; axis--) {
        place.at[axis] = index % size.of[axis];
        index /= size.of[axis];
    }
    if (layout != CONVJIT_CHANNELS_LAST) {
        place.channel = index % channels;
        index /= channels;
    }
    place.outer = index;
    return place;
}
