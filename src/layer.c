/* layer.c - the spine: a context, then the life of a layer from top to bottom. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "binary.h"
#include "dump.h"
#include "environment.h"
#include "family.h"
#include "loaded.h"
#include "plans.h"
#include "record.h"
#include "settings.h"
#include "stamp.h"
#include "status.h"

struct convjit_context {
    cj_target target;
    const cj_device *device; /* NULL: builds into the cache only */
    void *opened;            /* of device */
    cj_store *store;
    cj_counters *counters;
    cj_record *record;
    cj_plans *plans;
    cj_log log;
    char *dump_directory; /* or NULL */
    cj_loaded *loaded;    /* NULL without a device */
};

struct convjit_layer {
    convjit_context *context;
    cj_problem problem;
    cj_plan plan;
    cj_module *module;    /* owned by the context; NULL without a device */
    cj_forward_args args; /* what does not change from call to call */
    void *packed;         /* NULL: no weights yet */
    void *own_packed;     /* packed, if the layer allocated it */
    cj_key key;
    cj_origin origin;
    double create_ms;
    char line[CONVJIT_LAYER_LINE_MAX];
};

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- context ---- */

static convjit_status open_target(convjit_context *context, const char *name) {
    if (name) {
        CJ_TRY(cj_target_parse(name, &context->target));
    }
    if (name && context->target.kind != CJ_TARGET_CPU) {
        return CONVJIT_SUCCESS;
    }
    context->device = name ? &cj_cpu_device : &cj_cuda_device;
    return context->device->open(&context->target, &context->opened);
}

static convjit_status fill_context(convjit_context *context, const convjit_options *options) {
    context->log = (cj_log){options->log, options->log_user};
    context->counters = cj_counters_create();
    context->record = cj_record_open(options->record_file, &context->log);
    context->dump_directory = options->dump_directory ? strdup(options->dump_directory) : NULL;
    convjit_status status = cj_store_open(options, &context->store);
    if (status != CONVJIT_SUCCESS) {
        return cj_fail_prefix(status, "open failed");
    }
    if (cj_store_notice(context->store)[0]) {
        cj_log_line(&context->log, "cache: %s", cj_store_notice(context->store));
    }
    CJ_TRY(open_target(context, options->target));
    if ((status = cj_plans_read(options->plan_file, context->target.name, &context->plans)) != CONVJIT_SUCCESS) {
        return cj_fail_prefix(status, "open failed");
    }
    context->loaded = cj_loaded_create(context->device);
    const bool dump = context->dump_directory || !options->dump_directory;
    CJ_RETURN_IF(!context->counters || !context->record || !context->loaded || !dump, CONVJIT_OUT_OF_MEMORY,
                 "open failed: no memory for a context");
    return CONVJIT_SUCCESS;
}

convjit_status convjit_open(const convjit_options *options, convjit_context **out) {
    const convjit_options defaults = CONVJIT_OPTIONS_INIT;
    options = options ? options : &defaults;
    CJ_RETURN_IF(!out, CONVJIT_INVALID_ARGUMENT, "open failed: out is NULL");
    CJ_RETURN_IF(options->struct_size != sizeof *options, CONVJIT_INVALID_ARGUMENT,
                 "open failed: struct_size %zu, must be %zu; initialise with CONVJIT_OPTIONS_INIT",
                 options->struct_size, sizeof *options);
    convjit_context *context = calloc(1, sizeof *context);
    CJ_RETURN_IF(!context, CONVJIT_OUT_OF_MEMORY, "open failed: no memory for a context");
    const convjit_status status = fill_context(context, options);
    if (status != CONVJIT_SUCCESS) {
        convjit_close(context);
        return status;
    }
    *out = context;
    return CONVJIT_SUCCESS;
}

void convjit_close(convjit_context *context) {
    if (!context) {
        return;
    }
    cj_loaded_destroy(context->loaded);
    cj_counters_destroy(context->counters);
    cj_record_close(context->record);
    cj_plans_free(context->plans);
    cj_store_close(context->store);
    free(context->dump_directory);
    free(context);
}

