#include "numerics.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "placed.h"

/* Always false, so that a check can `return fail(...)`. */
__attribute__((format(printf, 3, 4))) static bool fail(char *text, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(text, size, format, args);
    va_end(args);
    return false;
}

/* ------------------------------------------------------------------------------------------------------------ target
 */

bool numerics_open(const char *target, numerics *out, char *text, size_t size) {
    char reason[256] = "no memory";
    *out = (numerics){0};
    const bool host = target != NULL && strcmp(target, "cpu") == 0;
    out->memory = host ? memory_open_host() : memory_open_cuda(reason, sizeof reason);
    if (out->memory == NULL) {
        return fail(text, size, "%s", reason);
    }
    convjit_options options = CONVJIT_OPTIONS_INIT;
    options.target = target;
    const char *shared = getenv("CONVJIT_CACHE_DIR");
    if (shared == NULL || shared[0] == '\0') {
        if (!testing_folder_make(out->cache)) {
            memory_close(out->memory);
            return fail(text, size, "no temporary folder for the cache");
        }
        options.cache_directory = out->cache;
    }
    if (convjit_open(&options, &out->context) != CONVJIT_SUCCESS) {
        fail(text, size, "convjit_open: %s", convjit_last_error());
        numerics_close(out);
        return false;
    }
    convjit_environment environment;
    convjit_get_environment(out->context, &environment);
    memcpy(out->target, environment.target, sizeof out->target);
    return true;
}

void numerics_close(numerics *on) {
    convjit_close(on->context);
    memory_close(on->memory);
    if (on->cache[0] != '\0') {
        testing_folder_remove(on->cache);
    }
    *on = (numerics){0};
}

/* --------------------------------------------------------------------------------------------------------------- run
 */

/* Everything one run holds; all of it is freed at one place. */
typedef struct run {
    numerics *on;
    const numerics_job *job;
    char *text;
    size_t size;
    placed x, y, z, w, bias;
    convjit_layer *layer;
    void *packed; /* weights in memory of ours, for every second case */
    void *again;  /* outputs of the second forward */
} run;

static int64_t pixels_of(const int64_t *size, int32_t rank) {
    int64_t pixels = 1;
    for (int32_t i = 0; i < rank; ++i) {
        pixels *= size[i];
    }
    return pixels;
}

static bool make_buffers(run *r) {
    const numerics_job *job = r->job;
    const convjit_desc *desc = &job->layer.desc;
    const grid_case *place = &job->place;
    memory *of = r->on->memory;
    const bool last = desc->layout == CONVJIT_CHANNELS_LAST;
    const bool even = place->seed % 2 == 1, guard = place->seed % 3 != 0;
    const int64_t in[3] = {job->layer.batch, desc->in_channels, pixels_of(job->layer.in_size, desc->rank)};
    const int64_t out[3] = {job->layer.batch, desc->out_channels, pixels_of(job->layer.out_size, desc->rank)};
    const placement x = {place->slice_x, place->shift_x, guard, even}, y = {place->slice_y, place->shift_y, true, even},
                    z = {place->slice_z, place->shift_z, guard, even}, flat = {.shift = place->shift_w};
    return placed_make(of, desc->data_type, last, in, x, &r->x) &&
           placed_make(of, desc->data_type, last, out, y, &r->y) &&
           placed_make(of, desc->data_type, last, out, z, &r->z) &&
           placed_make(of, desc->weight_type, false, (int64_t[3]){1, 1, job->layer.w_count}, flat, &r->w) &&
           placed_make(of, desc->bias_type, false, (int64_t[3]){1, 1, desc->out_channels}, flat, &r->bias) &&
           (r->again = malloc((size_t)(job->layer.y_count * reference_type_bytes(desc->data_type)) + 1)) != NULL;
}

static bool send_buffers(run *r) {
    const numerics_job *job = r->job;
    memory *of = r->on->memory;
    placed_fill(&r->x, job->x);
    placed_fill(&r->w, job->w);
    if (job->bias != NULL) {
        placed_fill(&r->bias, job->bias);
    }
    if (job->z != NULL) {
        placed_fill(job->place.residual == GRID_Z_IS_Y ? &r->y : &r->z, job->z);
    }
    return placed_send(of, &r->x) && placed_send(of, &r->w) && placed_send(of, &r->bias) && placed_send(of, &r->y) &&
           placed_send(of, &r->z);
}

