/* family_tensor.c - convolutions on Hopper's tensor cores: kernel_src/tensor.cu. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "arithmetic.h"
#include "stamp.h"
#include "tensor_plan.h"

/* ---- applicable ---- */

static const char *refuses(const cj_problem *problem, const cj_target *target) {
    CJ_REFUSE_IF(target->kind == CJ_TARGET_CUDA && (target->capability != 90 || !target->has_features), "not sm_90a")
    CJ_REFUSE_IF(problem->desc.data_type != CONVJIT_F32, "is for f32 data")
    CJ_REFUSE_IF(problem->channels_last, "is for channels first")
    CJ_REFUSE_IF(problem->group_in > 1 << 20 || problem->group_out > 1 << 20, "more than 1048576 channels a group")
    const char *const refusal = cj_view_refuses(problem);
    CJ_REFUSE_IF(refusal, refusal)
    const cj_view view = cj_view_of(problem);
    const cj_problem *const p = &view.grid;
    CJ_REFUSE_IF(p->group_out < 16, "fewer than 16 output channels a group, and too few outputs to make channels of")
    CJ_REFUSE_IF(p->kernel[CJ_X] > 32, "kernel wider than 32")
    CJ_REFUSE_IF(p->kernel[CJ_Z] > 32, "kernel deeper than 32")
    double weights = (double)p->desc.groups * (double)p->group_out * (double)p->group_in;
    for (int d = 0; d < CJ_DIMS; ++d) {
        CJ_REFUSE_IF(p->stride[d] > 1 << 10 || p->dilation[d] > 1 << 10, "stride or dilation over 1024")
        weights *= (double)p->kernel[d];
    }
    /* Packed, rows are filled up to blocks of 128, which are counted in 32 bits, and weights take up to a few
     * kilobytes. */
    CJ_REFUSE_IF(p->desc.groups > INT_MAX / cj_round_up(p->group_out, 128), "more than 2147483647 rows of products")
    CJ_REFUSE_IF(weights > 0x1p40, "more than 1099511627776 weights")
    CJ_REFUSE_IF(!cj_tensor_search(&view, NULL, NULL), "no tile of it fits shared memory and registers")
    return NULL;
}

/* ---- plan ---- */

static void describe(const cj_problem *p, const cj_tensor_config *c, char text[CJ_CONFIG_MAX]) {
    const cj_tensor_tile t = cj_tensor_tile_of(p, c);
    snprintf(text, CJ_CONFIG_MAX,
             "tile %lldx%lld k%lld run %dx%dx%d%s stage c%d f%d x%d fill %d%s slots %d sum %dx%d%s%s", (long long)t.y,
             (long long)t.x, (long long)t.k, c->own_runs, c->run_rows, c->columns, c->overlap > 0 ? " overlapping" : "",
             c->chunk_c, c->chunk_y, c->stages, c->fill_groups, c->storing ? " store" : "", c->slots, c->sum_products,
             c->products, (const char *[]){"", " fold zy", " fold zyx"}[c->fold], c->spread > 0 ? " spread" : "");
}

typedef struct choice {
    const cj_problem *problem;
    const char *wanted; /* or "" */
    cj_tensor_candidate best;
} choice;

/* The first of equals stays. */
static void keep_cheapest(const cj_tensor_candidate *c, void *state) {
    choice *to = state;
    if (!c->dropped && (to->best.dropped || c->cost < to->best.cost)) {
        char text[CJ_CONFIG_MAX] = "";
        if (to->wanted[0]) {
            describe(to->problem, &c->config, text);
        }
        to->best = strcmp(text, to->wanted) == 0 ? *c : to->best;
    }
}

static bool plan(const cj_problem *problem, const cj_target *target, cj_plan *out) {
    (void)target;
    const cj_view view = cj_view_of(problem);
    const cj_problem *const p = &view.grid;
    choice made = {.problem = p, .wanted = out->config, .best = {.dropped = "none yet"}};
    cj_tensor_search(&view, keep_cheapest, &made);
    if (made.best.dropped) {
        return false;
    }
    cj_tensor_config *c = &out->tensor;
    *c = made.best.config;
    const cj_tensor_tile t = cj_tensor_tile_of(p, c);
    const int64_t channels = p->desc.groups * cj_tensor_k_blocks(p, &t, c) * 64;
    const int64_t weights =
        p->desc.groups * p->group_out * p->group_in * p->kernel[CJ_Z] * p->kernel[CJ_Y] * p->kernel[CJ_X];
    out->threads = CJ_TENSOR_THREADS;
    out->shared_bytes = (uint32_t)t.shared_bytes;
    out->pack_work = channels * CJ_TENSOR_THREADS; /* a block a channel */
    out->packed_bytes =
        (size_t)(channels * (t.chunks * t.products * cj_tensor_parts(c) * (CJ_TENSOR_PART_BYTES / 64) + 16) +
                 4 * weights);
    describe(p, c, out->config);
    return true;
}

/* ---- constants ---- */

