/* trial.c - the life of a layer as a user has it, and the check at its end. */
#include "trial.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* A tensor twice: on the host, for the reference, and where the layer runs. */
typedef struct tensor {
    void *host, *buffer;
    int64_t count;
    size_t bytes;
} tensor;

struct trial_data {
    reference_layer shape;
    tensor x, w, bias, y, z; /* z only where the layer reads it */
};

/* Notes why the trial failed; returns false. */
static bool fail(trial *of, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(trial *of, const char *format, ...) {
    va_list list;
    va_start(list, format);
    if (vasprintf(&of->message, format, list) < 0) {
        of->message = NULL;
    }
    va_end(list);
    return false;
}

static bool check(trial *of, convjit_status status) {
    return status == CONVJIT_SUCCESS || fail(of, "%s: %s", convjit_status_name(status), convjit_last_error());
}

static bool check_memory(trial *of, const trial_setup *setup, bool fine) {
    return fine || fail(of, "%s", memory_error(setup->memory));
}

/* ---------------------------------------------------------------- data */

static bool make(trial *of, const trial_setup *setup, tensor *out, int64_t count, convjit_type type) {
    if (__builtin_mul_overflow(count, reference_type_bytes(type), &out->bytes)) {
        return fail(of, "a tensor of %lld elements does not fit in memory", (long long)count);
    }
    out->count = count;
    out->host = malloc(out->bytes > 0 ? out->bytes : 1);
    if (out->host == NULL) {
        return fail(of, "host memory is used up: a tensor of %zu bytes", out->bytes);
    }
    out->buffer = memory_allocate(setup->memory, out->bytes);
    return check_memory(of, setup, out->buffer != NULL);
}

static bool make_random(trial *of, const trial_setup *setup, tensor *out, const reference_layer *shape, int64_t count,
                        convjit_type type, reference_role role) {
    if (!make(of, setup, out, count, type)) {
        return false;
    }
    reference_fill_tensor(out->host, shape, role, setup->seed, setup->distribution);
    return check_memory(of, setup, memory_write(setup->memory, out->buffer, out->host, out->bytes));
}

static bool fill_data(trial *of, const trial_setup *setup, const named_layer *layer, trial_data *out) {
    const convjit_desc *desc = &layer->desc;
    const reference_layer *shape = &out->shape;
    const int64_t *in_size = desc->in_size[0] == 0 ? setup->in_size : NULL;
    const convjit_status sized = reference_layer_make(desc, layer->batch, in_size, &out->shape);
    if (sized == CONVJIT_INVALID_ARGUMENT) {
        return fail(of, "batch %lld: its tensors have more elements than can be counted", (long long)layer->batch);
    }
    if (!check(of, sized) || !make_random(of, setup, &out->x, shape, shape->x_count, desc->data_type, REFERENCE_X) ||
        !make_random(of, setup, &out->w, shape, shape->w_count, desc->weight_type, REFERENCE_W) ||
        !make_random(of, setup, &out->bias, shape, shape->bias_count, desc->bias_type, REFERENCE_BIAS) ||
        (desc->beta != 0.0F && !make_random(of, setup, &out->z, shape, shape->y_count, desc->data_type, REFERENCE_Z)) ||
        !make(of, setup, &out->y, shape->y_count, desc->data_type)) {
        return false;
    }
    return true;
}

static bool poison(trial *of, const trial_setup *setup, const trial_data *data) {
    const tensor *const y = &data->y;
    reference_poison(y->host, data->shape.desc.data_type, y->count);
    return check_memory(of, setup, memory_write(setup->memory, y->buffer, y->host, y->bytes));
}

void trial_data_free(const trial_setup *setup, trial_data *of) {
    if (of == NULL) {
        return;
    }
    const tensor all[] = {of->x, of->w, of->bias, of->y, of->z};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i].host);
        if (all[i].buffer != NULL) {
            memory_release(setup->memory, all[i].buffer);
        }
    }
    free(of);
}

static trial_data *make_data(trial *of, const trial_setup *setup, const named_layer *layer) {
    trial_data *data = calloc(1, sizeof *data);
    if (data == NULL) {
        (void)fail(of, "host memory is used up");
    } else if (!fill_data(of, setup, layer, data)) {
        trial_data_free(setup, data);
        data = NULL;
    }
    return data;
}

/* ---------------------------------------------------------------- forward */

typedef struct call {
    trial *of;
    convjit_io io;
} call;

static bool forward(void *state) {
    const call *c = state;
    return check(c->of, convjit_layer_forward(c->of->layer, &c->io, NULL));
}