/* Sets the weights, then spoils w and bias: forward must not read them any more. */
static bool set_weights(run *r) {
    memory *of = r->on->memory;
    const void *w = placed_argument(&r->w, 0).data;
    const void *bias = r->job->bias != NULL ? placed_argument(&r->bias, 0).data : NULL;
    convjit_status status;
    if (r->job->place.seed % 2 == 0) {
        status = convjit_layer_set_weights(r->layer, w, bias, NULL);
    } else {
        r->packed = memory_allocate(of, convjit_layer_packed_bytes(r->layer));
        if (r->packed == NULL) {
            return fail(r->text, r->size, "no memory for packed weights");
        }
        status = convjit_layer_set_weights_in(r->layer, w, bias, r->packed, NULL);
    }
    if (status != CONVJIT_SUCCESS) {
        return fail(r->text, r->size, "set_weights: %s", convjit_last_error());
    }
    reference_poison(r->w.image, r->w.type, r->w.total);
    reference_poison(r->bias.image, r->bias.type, r->bias.total);
    return (placed_send(of, &r->w) && placed_send(of, &r->bias)) ||
           fail(r->text, r->size, "set_weights: %s", memory_error(of));
}

/* Forward of the images from `first` on into y, then y's elements into `dense`. */
static bool forward(run *r, int64_t first, void *dense) {
    const numerics_job *job = r->job;
    convjit_io io = CONVJIT_IO_INIT;
    io.batch = job->layer.batch - first;
    memcpy(io.in_size, job->layer.in_size, sizeof io.in_size);
    io.x = placed_argument(&r->x, first);
    io.y = placed_argument(&r->y, first);
    if (job->z != NULL) {
        io.z = job->place.residual == GRID_Z_IS_Y   ? io.y
               : job->place.residual == GRID_Z_IS_X ? io.x
                                                    : placed_argument(&r->z, first);
    }
    if (convjit_layer_forward(r->layer, &io, NULL) != CONVJIT_SUCCESS) {
        return fail(r->text, r->size, "forward: %s", convjit_last_error());
    }
    const int64_t touched = placed_receive(r->on->memory, &r->y, dense);
    if (touched == -2) {
        return fail(r->text, r->size, "forward: %s", memory_error(r->on->memory));
    }
    return touched == -1 ||
           fail(r->text, r->size, "forward wrote element %lld of y's buffer, outside of y (%lld to %lld)",
                (long long)touched, (long long)r->y.first, (long long)(r->y.total - 1));
}

/* Runs the last image alone (or the only one again): it must give the bits it gave in its batch. */
static bool forward_again(run *r) {
    const reference_layer *layer = &r->job->layer;
    const int64_t first = layer->batch > 0 ? layer->batch - 1 : 0;
    const size_t bytes = (size_t)(layer->y_count * reference_type_bytes(layer->desc.data_type));
    const size_t before = layer->batch > 0 ? bytes / (size_t)layer->batch * (size_t)first : 0;
    if (!placed_send(r->on->memory, &r->y)) {
        return fail(r->text, r->size, "forward: %s", memory_error(r->on->memory));
    }
    if (!forward(r, first, r->again)) {
        return false;
    }
    return memcmp((char *)r->again + before, (char *)r->job->y + before, bytes - before) == 0 ||
           fail(r->text, r->size, "the last image alone differs from the same image in its batch");
}

static bool compare(run *r) {
    const numerics_job *job = r->job;
    numerics *on = r->on;
    const reference_comparison result =
        reference_compare(&job->layer, job->x, job->w, job->bias, job->z, job->y, INT64_MAX);
    on->worst = result.worst_over_tolerance;
    reference_describe(&job->layer, &result, on->worst_at, sizeof on->worst_at);
    return result.failed == 0 || fail(r->text, r->size, "%lld of %lld outputs are off, %s", (long long)result.failed,
                                      (long long)result.checked, on->worst_at);
}

