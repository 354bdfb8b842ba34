/* tensor/phases.cuh - the layer behind the convolution that tensor.cu computes: its outputs are phases of a grid's positions,
 * its taps some of the convolution's, for each phase others. src/view.h says how that comes about. */

constexpr bool PHASED = CJ_PHASES_Z * CJ_PHASES_Y * CJ_PHASES_X > 1;

/* The phases that taps reach, in order, and one past the last phase. */
__constant__ const short phases_z[] = {CJ_PHASE_LIST_Z}, phases_y[] = {CJ_PHASE_LIST_Y}, phases_x[] = {CJ_PHASE_LIST_X};

__device__ __forceinline__ int phase_z(int i) {
    return CJ_ACTIVE_Z == CJ_PHASES_Z ? i : phases_z[i];
}
__device__ __forceinline__ int phase_y(int i) {
    return CJ_ACTIVE_Y == CJ_PHASES_Y ? i : phases_y[i];
}
__device__ __forceinline__ int phase_x(int i) {
    return CJ_ACTIVE_X == CJ_PHASES_X ? i : phases_x[i];
}

/* Phase i of those that are reached sees to the ones from begin_of on, but the next's: they are bias alone. */
__device__ __forceinline__ int begin_of(int i, int phase) {
    return i == 0 ? 0 : phase;
}
template <int count> constexpr int longest_span(const short (&phases)[count]) {
    int most = phases[1];
    for (int i = 1; i < count - 1; ++i) {
        most = phases[i + 1] - phases[i] > most ? phases[i + 1] - phases[i] : most;
    }
    return most;
}
constexpr int SPAN_Y = longest_span({CJ_PHASE_LIST_Y}), SPAN_X = longest_span({CJ_PHASE_LIST_X});

/* Along z the last position has an output that taps reach, and sees to the bias behind it. */
template <int count> constexpr int first_of(const short (&phases)[count]) {
    return CJ_DYNAMIC ? 0 : phases[0];
}
constexpr int FIRST_Z = first_of({CJ_PHASE_LIST_Z});
__device__ __forceinline__ long long positions_z(const sizes &size) {
    const long long count = (size.out_z + CJ_LEAD_Z - FIRST_Z + CJ_PHASES_Z - 1) / CJ_PHASES_Z;
    return FIRST_Z > 0 && count < 1 ? 1 : count;
}

/* Along an axis: kernel, dilation and padding of the convolution, and what src/view.h has. */
struct axis {
    int kernel, dilation, pad, taps, spacing, shift, up, down;
};
__device__ constexpr axis axis_z() {
    return {CJ_KERNEL_Z, CJ_DILATION_Z, CJ_PAD_Z, CJ_TAPS_Z, CJ_SPACING_Z, CJ_SHIFT_Z, CJ_UP_Z, CJ_DOWN_Z};
}
__device__ constexpr axis axis_y() {
    return {CJ_KERNEL_Y, CJ_DILATION_Y, CJ_PAD_Y, CJ_TAPS_Y, CJ_SPACING_Y, CJ_SHIFT_Y, CJ_UP_Y, CJ_DOWN_Y};
}
__device__ constexpr axis axis_x() {
    return {CJ_KERNEL_X, CJ_DILATION_X, CJ_PAD_X, CJ_TAPS_X, CJ_SPACING_X, CJ_SHIFT_X, CJ_UP_X, CJ_DOWN_X};
}

/* The layer's tap that a tap of the convolution is for a phase, as it stands in w; -1: it has none there. */
__device__ __forceinline__ int tap_of(const axis &a, int tap, int phase) {
    const int at = a.up * (tap * a.dilation - a.pad) + a.shift - a.down * phase; /* of the first tap's input */
    const int found = at >= 0 && at % a.spacing == 0 && at / a.spacing < a.taps ? at / a.spacing : -1;
    return CJ_TRANSPOSED && found >= 0 ? a.taps - 1 - found : found;
}

/* A row of products: a channel of the group, and which of the reached phases. */
constexpr int EIGHT = OUT_ROWS / CJ_ACTIVE_X; /* channels, or their phases along z and y, of eight rows */
struct product_row {
    bool exists;
    int channel, z, y, x;
};

__device__ __forceinline__ product_row row_of(int row) {
    unsigned rest = (unsigned)(row / OUT_ROWS * EIGHT + row % OUT_ROWS / CJ_ACTIVE_X);
    product_row r;
    r.x = row % OUT_ROWS % CJ_ACTIVE_X;
    r.y = (int)take(rest, CJ_ACTIVE_Y);
    r.z = (int)take(rest, CJ_ACTIVE_Z);
    r.channel = (int)rest;
    r.exists = row % OUT_ROWS < EIGHT * CJ_ACTIVE_X && r.channel < CJ_GROUP_OUT;
    return r;
}

/* Where tap `index` of the convolution lies in a filter of the layer, for a row's phase; -1: nowhere. */
__device__ __forceinline__ int place_in_filter(const product_row &r, int index) {
    unsigned rest = (unsigned)index;
    const int x = (int)take(rest, CJ_KERNEL_X), y = (int)take(rest, CJ_KERNEL_Y), z = (int)rest;
    if (!PHASED && !CJ_TRANSPOSED) {
        return index;
    }
    const int tap_z = tap_of(axis_z(), z, phases_z[r.z]), tap_y = tap_of(axis_y(), y, phases_y[r.y]),
              tap_x = tap_of(axis_x(), x, phases_x[r.x]);
    return (tap_z | tap_y | tap_x) < 0 ? -1 : (tap_z * CJ_TAPS_Y + tap_y) * CJ_TAPS_X + tap_x;
}
