/* tensor/fill.cuh - what the filling warps of tensor.cu do: input to shared memory, scaled and split in halves; and how
 * weights are brought beside it. */

/* Where one stage's input lies: positions count from the first row and column of the buffer. */
struct source {
    const float *x;    /* of channel 0 */
    range zs, ys, xs;  /* that are inside the input */
    int line, lines;   /* first one, and how many there are; 0 past the last tile */
    bool whole;        /* no unit is padding */
};

__device__ __forceinline__ source make_source(const cj_forward_args &args, const sizes &size, const tile &t,
                                              const chunk &piece) {
    const position z0 = t.z * CJ_STRIDE_Z - CJ_PAD_Z + piece.kernel_z * CJ_DILATION_Z;
    const position y0 = t.y * CJ_STRIDE_Y - CJ_PAD_Y + piece.kernel_y * CJ_DILATION_Y;
    const position x0 = t.x * CJ_STRIDE_X - CJ_PAD_X;
    source s;
    s.x = (const float *)args.x + t.n * args.x_batch_stride + t.group * CJ_GROUP_IN * args.x_channel_stride +
          ((in_offset)z0 * (in_offset)size.in_y + y0) * (in_offset)size.in_x + x0;
    constexpr int COUNT_Z = (FOLD_Z - 1) * CJ_DILATION_Z + 1, COUNT_Y = IN_ROWS * STEP_Y + (FOLD_Y - 1) * CJ_DILATION_Y,
                  COUNT_X = IN_COLUMNS * STEP_X + (CJ_SPREAD > 0 ? TAPS_X - 1 : FOLD_X - 1) * CJ_DILATION_X;
    s.zs = inside(z0, size.in_z, COUNT_Z);
    s.ys = inside(y0, size.in_y, COUNT_Y);
    s.xs = inside(x0, size.in_x, COUNT_X);
    s.line = piece.line;
    s.lines = t.n >= args.batch ? 0 : CJ_SPREAD > 0 ? CJ_CHUNK_C : LINES - piece.line;
    s.whole = s.lines >= CJ_CHUNK_C && z0 >= 0 && z0 + COUNT_Z <= size.in_z && y0 >= 0 && y0 + COUNT_Y <= size.in_y &&
              x0 >= 0 && x0 + COUNT_X <= size.in_x; /* from s.zs and so on, ptxas 13.0 gets it wrong */
    return s;
}

/* Goes on to the next stage's input; behind the last tile there are no lines. */
__device__ __forceinline__ void next_stage(position &index, int &piece, tile &t, source &s, const cj_forward_args &args,
                                           const sizes &size) {
    piece = piece + 1 == CHUNKS ? 0 : piece + 1;
    if (piece == 0) {
        index += gridDim.x;
        t = make_tile(index, size);
    }
    s = make_source(args, size, t, make_chunk(piece));
}

__device__ __forceinline__ bool is_in(const range &r, int position) {
    return position >= r.low && position < r.high;
}

/* Where the team's i-th job lies. Its plane is the same as that of the job before if the planes can be shared out evenly. */
struct place {
    int plane, row, column, columns, step; /* column: of the team's first unit; columns of the row, so far apart in the input */
    bool exists;
};

__host__ __device__ constexpr bool is_apart(int i) {
    return i >= JOBS_ALIKE;
}
__host__ __device__ constexpr int planes_of(int i) {
    return is_apart(i) ? PLANES_APART : PLANES_ALIKE;
}
__host__ __device__ constexpr bool is_own_plane(int i) {
    return TEAMS % planes_of(i) == 0;
}

/* Where many jobs lie is found anew for each stage: there are no registers to remember it. */
__device__ __forceinline__ int anew(int team) {
    return TEAM_JOBS > 2 ? cj_opaque(team) : team;
}