bool numerics_run(numerics *on, const numerics_job *job, char *text, size_t size) {
    run r = {.on = on, .job = job, .text = text, .size = size};
    bool passed = false;
    on->worst = 0.0;
    on->worst_at[0] = '\0';
    if (!make_buffers(&r)) {
        fail(text, size, "no memory for the tensors");
    } else if (!send_buffers(&r)) {
        fail(text, size, "copy to the device: %s", memory_error(on->memory));
    } else if (convjit_layer_create(on->context, &job->layer.desc, &r.layer) != CONVJIT_SUCCESS) {
        fail(text, size, "create: %s", convjit_last_error());
    } else {
        passed = set_weights(&r) && forward(&r, 0, job->y) && compare(&r) && forward_again(&r);
    }
    convjit_layer_destroy(r.layer);
    if (r.packed != NULL) {
        memory_release(on->memory, r.packed);
    }
    free(r.again);
    placed *const all[] = {&r.x, &r.y, &r.z, &r.w, &r.bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
        placed_free(on->memory, all[i]);
    }
    return passed;
}

/* --------------------------------------------------------------------------------------------------- a case's data */

static void *make_data(const numerics_job *job, convjit_type type, int64_t count, reference_role role) {
    void *data = malloc((size_t)(count * reference_type_bytes(type)) + 1);
    if (data != NULL) {
        reference_fill_tensor(data, &job->layer, role, job->place.seed, job->place.distribution);
    }
    return data;
}

static void place_special(const grid_case *grid, const reference_layer *layer, void *x, void *w) {
    static const double values[GRID_SPECIALS][2] = {[GRID_NAN_IN_X] = {NAN, NAN},
                                                    [GRID_INF_IN_X] = {INFINITY, -INFINITY},
                                                    [GRID_NAN_IN_W] = {NAN, NAN},
                                                    [GRID_INF_IN_W] = {INFINITY, -INFINITY},
                                                    [GRID_HUGE_IN_X] = {1e30, FLT_MAX}};
    const bool in_w = grid->special == GRID_NAN_IN_W || grid->special == GRID_INF_IN_W;
    const int64_t count = in_w ? layer->w_count : layer->x_count;
    if (grid->special == GRID_PLAIN || count == 0) {
        return;
    }
    void *data = in_w ? w : x;
    const convjit_type type = in_w ? layer->desc.weight_type : layer->desc.data_type;
    reference_set(data, type, 0, values[grid->special][0]);
    reference_set(data, type, count - 1, values[grid->special][1]);
}

bool numerics_run_case(numerics *on, const grid_case *grid, char *text, size_t size) {
    numerics_job job = {.place = *grid};
    const convjit_desc *desc = &job.layer.desc;
    if (reference_layer_make(&grid->desc, grid->batch, grid->in_size, &job.layer) != CONVJIT_SUCCESS) {
        return fail(text, size, "%s", convjit_last_error());
    }
    void *x = make_data(&job, desc->data_type, job.layer.x_count, REFERENCE_X);
    void *w = make_data(&job, desc->weight_type, job.layer.w_count, REFERENCE_W);
    void *bias = make_data(&job, desc->bias_type, job.layer.bias_count, REFERENCE_BIAS);
    void *z = make_data(&job, desc->data_type, job.layer.y_count, REFERENCE_Z);
    job.y = make_data(&job, desc->data_type, job.layer.y_count, REFERENCE_Y);
    bool passed = false;
    if (x != NULL && w != NULL && bias != NULL && z != NULL && job.y != NULL) {
        place_special(grid, &job.layer, x, w);
        job.x = x;
        job.w = w;
        job.bias = grid->bias ? bias : NULL;
        job.z = desc->beta == 0 ? NULL : grid->residual == GRID_Z_IS_X ? x : z;
        passed = numerics_run(on, &job, text, size);
    } else {
        fail(text, size, "no memory for the data");
    }
    free(x);
    free(w);
    free(bias);
    free(z);
    free(job.y);
    return passed;
}