convjit_counters convjit_get_counters(const convjit_context *context) {
    return context ? cj_counters_read(context->counters) : (convjit_counters){0};
}

void convjit_get_environment(const convjit_context *context, convjit_environment *out) {
    const convjit_options defaults = CONVJIT_OPTIONS_INIT;
    cj_store *own = NULL;
    const cj_store *store = context ? context->store : NULL;
    if (!context && cj_store_open(&defaults, &own) == CONVJIT_SUCCESS) {
        store = own;
    }
    char cache[sizeof out->cache_directory];
    snprintf(cache, sizeof cache, "%s%s%s", store ? cj_store_describe(store) : convjit_last_error(),
             store && cj_store_mode(store) != CONVJIT_CACHE_NORMAL ? "; mode " : "",
             store && cj_store_mode(store) != CONVJIT_CACHE_NORMAL ? cj_store_mode_name(store) : "");
    cj_environment_fill(context ? &context->target : NULL, cache, out);
    cj_store_close(own);
}

/* ---- create ---- */

/* Loads `binary`; one that was kept and that the device refuses is built anew, once. */
static convjit_status load(convjit_layer *layer, const cj_request *request, cj_binary *binary) {
    convjit_context *context = layer->context;
    convjit_status status = cj_loaded_share(context->loaded, binary, request->shared_bytes, &layer->module);
    if (status == CONVJIT_LOAD_FAILED && layer->origin != CJ_ORIGIN_COMPILER) {
        CJ_TRY(cj_binary_rebuild(request, binary, context->store, context->counters, &context->log, &binary));
        layer->origin = CJ_ORIGIN_COMPILER;
        status = cj_loaded_share(context->loaded, binary, request->shared_bytes, &layer->module);
    }
    if (status != CONVJIT_SUCCESS) {
        cj_binary_release(binary);
    }
    return status;
}

/* Stamps the source, which makes the request whose binary the layer needs. */
static convjit_status stamp(const convjit_layer *layer, cj_text *source, cj_request *out) {
    const convjit_context *context = layer->context;
    CJ_TRY(cj_stamp(&layer->problem, &layer->plan, &context->target, source));
    *out = (cj_request){.target = &context->target,
                        .source = source->data,
                        .source_size = source->size,
                        .line = layer->line,
                        .family = layer->plan.family->name,
                        .threads = layer->plan.threads,
                        .shared_bytes = layer->plan.shared_bytes};
    return CONVJIT_SUCCESS;
}

/* Stamps the source, gets its binary and loads it. */
static convjit_status build(convjit_layer *layer, cj_text *source) {
    convjit_context *context = layer->context;
    cj_binary *binary = NULL;
    cj_request request;
    CJ_TRY(stamp(layer, source, &request));
    CJ_TRY(cj_binary_get(&request, context->store, context->counters, &context->log, &binary, &layer->origin));
    layer->key = binary->key;
    if (context->dump_directory) {
        cj_dump(context->dump_directory, &request, binary, &context->log);
    }
    if (!context->device) {
        cj_binary_release(binary);
        return CONVJIT_SUCCESS;
    }
    return load(layer, &request, binary);
}

/* The kernel of a layer whose line this context has seen before. A family that is forced may be another one now. */
static bool recall(convjit_layer *layer) {
    convjit_context *context = layer->context;
    cj_known known;
    if (!context->device || cj_setting_get(CJ_SETTING_FAMILY) ||
        !cj_loaded_find(context->loaded, layer->line, &known)) {
        return false;
    }
    layer->plan = known.plan;
    layer->key = known.key;
    layer->module = known.module;
    layer->origin = CJ_ORIGIN_MEMORY;
    cj_counters_found(context->counters, CJ_FOUND_IN_MEMORY);
    return true;
}

