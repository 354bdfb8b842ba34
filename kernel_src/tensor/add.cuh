/* tensor/add.cuh - what the consumers of tensor.cu do for a tile: products on the tensor cores, and sums of them. */

constexpr int OWN = CJ_COLUMNS / 2; /* sums of a thread for a run and a block */
typedef float sums[OWN_SETS][OWN];

__device__ __forceinline__ void clear(sums &sum) {
#pragma unroll
    for (int i = 0; i < OWN_SETS * OWN; ++i) {
        sum[i / OWN][i % OWN] = 0.0F;
    }
}

__device__ __forceinline__ void multiply(float (&sum)[OWN], float factor) {
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        sum[i] *= factor;
    }
}
__device__ __forceinline__ void multiply(sums &sum, float factor) {
#pragma unroll
    for (int set = 0; set < OWN_SETS; ++set) {
        multiply(sum[set], factor);
    }
}

/* The column of a product that a thread's i-th sum is of, as far as a run has it. */
__device__ __forceinline__ int column_of(int i) {
    const int column = i / 4 * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
    return CJ_COLUMNS == RUN_X ? column : min(column, RUN_X - 1);
}

/* By a factor for each image of the tile. */
__device__ __forceinline__ void multiply_images(sums &sum, const float *factors, int run) {
#pragma unroll
    for (int i = 0; i < OWN_SETS * OWN; ++i) {
        sum[i / OWN][i % OWN] *= factors[run_x(run + i / OWN % CJ_OWN_RUNS) + column_of(i % OWN)];
    }
}

/* Which products of parts. */
enum { LO_LO = 1, MIXED = 2, HI_HI = 4 };

/* Adds `count` products of slices, the small ones first, and waits for them; without `add`, sum is overwritten. */
template <int which>
__device__ __forceinline__ void add_products(sums &sum, unsigned a, unsigned b, const unsigned *steps, int count, bool add) {
#pragma unroll
    for (int set = 0; set < OWN_SETS; ++set) {
        cj_product_fence(sum[set]);
    }
#pragma unroll
    for (int parts = LO_LO; parts <= HI_HI; parts *= 2) {
#pragma unroll
        for (int i = 0; i < count * OWN_SETS; ++i) {
            const int set = i % OWN_SETS, product = i / OWN_SETS;
            const unsigned w = a + set / CJ_OWN_RUNS * SLOT_WEIGHTS + product * PRODUCT_WEIGHTS;
            const unsigned x = b + set % CJ_OWN_RUNS * OWN_DISTANCE + steps[product];
            const bool begun = add || product > 0 || (which & (parts - 1)) != 0;
            if ((which & parts) == LO_LO) {
                cj_product_f16(sum[set], w + PART_WEIGHTS, x + PART, begun);
            } else if ((which & parts) == MIXED) {
                cj_product_f16(sum[set], w + PART_WEIGHTS, x, begun);
                cj_product_f16(sum[set], w, x + PART, 1);
            } else if ((which & parts) == HI_HI) {
                cj_product_f16(sum[set], w, x, begun);
            }
        }
    }
    cj_product_commit();
#pragma unroll
    for (int set = 0; set < OWN_SETS; ++set) {
        cj_product_wait(sum[set]);
    }
}

/* What was rounded off the total begins the next sum: of the slot only, or always. */
constexpr bool COMPENSATED = CJ_COMPENSATED > 0, CARRIED = CJ_COMPENSATED == 2;

/* Is the total multiplied by the scale of the stage's input? Then it must be multiplied when that changes, but is added to
 * without. */
constexpr bool SCALED = COMPENSATED || PARTS == 1 || IMAGES;

/* Adds a closed sum, enlarged by what it has lost, to the total. If `compensated`, what is missing there stays in `sum`. */
__device__ __forceinline__ void close_sum(sums &total, sums &sum, float down, bool compensated) {
    const float restored = (SCALED ? 1.0F : down) * (1.0F + CJ_LOSS * 0x1p-23F);
#pragma unroll
    for (int i = 0; i < OWN_SETS * OWN; ++i) {
        float &to = total[i / OWN][i % OWN], &closed = sum[i / OWN][i % OWN];
        const float before = to;
        to = fmaf(closed, restored, before);
        if (compensated) {
            closed = fmaf(closed, restored, before - to);
        }
    }
}