__device__ __forceinline__ place job_of(int team, int i) {
    const bool apart = is_apart(i);
    const int planes = planes_of(i), pieces = apart ? PIECES_APART : PIECES, turn = apart ? i - JOBS_ALIKE : i;
    const int job = is_own_plane(i) ? turn * (TEAMS / planes) + team / planes : (turn * TEAMS + team) / planes;
    place p;
    p.plane = (is_own_plane(i) ? team % planes : (turn * TEAMS + team) % planes) + (apart ? PLANES_ALIKE : 0);
    p.column = job % pieces * JOB_COLUMNS;
    p.row = job / pieces;
    p.columns = apart ? PITCH : IN_COLUMNS;
    p.step = apart ? CJ_STRIDE_X : STEP_X;
    p.exists = planes * IN_ROWS * pieces % TEAMS == 0 || job < IN_ROWS * pieces;
    return p;
}

/* Are all units of its pieces in a row? */
__device__ __forceinline__ bool is_filled(const place &p) {
    return p.columns % JOB_COLUMNS == 0;
}

/* The lines of a plane in the input: where the buffer's first row and column of each is, and how it is shifted there. */
struct lines {
    const float *x[DEPTH];
    int y[DEPTH], x_shift[DEPTH];
    bool exist[DEPTH];
};

constexpr int OUTSIDE = 32767; /* no tap along z lies so far */

/* The table of lines that hold kernel taps. A missing one does not exist or, where no unit is padding, is the stage's first
 * again; its weights are 0. */
__device__ __forceinline__ void list_lines(folded_line *table, const cj_forward_args &args, const sizes &size) {
    for (int i = (int)threadIdx.x; i < FOLDED_LINES; i += CJ_THREADS) {
        const bool exists = parts_of(i).exists;
        const line_parts line = parts_of(exists ? i : i / CJ_CHUNK_C * CJ_CHUNK_C);
        folded_line &to = table[i];
        to.distance = line.c * args.x_channel_stride +
                      (line.z * CJ_DILATION_Z * size.in_y + line.y * CJ_DILATION_Y) * size.in_x + line.x * CJ_DILATION_X;
        to.z = (short)(exists ? line.z : OUTSIDE), to.y = (short)line.y, to.x = (short)line.x;
    }
}

__device__ __forceinline__ void find_lines(lines &l, const shared_memory &shared, const cj_forward_args &args, const source &s,
                                           int plane) {
#pragma unroll
    for (int j = 0; j < DEPTH; ++j) {
        const int i = plane * DEPTH + j;
        const folded_line line = CJ_FOLD > 0 ? shared.lines[s.line + i] : folded_line{0, 0, 0, 0};
        l.x[j] = CJ_FOLD > 0 ? s.x + line.distance
                 : j > 0     ? l.x[j - 1] + args.x_channel_stride
                             : s.x + (s.line + i) * args.x_channel_stride;
        l.y[j] = line.y * CJ_DILATION_Y, l.x_shift[j] = line.x * CJ_DILATION_X;
        l.exist[j] = (LINES % CJ_CHUNK_C == 0 || CJ_SPREAD > 0 ? s.lines > 0 : i < s.lines) &&
                     is_in(s.zs, line.z * CJ_DILATION_Z);
    }
}

/* Loads a stage's jobs of a team. `whole`: no unit of the stage is padding. */
template <bool whole>
__device__ __forceinline__ void load_jobs(items (&v)[TEAM_JOBS], const shared_memory &shared, const cj_forward_args &args,
                                          const sizes &size, const source &s, int team, int lane) {
    lines l;
    team = anew(team);
#pragma unroll
    for (int i = 0; i < TEAM_JOBS; ++i) {
        const place p = job_of(team, i);
        const int in_y = p.row * STEP_Y, in_x = (p.column + lane) * p.step;
        const in_offset offset = in_y * (in_offset)size.in_x + in_x;
        if (i == 0 || i == JOBS_ALIKE || !is_own_plane(i)) {
            find_lines(l, shared, args, s, p.plane);
        }
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) {
            const bool there = p.exists && (whole || (l.exist[j] && is_in(s.ys, in_y + l.y[j])));
            const float *const row = cj_opaque(l.x[j] + offset); /* one address for all items */
#pragma unroll
            for (int k = 0; k < CJ_JOB_ITEMS; ++k) {
                const int step = k * LANES * p.step;
                const bool in_row = whole ? is_filled(p) || p.column + lane + k * LANES < p.columns
                                          : is_in(s.xs, in_x + l.x_shift[j] + step);
                v[i][k][j] = cj_load_if(row + step, there && in_row);
            }
        }
    }
}