/* The part of a launch's arguments that no forward call changes. */
static void prepare_args(convjit_layer *layer) {
    for (int d = 0; d < CJ_DIMS; ++d) {
        layer->args.in_size[d] = layer->problem.in_size[d];
        layer->args.out_size[d] = layer->problem.out_size[d];
    }
}

/* Plans the layer in the way that is given, or else in that of the plan file, or as predicted. */
static convjit_status choose_plan(convjit_layer *layer, const cj_way *given) {
    const convjit_context *context = layer->context;
    const cj_way *const way = given ? given : cj_plans_find(context->plans, layer->line);
    cj_text why = {0};
    convjit_status status = CONVJIT_SUCCESS;
    const bool found = way && cj_family_find(&layer->problem, &context->target, way, &layer->plan, &why);
    if (given && !found) {
        status = cj_fail(CONVJIT_INVALID_ARGUMENT, "not to be computed by family \"%s\" so: %s", way->family,
                         why.failed ? "no memory for the reason" : why.data);
    } else if (!found) {
        if (way) {
            cj_log_line(&context->log, "plan file: %s: its plan is not used: %s", layer->line,
                        why.failed ? "no memory for the reason" : why.data);
        }
        status = cj_family_choose(&layer->problem, &context->target, &layer->plan);
    }
    cj_text_free(&why);
    return status;
}

/* Check, plan, kernel; `way` may be NULL. */
static convjit_status complete(convjit_layer *layer, const convjit_desc *desc, const cj_way *way) {
    convjit_context *context = layer->context;
    CJ_TRY(cj_problem_make(desc, &layer->problem));
    convjit_layer_line_format(desc, -1, layer->line, sizeof layer->line);
    prepare_args(layer);
    const bool known = !way && recall(layer);
    if (!known) {
        CJ_TRY(choose_plan(layer, way));
        cj_record_add(context->record, layer->line, &context->log);
    }
    if (context->device) {
        CJ_TRY(context->device->check_current(context->opened));
    }
    cj_text source = {0};
    const convjit_status status = known ? CONVJIT_SUCCESS : build(layer, &source);
    cj_text_free(&source);
    if (status == CONVJIT_SUCCESS && !known && !way && context->device) {
        cj_loaded_remember(context->loaded, layer->line,
                           &(cj_known){.plan = layer->plan, .key = layer->key, .module = layer->module});
    }
    return status;
}

static convjit_status create(convjit_context *context, const convjit_desc *desc, const cj_way *way,
                             convjit_layer **out) {
    const double start = now_ms();
    CJ_RETURN_IF(!context, CONVJIT_INVALID_ARGUMENT, "create failed: context is NULL");
    CJ_RETURN_IF(!out, CONVJIT_INVALID_ARGUMENT, "create failed: out is NULL");
    convjit_layer *layer = calloc(1, sizeof *layer);
    CJ_RETURN_IF(!layer, CONVJIT_OUT_OF_MEMORY, "create failed: no memory for a layer");
    layer->context = context;
    const convjit_status status = complete(layer, desc, way);
    if (status != CONVJIT_SUCCESS) {
        cj_fail_prefix(status, "create failed for %s", layer->line[0] ? layer->line : "this descriptor");
        free(layer);
        return status;
    }
    layer->create_ms = now_ms() - start;
    cj_log_line(&context->log, "convjit: %s %s %s: %s, key %s, %.1f ms", context->target.name, layer->plan.family->name,
                layer->line, cj_origin_name(layer->origin), layer->key.hex, layer->create_ms);
    *out = layer;
    return CONVJIT_SUCCESS;
}

convjit_status convjit_layer_create(convjit_context *context, const convjit_desc *desc, convjit_layer **out) {
    return create(context, desc, NULL, out);
}