/* The products of a slot, the small ones of all of them in its first sum. */
__device__ __forceinline__ void add_slot(sums &total, sums &sum, unsigned a, unsigned b, const unsigned *steps, float down) {
    if (CJ_PRODUCTS == 1) {
        add_products<HI_HI>(total, a, b, steps, CJ_SLOT_PRODUCTS, true);
    }
    if (CJ_PRODUCTS == 4) {
        if (CARRIED) {
            multiply(sum, LO * LO);
        }
        add_products<LO_LO>(sum, a, b, steps, CJ_SLOT_PRODUCTS, CARRIED);
        multiply(sum, 1.0F / LO);
        add_products<MIXED>(sum, a, b, steps, CJ_SLOT_PRODUCTS, true);
        multiply(sum, 1.0F / LO);
    }
#pragma unroll
    for (int first = 0; first < CJ_SLOT_PRODUCTS && CJ_PRODUCTS > 1; first += CJ_SUM_PRODUCTS) {
        const bool begun = first == 0 ? CARRIED || CJ_PRODUCTS == 4 : COMPENSATED;
        const bool last = first + CJ_SUM_PRODUCTS >= CJ_SLOT_PRODUCTS;
        add_products<CJ_PRODUCTS == 4 ? HI_HI : MIXED | HI_HI>(sum, a + first * PRODUCT_WEIGHTS, b, steps + first,
                                                               last ? CJ_SLOT_PRODUCTS - first : CJ_SUM_PRODUCTS, begun);
        close_sum(total, sum, down, last ? CARRIED : COMPENSATED);
    }
}

/* What a consumer knows of its tile's input beside the total: the largest 1 / s, and that of lossy stages only; and what the
 * total is to be multiplied by, the weights' scale apart. */
struct span {
    float down, lossy, unit;
};

/* Has the scale of any image changed with a stage? */
__device__ __forceinline__ bool has_changed(const shared_memory &shared, int buffer) {
    unsigned changed = 0;
#pragma unroll
    for (int group = 0; group < CJ_FILL_GROUPS; ++group) {
        const uint4 warps = shared.changed[buffer * CJ_FILL_GROUPS + group];
        changed |= warps.x | warps.y | warps.z | warps.w;
    }
    return changed != 0;
}

/* Adds up one tile. */
__device__ __forceinline__ span add_up(sums &total, const shared_memory &shared, turn<CJ_STAGES> &buffer,
                                       slot_turn &slot, int block, int run, bool warp_leader) {
    sums sum;
    span seen = {0.0F, 0.0F, 1.0F};
    float down = 1.0F; /* of the stage before */
    clear(total);
    clear(sum);
#pragma unroll 1
    for (int i = 0; i < CHUNKS; ++i) {
        cj_barrier_wait(&shared.full[buffer.index()], buffer.parity());
        const float2 scale = IMAGES ? make_float2(1.0F, 0.0F) : shared.scale[buffer.index()];
        seen.down = fmaxf(seen.down, scale.x), seen.lossy = fmaxf(seen.lossy, scale.y);
        const unsigned b =
            cj_descriptor(shared.buffers + buffer.index() * BUFFER + run_y(run) * PITCH + run_x(run), 0); /* of its first run */
        if (IMAGES && i > 0 && has_changed(shared, buffer.index())) {
            const float *const ratios = shared.ratios + buffer.index() * TILE_X;
            multiply_images(total, ratios, run);
            if (CARRIED) {
                multiply_images(sum, ratios, run);
            }
        }
        if (!IMAGES && i > 0 && scale.x != down) {
            if (SCALED) {
                multiply(total, down * inverse(scale.x));
            }
            if (CARRIED) {
                multiply(sum, down * inverse(scale.x));
            }
        }
        down = scale.x;
#pragma unroll 1
        for (int j = 0; j < STAGE_SLOTS; ++j) {
            const int index = RESIDENT ? i * STAGE_SLOTS + j : TIED ? buffer.index() * STAGE_SLOTS + j : slot.index();
            cj_barrier_wait(&shared.slot_full[index], RESIDENT ? 0 : TIED ? buffer.parity() : slot.parity());
            const unsigned a = cj_descriptor(shared.ring + (index * TILE_BLOCKS + block) * SLOT_WEIGHTS, M * 16);
            add_slot(total, sum, a, b, product_steps.step + j * CJ_SLOT_PRODUCTS, down);
            if (warp_leader && RING) {
                cj_barrier_arrive(&shared.slot_empty[index]);
            }
            if (warp_leader && slot.steps == CJ_LAG - 1 && block + run == 0) {
                cj_barrier_arrive(shared.start);
            }
            slot.next();
        }
        cj_barrier_arrive(&shared.empty[buffer.index()]); /* all lanes: each has read the scale */
        buffer.next();
    }
    seen.unit = SCALED ? down : 1.0F;
    return seen;
}