static call make_call(trial *of, const trial_data *t) {
    call c = {of, CONVJIT_IO_INIT};
    c.io.batch = t->shape.batch;
    memcpy(c.io.in_size, t->shape.in_size, sizeof c.io.in_size);
    c.io.x.data = t->x.buffer;
    c.io.y.data = t->y.buffer;
    c.io.z.data = t->z.buffer;
    return c;
}

/* Without outputs to compare, the clock's wait tells what failed on the device. */
static bool compare(trial *of, const trial_setup *setup, trial_data *t) {
    if (setup->check == 0 && setup->repeat > 0) {
        return true;
    }
    if (!check_memory(of, setup, memory_read(setup->memory, t->y.buffer, t->y.host, t->y.bytes))) {
        return false;
    }
    if (setup->check == 0) {
        return true;
    }
    const reference_comparison found =
        reference_compare(&t->shape, t->x.host, t->w.host, t->bias.host, t->z.host, t->y.host, setup->check);
    of->checked = found.checked;
    if (found.checked > 0) {
        of->over_sum = found.worst_over_sum;
        of->over_tolerance = found.worst_over_tolerance;
    }
    if (found.failed > 0) {
        char text[256];
        reference_describe(&t->shape, &found, text, sizeof text);
        return fail(of, "%lld of %lld outputs are off, %s", (long long)found.failed, (long long)found.checked, text);
    }
    return true;
}

/* ---------------------------------------------------------------- time */

/* Multiplications and additions, padding counted in, as is usual. */
static double operations(const reference_layer *shape) {
    const convjit_desc *d = &shape->desc;
    const bool transposed = d->operation == CONVJIT_TRANSPOSED;
    const int64_t channels = transposed ? d->out_channels : d->in_channels; /* summed over, or spread to */
    double count = 2.0 * (double)(transposed ? shape->x_count : shape->y_count) * (double)(channels / d->groups);
    for (int axis = 0; axis < d->rank; axis++) {
        count *= (double)d->kernel[axis];
    }
    return count;
}

static int ascending(const void *a, const void *b) {
    const double left = *(const double *)a;
    const double right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2.0;
}

/* The call that was compared has warmed up a host; a GPU also has to raise its clock. */
enum { WARM_UPS = 3 };

static bool take_time(trial *of, const trial_setup *setup, call *c, const reference_layer *shape) {
    if (setup->repeat == 0) {
        return true;
    }
    const size_t count = (size_t)setup->repeat;
    double *times = calloc(count, sizeof *times);
    if (times == NULL) {
        return fail(of, "host memory is used up: %zu times", count);
    }
    bool fine = true;
    for (int i = 0; fine && i < WARM_UPS && memory_is_cuda(setup->memory); i++) {
        fine = forward(c);
    }
    fine = fine && memory_time(setup->memory, forward, c, (int)count, times);
    if (fine) {
        of->forward_ms = median(times, count);
        of->gflops = shape->y_count > 0 ? operations(shape) / (of->forward_ms * 1e6) : NAN;
    } else if (of->message == NULL) {
        (void)check_memory(of, setup, false);
    }
    free(times);
    return fine;
}

/* ---------------------------------------------------------------- all of it */

static bool try_layer(trial *of, const trial_setup *setup, const named_layer *layer, const way *as, trial_data **data) {
    if (!check(of, session_create(setup->context, layer, as, &of->layer))) {
        of->layer = NULL;
        return false;
    }
    of->info = convjit_layer_get_info(of->layer);
    const double predicted = convjit_layer_predict_ms(of->layer, layer->batch);
    of->predicted_ms = predicted > 0.0 && memory_is_cuda(setup->memory) ? predicted : NAN;
    if (*data == NULL) {
        *data = make_data(of, setup, layer);
    }
    trial_data *const t = *data;
    if (t == NULL) {
        return false;
    }
    call c = make_call(of, t);
    return (setup->check == 0 || poison(of, setup, t)) &&
           check(of, convjit_layer_set_weights(of->layer, t->w.buffer, t->bias.buffer, NULL)) && forward(&c) &&
           compare(of, setup, t) && take_time(of, setup, &c, &t->shape);
}

trial trial_run(const trial_setup *setup, const named_layer *layer, const way *as, trial_data **data) {
    trial result = {.forward_ms = NAN, .predicted_ms = NAN, .gflops = NAN, .over_sum = NAN, .over_tolerance = NAN};
    trial_data *own = NULL;
    (void)convjit_layer_line_format(&layer->desc, layer->batch, result.line, sizeof result.line);
    result.info.create_ms = NAN;
    result.passed = try_layer(&result, setup, layer, as, data != NULL ? data : &own);
    trial_data_free(setup, own);
    return result;
}

void trial_free(trial *of) {
    convjit_layer_destroy(of->layer);
    free(of->message);
    *of = (trial){0};
}