__device__ __forceinline__ void load_stage(items (&v)[TEAM_JOBS], const shared_memory &shared, const cj_forward_args &args,
                                           const sizes &size, const source &s, int team, int lane) {
    if (s.whole) {
        load_jobs<true>(v, shared, args, size, s, team, lane);
    } else {
        load_jobs<false>(v, shared, args, size, s, team, lane);
    }
}

/* Has the input of a stage brought to the L2, 128 bytes at a time, while the one before is loaded: memory that is busy with
 * outputs takes longer than what loads can have under way in registers makes up for. Where several stages read the same rows,
 * or a second group has loads under way too, it costs more than it brings. */
constexpr bool PREFETCHED = CJ_FOLD == 0 && TAPS_Z * TAPS_Y == 1 && STORE_WARPS > 0;

__device__ __forceinline__ void prefetch_stage(const cj_forward_args &args, const sizes &size, const source &s, int thread) {
    constexpr int STEP = 32, PIECES_X = ((IN_COLUMNS - 1) * STEP_X + STEP) / STEP;
#pragma unroll 1
    for (int i = thread; i < CJ_CHUNK_C * IN_ROWS * PIECES_X; i += FILLERS) {
        unsigned rest = (unsigned)i;
        const int x = max(s.xs.low, min((int)take(rest, PIECES_X) * STEP, s.xs.high - 1));
        const int y = (int)take(rest, IN_ROWS) * STEP_Y;
        if ((int)rest < s.lines && is_in(s.ys, y) && is_in(s.zs, 0) && s.xs.low < s.xs.high) {
            cj_prefetch(s.x + (s.line + (int)rest) * args.x_channel_stride + y * (in_offset)size.in_x + x);
        }
    }
}

/* 1 / s of a power of two. */
__device__ __forceinline__ float inverse(float s) {
    return __uint_as_float((254U << 23) - __float_as_uint(s));
}

/* The scale of a stage: s, 1 / s, and 1 / s or 0 for scale[].y. */
struct scaling {
    float up, down, lossy;
};

/* `most`: bits of the largest finite |x|; `least`: twice the bits of the smallest but 0, minus 1. s is at most 2^126, so
 * that 1 / s is normal; what is tiny enough for that has few bits to split. */
__device__ __forceinline__ scaling make_scaling(unsigned most, unsigned least) {
    const unsigned exponent = most >> 23, low = (least + 1) >> 24;
    const unsigned up = 268 - exponent < 253 ? 268 - exponent : 253;
    scaling s = {1.0F, 1.0F, 0.0F};
    if (most != 0) {
        s.up = __uint_as_float(up << 23);
        s.down = inverse(s.up);
        s.lossy = (CJ_GUARD && exponent > low + 27) || exponent < 37 ? s.down : 0.0F; /* 37: 2^-90 */
    }
    return s;
}