/* The registers of a product's sum: asm cannot count, so the stamp writes them out. */
static void stamp_sum(int columns, cj_text *out) {
    const int registers = columns / 2;
    cj_text_printf(out, "#define CJ_COLUMNS_TEXT \"%d\"\n#define CJ_SUM_REGISTERS \"{", columns);
    for (int i = 0; i < registers; ++i) {
        cj_text_printf(out, "%s%%%d", i ? ", " : "", i);
    }
    cj_text_printf(out, "}\"\n#define CJ_SUM_OPERANDS(sum)");
    for (int i = 0; i < registers; ++i) {
        cj_text_printf(out, "%s \"+f\"(sum[%d])", i ? "," : "", i);
    }
    for (int i = 0; i < 3; ++i) {
        cj_text_printf(out, "\n#define CJ_SUM_NEXT_%d \"%%%d\"", i, registers + i);
    }
    cj_text_printf(out, "\n");
}

/* No more than the first consumer can do without a slot or buffer that the second has given back. */
static int64_t lag_of(const cj_tensor_config *c, const cj_tensor_tile *t) {
    const int64_t stage_slots = t->products / c->slot_products;
    return cj_least(cj_least(cj_most(1, c->slots / 2), c->stages * stage_slots), t->chunks * stage_slots);
}

/* Measured on a model of the tensor core: kernels.md, "accuracy of tensor". What suits data of one sign enlarges the
 * results of others, so math fp32 takes half of it where that is enough. */
static int32_t loss_of(const cj_tensor_config *c) {
    const bool half = c->products == 4 && c->sum_products < CJ_TENSOR_MOST_SUM;
    return half ? c->sum_products >= 3 : c->sum_products / 2;
}

static cj_problem seen(const cj_problem *problem) {
    return cj_view_of(problem).layer;
}

/* The layer behind the convolution: see view.h. */
static void stamp_axes(const cj_view *view, cj_text *out) {
    for (int d = 0; d < CJ_DIMS; ++d) {
        const cj_axis *const a = &view->axes[d];
        const struct {
            const char *name;
            int64_t value;
        } constants[] = {{"CJ_PHASES", a->phases}, {"CJ_ACTIVE", a->active},   {"CJ_LEAD", a->lead},
                         {"CJ_TAPS", a->taps},     {"CJ_SPACING", a->spacing}, {"CJ_SHIFT", a->shift},
                         {"CJ_UP", a->up},         {"CJ_DOWN", a->down}};
        for (size_t i = 0; i < sizeof constants / sizeof *constants; ++i) {
            char name[24];
            snprintf(name, sizeof name, "%s_%c", constants[i].name, "ZYX"[d]);
            cj_stamp_int(out, name, constants[i].value, "of the layer's axis");
        }
        cj_text_printf(out, "#define CJ_PHASE_LIST_%c ", "ZYX"[d]);
        for (int64_t phase = 0; phase < a->phases; ++phase) {
            if (cj_axis_reaches(a, phase)) {
                cj_text_printf(out, "%lld, ", (long long)phase);
            }
        }
        cj_text_printf(out, "%lld /* that taps reach, and one past the last */\n", (long long)a->phases);
    }
}

