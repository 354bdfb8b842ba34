/* tensor/images.cuh - what the filling warps of tensor.cu do where each image is a position. As in fill.cuh, but all of them
 * fill the same stage, and LANES lanes beside each other hold the planes of one image: neighbours in memory, which find the
 * image's scale among themselves. What such lanes store lies PLANE units apart, an odd number, so in different banks.
 *
 * An image's scale fits what its stages had so far: with a stage that has larger values it changes, and its totals with it. */

constexpr int IMAGE_FILLERS = FILLERS * CJ_FILL_GROUPS, TEAM_IMAGES = IMAGE_FILLERS / LANES; /* of all, at once */
constexpr int OWN_IMAGES = (TILE_X + TEAM_IMAGES - 1) / TEAM_IMAGES;
static_assert(!IMAGES || PLANES <= LANES, "plan and kernel disagree");

/* What a filling thread has of a stage: a unit of every TEAM_IMAGES-th image of the tile. */
typedef float image_units[OWN_IMAGES][DEPTH];

/* A tile's images, from the thread's first one on. */
struct image_source {
    const float *x; /* line 0 of the group */
    int count;      /* images; 0 past the last tile, and for lanes without a plane */
    bool pieces;    /* the lines of a unit are 32 bytes in one piece, and aligned to 16 */
};

__device__ __forceinline__ image_source make_image_source(const cj_forward_args &args, const sizes &size, const tile &t,
                                                          int plane, int first) {
    image_source s;
    s.x = (const float *)args.x + t.group * distance_of(CJ_GROUP_IN, args) + (t.x + first) * args.x_pixel_stride;
    s.count = t.n < args.batch && plane < PLANES ? (int)min((long long)TILE_X, size.in_x - t.x) - first : 0;
    s.pieces = LINES % DEPTH == 0 && args.x_channel_stride == CJ_IMAGE_TAPS && args.x_pixel_stride % 4 == 0 &&
               (unsigned long long)s.x % 16 == 0;
    return s;
}

/* A unit of the thread's i-th image, from a line on. */
__device__ __forceinline__ void load_image(float (&v)[DEPTH], const cj_forward_args &args, const image_source &s, int i,
                                           int line) {
    const float *const x = s.x + i * (TEAM_IMAGES * args.x_pixel_stride);
    const bool there = i * TEAM_IMAGES < s.count;
    if (s.pieces) {
#pragma unroll
        for (int j = 0; j < DEPTH; j += 4) {
            const float4 four = cj_load4_if(x + line + j, there && line < LINES);
            v[j] = four.x, v[j + 1] = four.y, v[j + 2] = four.z, v[j + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) {
            v[j] = cj_load_if(x + distance_of(line + j, args), there && line + j < LINES);
        }
    }
}

/* Has units brought to the L1. */
__device__ __forceinline__ void prefetch_images(const cj_forward_args &args, const image_source &s, int line) {
#pragma unroll
    for (int i = 0; i < OWN_IMAGES; ++i) {
        if (s.pieces && i * TEAM_IMAGES < s.count && line < LINES) {
            cj_prefetch_l1(s.x + i * (TEAM_IMAGES * args.x_pixel_stride) + line);
        }
    }
}

/* Largest |x| of a unit, but NaN and Inf if `finite`. */
__device__ __forceinline__ float largest_of(const float (&v)[DEPTH], bool finite) {
    float largest = 0.0F;
#pragma unroll
    for (int j = 0; j < DEPTH; ++j) {
        const float size = fabsf(v[j]);
        largest = finite && !(size <= 3.4028235e38F) ? largest : fmaxf(largest, size);
    }
    return largest;
}

/* What is known of an image's values, two numbers of 16 bits that only grow: the upper half of the bits of the largest |x|;
 * and 0 if there are none but zeros, else, if GUARD, the upper half of minus twice the bits of the smallest |x| but 0. */
__device__ __forceinline__ unsigned extent_of(const float (&v)[DEPTH], float largest) {
    unsigned least = min(__float_as_uint(largest), 0xffffU) << 16;
    if (CJ_GUARD) {
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) {
            least = j == 0 ? 0 - 2 * __float_as_uint(v[j]) : max(least, 0 - 2 * __float_as_uint(v[j]));
        }
    }
    return (__float_as_uint(largest) & 0xffff0000) | least >> 16;
}

__device__ __forceinline__ scaling scaling_of(unsigned extent) {
    return make_scaling(extent | 0xffff, ~extent << 16);
}

/* Is this an image of the tile? */
__device__ __forceinline__ bool is_image(int image) {
    return TILE_X % TEAM_IMAGES == 0 || image < TILE_X;
}

/* Where in shared.images a tile's are: the number of the block's tile. */
__device__ __forceinline__ float2 *scales_of(const shared_memory &shared, int tile_number) {
    return shared.images + tile_number % SCALED_TILES * TILE_X;
}

__device__ __forceinline__ void store_unit(uint4 *unit, const float (&v)[DEPTH], float up, bool exists) {
    const uint2 a = split(v[0], v[1], up), b = split(v[2], v[3], up), c = split(v[4], v[5], up), d = split(v[6], v[7], up);
    if (exists) {
        unit[0] = make_uint4(a.x, b.x, c.x, d.x);
        if (PARTS == 2) {
            unit[PART] = make_uint4(a.y, b.y, c.y, d.y);
        }
    }
}