/* Largest and, if GUARD, smallest of a filling group's items. Returns after all its threads came here. */
__device__ __forceinline__ scaling find_scaling(const items (&v)[TEAM_JOBS], const shared_memory &shared,
                                                int group, int thread, turn<1> &filling) {
    constexpr int COUNT = TEAM_JOBS * CJ_JOB_ITEMS * DEPTH, CHAINS = 4; /* a single chain would wait for itself */
    const float *const values = &v[0][0][0];
    float largest_of[CHAINS];
    unsigned least_of[CHAINS];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float size = fabsf(values[i]);
        const unsigned order = CJ_GUARD ? 2 * __float_as_uint(values[i]) - 1 : 0;
        largest_of[i % CHAINS] = i < CHAINS ? size : fmaxf(largest_of[i % CHAINS], size);
        least_of[i % CHAINS] = i < CHAINS ? order : min(least_of[i % CHAINS], order);
    }
    float largest = fmaxf(fmaxf(fmaxf(largest_of[0], largest_of[1]), fmaxf(largest_of[2], largest_of[3])), 0.0F); /* no NaN */
    unsigned least = min(min(least_of[0], least_of[1]), min(least_of[2], least_of[3]));
    if (largest > 3.4028235e38F) {
        largest = 0.0F;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const float size = fabsf(values[i]);
            largest = size <= 3.4028235e38F ? fmaxf(largest, size) : largest;
        }
    }
    uint2 *const span = shared.span + (group * 2 + filling.steps % 2) * FILL_WARPS;
    const unsigned most = __reduce_max_sync(0xffffffff, __float_as_uint(largest));
    least = CJ_GUARD ? __reduce_min_sync(0xffffffff, least) : 0;
    if (thread % 32 == 0) {
        span[thread / 32] = make_uint2(most, least);
    }
    cj_barrier_arrive(&shared.filling[group]);
    cj_barrier_wait(&shared.filling[group], filling.parity());
    filling.next();
    uint2 all = span[0];
#pragma unroll
    for (int i = 1; i < FILL_WARPS; ++i) {
        all = make_uint2(max(all.x, span[i].x), min(all.y, span[i].y));
    }
    return make_scaling(all.x, all.y);
}

/* hi (x) and lo (y) of two numbers. */
__device__ __forceinline__ uint2 split(float a, float b, float up) {
    uint2 result = make_uint2(cj_pack_f16(a * up, b * up), 0);
    if (PARTS == 2) {
        const float2 hi = cj_unpack_f16(result.x);
        result.y = cj_pack_f16((a * up - hi.x) * LO, (b * up - hi.y) * LO);
    }
    return result;
}

__device__ __forceinline__ void store_job(uint4 *buffer, const items &v, float up, const place &p, int lane) {
    uint4 *const row =
        buffer + (p.plane * PARITIES_Y + p.row % PARITIES_Y) * PARITIES_X * ROWS * PITCH + p.row / PARITIES_Y * PITCH;
#pragma unroll
    for (int i = 0; i < CJ_JOB_ITEMS; ++i) {
        const int column = p.column + lane + i * LANES;
        const uint2 a = split(v[i][0], v[i][1], up), b = split(v[i][2], v[i][3], up), c = split(v[i][4], v[i][5], up),
                    d = split(v[i][6], v[i][7], up);
        if (p.exists && (is_filled(p) || column < p.columns)) {
            const int parities = p.columns / PITCH;
            uint4 *const unit = row + column % parities * ROWS * PITCH + column / parities;
            unit[0] = make_uint4(a.x, b.x, c.x, d.x);
            if (PARTS == 2) {
                unit[PART] = make_uint4(a.y, b.y, c.y, d.y);
            }
        }
    }
}

/* Two filling groups leave no warp for the weights: then they stay, or those of a stage have slots of its buffer, which the
 * group that fills it has them brought to. Else they go through a ring. */
constexpr bool TIED = !RESIDENT && CJ_FILL_GROUPS == 2, RING = !RESIDENT && !TIED;
static_assert(!TIED || CJ_SLOTS == CJ_STAGES * STAGE_SLOTS, "plan and kernel disagree");
typedef turn<RING ? CJ_SLOTS : 1> slot_turn;

/* Has the weights of `count` slots brought, from the first of a chunk on. */
__device__ __forceinline__ void bring_slots(const shared_memory &shared, const uint4 *weights, int first, int count) {
#pragma unroll 1
    for (int i = first; i < first + count; ++i, weights += SLOT_WEIGHTS) {
        cj_barrier_expect(&shared.slot_full[i], 16 * TILE_BLOCKS * SLOT_WEIGHTS);
        for (int block = 0; block < TILE_BLOCKS; ++block) {
            cj_bulk_load(shared.ring + (i * TILE_BLOCKS + block) * SLOT_WEIGHTS, weights + block * BLOCK_WEIGHTS,
                         16 * SLOT_WEIGHTS, &shared.slot_full[i]);
        }
    }
}