convjit_status convjit_layer_create_as(convjit_context *context, const convjit_desc *desc, const char *family,
                                       const char *config, convjit_layer **out) {
    cj_way way = {.family = family};
    CJ_RETURN_IF(!family || !config, CONVJIT_INVALID_ARGUMENT, "create failed: %s is NULL",
                 family ? "config" : "family");
    CJ_RETURN_IF((size_t)snprintf(way.config, sizeof way.config, "%s", config) >= sizeof way.config,
                 CONVJIT_INVALID_ARGUMENT, "create failed: a configuration of %zu characters, at most %zu",
                 strlen(config), sizeof way.config - 1);
    return create(context, desc, &way, out);
}

/* ---- export and import ---- */

/* The binary is asked for once more: a context with a device has it in memory, one without reads its entry again. */
static convjit_status export(const convjit_layer *layer, cj_counters *uncounted, cj_text *source, void *bytes,
                             size_t *size) {
    const convjit_context *context = layer->context;
    cj_request request;
    cj_binary *binary = NULL;
    cj_origin origin;
    CJ_TRY(stamp(layer, source, &request));
    CJ_TRY(cj_binary_get(&request, context->store, uncounted, &context->log, &binary, &origin));
    const convjit_status status = cj_binary_write(&request, binary, bytes, size);
    cj_binary_release(binary);
    return status;
}

convjit_status convjit_layer_export(const convjit_layer *layer, void *bytes, size_t *size) {
    CJ_RETURN_IF(!layer || !size, CONVJIT_INVALID_ARGUMENT, "export failed: %s is NULL", layer ? "size" : "layer");
    cj_text source = {0};
    cj_counters *uncounted = cj_counters_create();
    const convjit_status status =
        uncounted ? export(layer, uncounted, &source, bytes, size) : cj_fail(CONVJIT_OUT_OF_MEMORY, "no memory");
    cj_counters_destroy(uncounted);
    cj_text_free(&source);
    return status == CONVJIT_SUCCESS ? status : cj_fail_prefix(status, "export failed for %s", layer->line);
}

convjit_status convjit_import(convjit_context *context, const void *bytes, size_t size) {
    CJ_RETURN_IF(!context || !bytes, CONVJIT_INVALID_ARGUMENT, "import failed: %s is NULL",
                 context ? "bytes" : "context");
    cj_entry entry = {0};
    cj_binary *binary = NULL;
    const char *fault = cj_entry_decode(bytes, size, &entry);
    CJ_RETURN_IF(fault, CONVJIT_INVALID_ARGUMENT, "import failed: these %zu bytes are no kernel: %s", size, fault);
    CJ_RETURN_IF(strcmp(entry.target, context->target.name) != 0, CONVJIT_INVALID_ARGUMENT,
                 "import failed: the kernel is for target %.40s, the context for %s", entry.target,
                 context->target.name);
    CJ_TRY(cj_binary_import(&entry, &binary));
    return cj_loaded_keep(context->loaded, binary);
}

/* ---- set weights ---- */

size_t convjit_layer_packed_bytes(const convjit_layer *layer) {
    return layer ? layer->plan.packed_bytes : 0;
}

static convjit_status check_device(const convjit_layer *layer, const char *call) {
    CJ_RETURN_IF(!layer, CONVJIT_INVALID_ARGUMENT, "%s failed: layer is NULL", call);
    CJ_RETURN_IF(
        !layer->module, CONVJIT_NO_DEVICE,
        "%s failed for %s: its context was opened for target %s, which only builds; open it without a target to "
        "run on the current device",
        call, layer->line, layer->context->target.name);
    return CONVJIT_SUCCESS;
}

static convjit_status pack(convjit_layer *layer, const void *weights, const void *bias, void *packed,
                           convjit_stream stream) {
    const cj_pack_args args = {.w = weights, .bias = bias, .packed = packed, .work = layer->plan.pack_work};
    const int64_t blocks = (args.work + layer->plan.threads - 1) / layer->plan.threads;
    const cj_launch launch = {.entry = CJ_PACK,
                              .blocks = (uint32_t)(blocks < 4096 ? blocks : 4096),
                              .threads = layer->plan.threads,
                              .args = &args};
    const convjit_status status = layer->context->device->launch(layer->module, &launch, stream);
    return status == CONVJIT_SUCCESS ? status : cj_fail_prefix(status, "set weights failed for %s", layer->line);
}