/* The stages of all tiles. */
__device__ __forceinline__ void fill_images(const shared_memory &shared, const cj_forward_args &args, int thread) {
    const sizes size = get_sizes(args);
    const int plane = thread % LANES, first = thread / LANES;
    turn<CJ_STAGES> buffer = {0};
    const tile_range tiles = own_tiles(args);
    if (RESIDENT && CJ_FILL_GROUPS == 2 && thread == 0 && tiles.count > 0) {
        bring_weights(shared, args);
    }
    position index = tiles.first;
    tile t = make_tile(index, size);
    image_source s = make_image_source(args, size, t, plane, first);
    int piece = 0, tile_number = 0;
    unsigned extent[OWN_IMAGES]; /* of the tile's stages so far, */
    float up[OWN_IMAGES];        /* ... and the scale that follows */
#pragma unroll
    for (int i = 0; i < OWN_IMAGES; ++i) {
        extent[i] = 0, up[i] = 1.0F;
    }
    image_units v;
#pragma unroll
    for (int i = 0; i < OWN_IMAGES; ++i) {
        load_image(v[i], args, s, i, plane * DEPTH);
    }
    for (position left = tiles.count * CHUNKS; left > 0; --left, buffer.next()) {
        float largest[OWN_IMAGES], most = 0.0F;
#pragma unroll
        for (int i = 0; i < OWN_IMAGES; ++i) {
            largest[i] = largest_of(v[i], false);
            most = fmaxf(most, largest[i]);
        }
        if (__any_sync(0xffffffff, most > 3.4028235e38F)) {
#pragma unroll
            for (int i = 0; i < OWN_IMAGES; ++i) {
                largest[i] = largest_of(v[i], true);
            }
        }
        unsigned changed = 0;
#pragma unroll
        for (int i = 0; i < OWN_IMAGES; ++i) {
            const unsigned before = extent[i];
            unsigned now = extent_of(v[i], largest[i]);
#pragma unroll
            for (int bits = 1; bits < LANES; bits *= 2) {
                now = cj_max_u16x2(now, __shfl_xor_sync(0xffffffff, now, bits));
            }
            extent[i] = CHUNKS == 1 ? now : cj_max_u16x2(now, before); /* with 0: see there */
            changed |= extent[i] ^ before;
        }
        const bool scales_change = __any_sync(0xffffffff, (int)(changed >> 23)) != 0;
        cj_barrier_wait(&shared.empty[buffer.index()], buffer.parity() ^ 1); /* ^ 1: all are empty at first */
        if (TIED && thread == 0) {
            bring_slots(shared, weights_of(args, t) + (long long)piece * STAGE_SLOTS * SLOT_WEIGHTS,
                        buffer.index() * STAGE_SLOTS, STAGE_SLOTS);
        }
        float ratio[OWN_IMAGES];
#pragma unroll
        for (int i = 0; i < OWN_IMAGES; ++i) {
            ratio[i] = 1.0F;
        }
        if (scales_change || piece == 0) {
#pragma unroll
            for (int i = 0; i < OWN_IMAGES; ++i) {
                ratio[i] = inverse(up[i]);
                up[i] = scaling_of(extent[i]).up;
                ratio[i] *= up[i];
            }
        }
        const bool last = piece == CHUNKS - 1;
        piece = last ? 0 : piece + 1;
        if (last) {
            index += gridDim.x;
            t = make_tile(index, size);
            s = make_image_source(args, size, t, plane, first);
        }
        uint4 *const units = shared.buffers + buffer.index() * BUFFER + plane * PLANE + first;
#pragma unroll
        for (int i = 0; i < OWN_IMAGES; ++i) {
            store_unit(units + i * TEAM_IMAGES, v[i], up[i], plane < PLANES && is_image(first + i * TEAM_IMAGES));
            if (plane == 0 && is_image(first + i * TEAM_IMAGES)) {
                shared.ratios[buffer.index() * TILE_X + first + i * TEAM_IMAGES] = ratio[i];
            }
            load_image(v[i], args, s, i, piece * CJ_CHUNK_C + plane * DEPTH);
        }
        if (CJ_PRODUCTS < 4) { /* else no difference */
            prefetch_images(args, s, (piece + 1) * CJ_CHUNK_C + plane * DEPTH);
        }
        if (last) {
            float2 *const scales = scales_of(shared, tile_number) + first;
#pragma unroll
            for (int i = 0; i < OWN_IMAGES; ++i) {
                const scaling scale = scaling_of(extent[i]);
                if (plane == 0 && is_image(first + i * TEAM_IMAGES)) {
                    scales[i * TEAM_IMAGES] = (extent[i] & 0xffff) == 0 ? make_float2(0.0F, 0.0F)
                                                                        : make_float2(scale.down, scale.lossy);
                }
                extent[i] = 0;
            }
            ++tile_number;
        }
        if (thread % 32 == 0) {
            ((unsigned *)shared.changed)[buffer.index() * (IMAGE_FILLERS / 32) + thread / 32] = scales_change;
        }
        cj_async_fence();
        cj_barrier_arrive(&shared.full[buffer.index()]);
    }
}