/* A tile's weights. */
__device__ __forceinline__ const uint4 *weights_of(const cj_forward_args &args, const tile &t) {
    return (const uint4 *)args.packed + (t.group * K_TILES + t.k_tile) * TILE_BLOCKS * BLOCK_WEIGHTS;
}

/* One thread: the weights of all stages of all tiles, or of one tile's if they stay. */
__device__ __forceinline__ void bring_weights(const shared_memory &shared, const cj_forward_args &args) {
    const sizes size = get_sizes(args);
    slot_turn slot = {0};
    const tile_range tiles = own_tiles(args);
    position index = tiles.first;
    for (position left = RESIDENT && tiles.count > 1 ? 1 : tiles.count; left > 0; --left, index += gridDim.x) {
        const uint4 *weights = weights_of(args, make_tile(index, size));
#pragma unroll 1
        for (int i = 0; i < CHUNKS * STAGE_SLOTS; ++i, weights += SLOT_WEIGHTS) {
            if (RING) {
                cj_barrier_wait(&shared.slot_empty[slot.index()], slot.parity() ^ 1);
            }
            bring_slots(shared, weights, RESIDENT ? i : slot.index(), 1);
            slot.next();
        }
    }
}

/* The stages of one group of filling warps, every FILL_GROUPS-th of all tiles. A stage lies in registers until its scale is
 * known and its buffer is empty; then they are loaded with the group's next one, while the other group works on its own. */
__device__ __forceinline__ void fill(const shared_memory &shared, const cj_forward_args &args, int group, int thread) {
    const sizes size = get_sizes(args);
    const int team = LANES == 32 ? cj_uniform(thread / LANES) : thread / LANES, lane = thread % LANES;
    turn<CJ_STAGES> buffer = {(unsigned)group};
    turn<1> filling = {0};
    const tile_range tiles = own_tiles(args);
    position index = tiles.first, left = (tiles.count * CHUNKS - group + CJ_FILL_GROUPS - 1) / CJ_FILL_GROUPS; /* stages */
    int piece = 0;
    tile t = make_tile(index, size);
    source s = make_source(args, size, t, make_chunk(0));
    if (group > 0) {
        next_stage(index, piece, t, s, args, size);
    }
    const uint4 *weights = nullptr; /* of the stage in registers */
    if (RESIDENT && CJ_FILL_GROUPS == 2 && group == 0 && thread == 0 && tiles.count > 0) {
        bring_weights(shared, args);
    }
    items v[TEAM_JOBS];
    for (bool loaded = false; left > 0; loaded = true) {
        if (loaded) {
            const scaling scale = find_scaling(v, shared, group, thread, filling);
            cj_barrier_wait(&shared.empty[buffer.index()], buffer.parity() ^ 1); /* ^ 1: all are empty at first */
            if (TIED && thread == 0) {
                bring_slots(shared, weights, buffer.index() * STAGE_SLOTS, STAGE_SLOTS);
            }
            uint4 *const units = shared.buffers + buffer.index() * BUFFER;
#pragma unroll
            for (int i = 0; i < TEAM_JOBS; ++i) {
                store_job(units, v[i], scale.up, job_of(anew(team), i), lane);
            }
            if (thread == 0) {
                shared.scale[buffer.index()] = make_float2(scale.down, scale.lossy);
            }
            cj_async_fence();
            cj_barrier_arrive(&shared.full[buffer.index()]);
            buffer.steps += CJ_FILL_GROUPS;
            --left;
        }
        load_stage(v, shared, args, size, s, team, lane);
        weights = TIED ? weights_of(args, t) + (long long)piece * STAGE_SLOTS * SLOT_WEIGHTS : nullptr;
        for (int i = 0; i < CJ_FILL_GROUPS; ++i) {
            next_stage(index, piece, t, s, args, size);
        }
        if (PREFETCHED) {
            prefetch_stage(args, size, s, thread);
        }
    }
}