convjit_status convjit_layer_set_weights(convjit_layer *layer, const void *weights, const void *bias,
                                         convjit_stream stream) {
    CJ_TRY(check_device(layer, "set weights"));
    CJ_RETURN_IF(!weights, CONVJIT_INVALID_ARGUMENT, "set weights failed for %s: weights is NULL", layer->line);
    if (!layer->own_packed) {
        const convjit_status status = layer->context->device->allocate(layer->plan.packed_bytes, &layer->own_packed);
        if (status != CONVJIT_SUCCESS) {
            return cj_fail_prefix(status, "set weights failed for %s", layer->line);
        }
    }
    CJ_TRY(pack(layer, weights, bias, layer->own_packed, stream));
    layer->packed = layer->own_packed;
    return CONVJIT_SUCCESS;
}

convjit_status convjit_layer_set_weights_in(convjit_layer *layer, const void *weights, const void *bias, void *packed,
                                            convjit_stream stream) {
    CJ_TRY(check_device(layer, "set weights"));
    CJ_RETURN_IF(!packed, CONVJIT_INVALID_ARGUMENT, "set weights failed for %s: packed is NULL", layer->line);
    CJ_RETURN_IF((uintptr_t)packed % 256, CONVJIT_INVALID_ARGUMENT,
                 "set weights failed for %s: packed %p is not aligned to 256 bytes", layer->line, packed);
    if (weights) {
        CJ_TRY(pack(layer, weights, bias, packed, stream));
    }
    layer->packed = packed;
    return CONVJIT_SUCCESS;
}

/* ---- forward ---- */

/* One tensor of a call: its name, shape and strides, dense ones filled in. */
typedef struct view {
    const char *name;
    const void *data;
    int64_t channels, pixels;
    int64_t batch_stride, channel_stride, pixel_stride;
} view;

/* Fills in dense strides and checks given ones; `elements` = those between the first and past the last one. */
static convjit_status make_view(const convjit_layer *layer, const convjit_tensor *tensor, int64_t batch, view *v) {
    const bool last = layer->problem.channels_last;
    int64_t item, elements, bytes;
    CJ_RETURN_IF(!tensor->data, CONVJIT_INVALID_ARGUMENT, "forward failed for %s: %s is NULL", layer->line, v->name);
    CJ_RETURN_IF((uintptr_t)tensor->data % (uintptr_t)cj_type_bytes(layer->problem.desc.data_type),
                 CONVJIT_INVALID_ARGUMENT, "forward failed for %s: %s %p is not aligned to its elements", layer->line,
                 v->name, tensor->data);
    CJ_RETURN_IF(last ? tensor->channel_stride : tensor->pixel_stride, CONVJIT_INVALID_ARGUMENT,
                 "forward failed for %s: %s has a %s_stride, which this layout does not", layer->line, v->name,
                 last ? "channel" : "pixel");
    v->data = tensor->data;
    v->channel_stride = last ? 1 : tensor->channel_stride ? tensor->channel_stride : v->pixels;
    v->pixel_stride = !last ? 1 : tensor->pixel_stride ? tensor->pixel_stride : v->channels;
    CJ_RETURN_IF(v->channel_stride < (last ? 1 : v->pixels), CONVJIT_INVALID_ARGUMENT,
                 "forward failed for %s: %s channel_stride %lld, must be 0 or at least %lld", layer->line, v->name,
                 (long long)v->channel_stride, (long long)v->pixels);
    CJ_RETURN_IF(v->pixel_stride < (last ? v->channels : 1), CONVJIT_INVALID_ARGUMENT,
                 "forward failed for %s: %s pixel_stride %lld, must be 0 or at least %lld", layer->line, v->name,
                 (long long)v->pixel_stride, (long long)v->channels);
    CJ_RETURN_IF(tensor->batch_stride < 0, CONVJIT_INVALID_ARGUMENT,
                 "forward failed for %s: %s batch_stride %lld, must be at least 0", layer->line, v->name,
                 (long long)tensor->batch_stride);
    const bool item_overflows = last ? __builtin_mul_overflow(v->pixels, v->pixel_stride, &item)
                                     : __builtin_mul_overflow(v->channels, v->channel_stride, &item);
    v->batch_stride = tensor->batch_stride ? tensor->batch_stride : item;
    CJ_RETURN_IF(item_overflows || __builtin_mul_overflow(batch, v->batch_stride, &elements) ||
                     __builtin_add_overflow(elements, item, &elements) || __builtin_mul_overflow(elements, 4, &bytes),
                 CONVJIT_INVALID_ARGUMENT,
                 "forward failed for %s: %s of batch %lld and batch_stride %lld passes 2^63 bytes", layer->line,
                 v->name, (long long)batch, (long long)v->batch_stride);
    return CONVJIT_SUCCESS;
}