static void constants(const cj_problem *problem, const cj_plan *plan, cj_text *out) {
    const cj_view view = cj_view_of(problem);
    const cj_problem *const p = &view.grid;
    const cj_tensor_config *c = &plan->tensor;
    const cj_tensor_tile t = cj_tensor_tile_of(p, c);
    cj_stamp_int(out, "CJ_MIN_BLOCKS", 1, "blocks a multiprocessor must hold");
    cj_stamp_int(out, "CJ_ROWS", c->rows, "of products for a group");
    cj_stamp_int(out, "CJ_IMAGE_TAPS", c->image_taps, "0, or images are positions, and so many lines a channel");
    stamp_axes(&view, out);
    cj_stamp_int(out, "CJ_PRODUCTS", c->products, "of halves for one of numbers");
    cj_stamp_int(out, "CJ_GUARD", p->desc.math != CONVJIT_FP32_BLOCK, "small results of wide data are computed anew");
    cj_stamp_int(out, "CJ_FOLD", c->fold, "taps that are lines of their own: none, along z and y, along x too");
    cj_stamp_int(out, "CJ_SPREAD", c->spread, "planes with taps along x of the lines over a multiple of 8");
    cj_stamp_int(out, "CJ_COLUMNS", c->columns, "pixels of a product");
    cj_stamp_int(out, "CJ_CONSUMERS_K", c->consumers_k, "consumers that differ in output channels");
    cj_stamp_int(out, "CJ_OWN_RUNS", c->own_runs, "runs of a consumer");
    cj_stamp_int(out, "CJ_OWN_BLOCKS", c->own_blocks, "blocks of 64 output channels of a consumer");
    cj_stamp_int(out, "CJ_RUN_X", c->run_x, "output columns of a run");
    cj_stamp_int(out, "CJ_OVERLAP", c->overlap, "output columns that neighbouring runs share");
    cj_stamp_int(out, "CJ_RUNS_X", c->runs_x, "runs beside each other along x");
    cj_stamp_int(out, "CJ_RUN_ROWS", c->run_rows, "output rows of a run");
    cj_stamp_int(out, "CJ_CHUNK_C", c->chunk_c, "lines of a stage");
    cj_stamp_int(out, "CJ_CHUNK_Y", c->chunk_y, "kernel rows of a stage");
    cj_stamp_int(out, "CJ_STAGES", c->stages, "buffers");
    cj_stamp_int(out, "CJ_SLOTS", c->slots, "slots of weights");
    cj_stamp_int(out, "CJ_LAG", lag_of(c, &t), "slots that the second consumer begins after the first");
    cj_stamp_int(out, "CJ_SLOT_PRODUCTS", c->slot_products, "products whose weights a slot holds");
    cj_stamp_int(out, "CJ_SUM_PRODUCTS", c->sum_products, "products of one sum");
    cj_stamp_int(out, "CJ_LOSS", loss_of(c), "what a sum loses of itself on average, in 2^-23rds");
    cj_stamp_int(out, "CJ_COMPENSATED", cj_tensor_compensation(c, &t), "what is rounded off the total is kept");
    cj_stamp_int(out, "CJ_OUT_BUFFERS", c->out_buffers, "of eight channels' outputs, for each warp");
    cj_stamp_int(out, "CJ_FILL_GROUPS", c->fill_groups, "groups of filling warps");
    cj_stamp_int(out, "CJ_LANES", c->lanes, "threads that fill a piece of a row");
    cj_stamp_int(out, "CJ_JOB_ITEMS", c->job_items, "units of such a piece for each of them");
    cj_stamp_int(out, "CJ_CONSUMER_REGISTERS", cj_tensor_consumer_registers(p, c, &t), "of a thread");
    cj_stamp_int(out, "CJ_FILLER_REGISTERS", cj_tensor_filler_registers(p, c, &t), "of a filling thread");
    cj_stamp_int(out, "CJ_STORING", c->storing, "there are warps that store outputs");
    cj_stamp_int(out, "CJ_OTHER_REGISTERS", cj_tensor_other_registers(p, c, &t),
                 "of a thread that stores or brings weights");
    cj_stamp_int(out, "CJ_SHARED_BYTES", plan->shared_bytes, "dynamic shared memory");
    stamp_sum(c->columns, out);
}

/* ---- launch ---- */

/* A batch becomes one image, whose positions along x are images. */
static void make_images_positions(cj_forward_args *args) {
    for (int d = 0; d < CJ_DIMS; ++d) {
        args->in_size[d] = args->out_size[d] = d == CJ_X ? args->batch : 1;
    }
    args->x_pixel_stride = args->x_batch_stride;
    args->y_pixel_stride = args->y_batch_stride;
    args->z_pixel_stride = args->z_batch_stride;
    args->batch = 1;
}

static void launch(const cj_problem *p, const cj_plan *plan, cj_forward_args *args, uint32_t *blocks) {
    const cj_tensor_config *const c = &plan->tensor;
    if (c->image_taps > 0) {
        make_images_positions(args);
    }
    const cj_tensor_tile t = cj_tensor_outputs(c);
    args->tiles = args->batch * p->desc.groups * cj_divide_up(c->rows, t.k);
    for (int d = 0; d < CJ_DIMS; ++d) {
        const int64_t of_tile[CJ_DIMS] = {1, t.y, t.x};
        const int64_t positions =
            p->dynamic || c->image_taps > 0 ? cj_divide_up(args->out_size[d] + c->lead[d], c->phases[d]) : c->grid[d];
        args->tiles *= cj_divide_up(positions, of_tile[d]);
    }
    *blocks = (uint32_t)cj_least(args->tiles, CJ_TENSOR_BLOCKS);
}

/* ---- predict and explain ---- */

static double predict_ms(const cj_problem *problem, const cj_plan *plan, int64_t batch) {
    const cj_view view = cj_view_of(problem);
    const cj_tensor_tile t = cj_tensor_tile_of(&view.grid, &plan->tensor);
    return cj_tensor_cost(&view.grid, &plan->tensor, &t, batch) / CJ_CYCLES_PER_MS;
}

typedef struct listing {
    const cj_problem *problem;
    cj_candidates *out;
} listing;

static void list_candidate(const cj_tensor_candidate *c, void *state) {
    const listing *to = state;
    char text[CJ_CONFIG_MAX];
    describe(to->problem, &c->config, text);
    cj_candidates_note(to->out, c->dropped, c->cost / CJ_CYCLES_PER_MS, text);
}

static void explain(const cj_problem *problem, const cj_target *target, cj_candidates *out) {
    (void)target;
    const cj_view view = cj_view_of(problem);
    cj_tensor_search(&view, list_candidate, &(listing){.problem = &view.grid, .out = out});
}

const cj_family cj_family_tensor = {.name = "tensor",
                                    .refuses = refuses,
                                    .plan = plan,
                                    .view = seen,
                                    .constants = constants,
                                    .launch = launch,
                                    .predict_ms = predict_ms,
                                    .explain = explain};