/* May elements be moved four at a time? `row` = the extent that must be a multiple of 4 for every row to start aligned.
 */
static bool aligned(const view *v, int64_t element_bytes, bool last, int64_t row) {
    return (uintptr_t)v->data % (uintptr_t)(4 * element_bytes) == 0 && v->batch_stride % 4 == 0 && row % 4 == 0 &&
           (last ? v->pixel_stride : v->channel_stride) % 4 == 0;
}

static convjit_status forward_sizes(const convjit_layer *layer, const convjit_io *io, cj_forward_args *args) {
    const cj_problem *p = &layer->problem;
    CJ_RETURN_IF(io->struct_size != sizeof *io, CONVJIT_INVALID_ARGUMENT,
                 "forward failed for %s: struct_size %zu, must be %zu; initialise with CONVJIT_IO_INIT", layer->line,
                 io->struct_size, sizeof *io);
    CJ_RETURN_IF(io->batch < 0, CONVJIT_INVALID_ARGUMENT, "forward failed for %s: batch %lld, must be at least 0",
                 layer->line, (long long)io->batch);
    args->batch = io->batch;
    if (p->dynamic) {
        int64_t in[CJ_DIMS] = {1, 1, 1}, out[CJ_DIMS];
        for (int i = 0; i < p->desc.rank; ++i) {
            in[CJ_DIMS - p->desc.rank + i] = io->in_size[i];
        }
        const convjit_status status = cj_problem_output_size(p, in, out);
        if (status != CONVJIT_SUCCESS) {
            return cj_fail_prefix(status == CONVJIT_INVALID_LAYER ? CONVJIT_INVALID_ARGUMENT : status,
                                  "forward failed for %s", layer->line);
        }
        for (int d = 0; d < CJ_DIMS; ++d) {
            args->in_size[d] = in[d];
            args->out_size[d] = out[d];
        }
    }
    return CONVJIT_SUCCESS;
}

static convjit_status forward_tensors(const convjit_layer *layer, const convjit_io *io, cj_forward_args *args) {
    const cj_problem *p = &layer->problem;
    const int64_t bytes = cj_type_bytes(p->desc.data_type);
    const int64_t in_pixels = args->in_size[0] * args->in_size[1] * args->in_size[2];
    const int64_t out_pixels = args->out_size[0] * args->out_size[1] * args->out_size[2];
    view x = {.name = "x", .channels = p->desc.in_channels, .pixels = in_pixels};
    view y = {.name = "y", .channels = p->desc.out_channels, .pixels = out_pixels};
    view z = {.name = "z", .channels = p->desc.out_channels, .pixels = out_pixels};
    CJ_TRY(make_view(layer, &io->x, io->batch, &x));
    CJ_TRY(make_view(layer, &io->y, io->batch, &y));
    CJ_RETURN_IF(x.data == y.data, CONVJIT_INVALID_ARGUMENT,
                 "forward failed for %s: x and y are both %p, but a convolution cannot run in place", layer->line,
                 x.data);
    const bool last = p->channels_last;
    args->x_aligned = aligned(&x, bytes, last, last ? p->group_in : args->in_size[CJ_X]);
    args->y_aligned = aligned(&y, bytes, last, last ? p->group_out : args->out_size[CJ_X]);
    args->x = x.data, args->y = io->y.data;
    args->x_batch_stride = x.batch_stride, args->x_channel_stride = x.channel_stride;
    args->x_pixel_stride = x.pixel_stride;
    args->y_batch_stride = y.batch_stride, args->y_channel_stride = y.channel_stride;
    args->y_pixel_stride = y.pixel_stride;
    if (p->desc.beta != 0.0F) {
        CJ_TRY(make_view(layer, &io->z, io->batch, &z));
        CJ_RETURN_IF(z.data == y.data && (z.batch_stride != y.batch_stride || z.channel_stride != y.channel_stride ||
                                          z.pixel_stride != y.pixel_stride),
                     CONVJIT_INVALID_ARGUMENT, "forward failed for %s: z is y, but with other strides", layer->line);
        args->y_aligned &= aligned(&z, bytes, last, last ? p->group_out : args->out_size[CJ_X]);
        args->z = z.data;
        args->z_batch_stride = z.batch_stride, args->z_channel_stride = z.channel_stride;
        args->z_pixel_stride = z.pixel_stride;
    }
    return CONVJIT_SUCCESS;
}

convjit_status convjit_layer_forward(const convjit_layer *layer, const convjit_io *io, convjit_stream stream) {
    CJ_TRY(check_device(layer, "forward"));
    CJ_RETURN_IF(!io, CONVJIT_INVALID_ARGUMENT, "forward failed for %s: io is NULL", layer->line);
    CJ_RETURN_IF(!layer->packed, CONVJIT_NOT_READY,
                 "forward failed for %s: no weights are set, call convjit_layer_set_weights first", layer->line);
    cj_forward_args args = layer->args;
    args.packed = layer->packed;
    CJ_TRY(forward_sizes(layer, io, &args));
    if (args.batch == 0 || args.out_size[0] == 0 || args.out_size[1] == 0 || args.out_size[2] == 0) {
        return CONVJIT_SUCCESS;
    }
    CJ_TRY(forward_tensors(layer, io, &args));
    cj_launch launch = {
        .entry = CJ_FORWARD, .threads = layer->plan.threads, .shared_bytes = layer->plan.shared_bytes, .args = &args};
    layer->plan.family->launch(&layer->problem, &layer->plan, &args, &launch.blocks);
    const convjit_status status = layer->context->device->launch(layer->module, &launch, stream);
    return status == CONVJIT_SUCCESS ? status : cj_fail_prefix(status, "forward failed for %s", layer->line);
}

/* ---- info and destroy ---- */

convjit_layer_info convjit_layer_get_info(const convjit_layer *layer) {
    if (!layer) {
        return (convjit_layer_info){.line = "", .family = "", .config = "", .key = "", .origin = ""};
    }
    return (convjit_layer_info){.line = layer->line,
                                .family = layer->plan.family->name,
                                .config = layer->plan.config,
                                .key = layer->key.hex,
                                .origin = cj_origin_name(layer->origin),
                                .create_ms = layer->create_ms};
}

double convjit_layer_predict_ms(const convjit_layer *layer, int64_t batch) {
    return layer && batch > 0 ? cj_family_predict_ms(&layer->problem, &layer->plan, batch) : 0.0;
}

void convjit_layer_destroy(convjit_layer *layer) {
    if (layer && layer->own_packed) {
        layer->context->device->release(layer->own_packed);
    }
    free(layer);
}
