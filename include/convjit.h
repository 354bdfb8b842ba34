/* convjit.h - one compiled kernel for each convolution layer.
 *
 * The life of a layer:
 *
 *   convjit_open            once a device: finds the target, the cache and (only if needed) the compiler
 *   convjit_layer_create    once a layer: check, plan, cache or compile, load - the only slow call
 *   convjit_layer_set_weights  once a set of weights: packs them on the device
 *   convjit_layer_forward   as often as wanted: one launch, nothing else
 *   convjit_layer_destroy, convjit_close
 *
 * For example, a 3x3 convolution of 64 to 128 channels on the current CUDA device:
 *
 *   convjit_context *context;
 *   convjit_layer *layer;
 *   convjit_desc desc = CONVJIT_DESC_INIT;
 *   desc.in_channels = 64, desc.out_channels = 128;
 *   desc.in_size[0] = desc.in_size[1] = 56;
 *   desc.kernel[0] = desc.kernel[1] = 3;
 *   desc.pad_begin[0] = desc.pad_begin[1] = desc.pad_end[0] = desc.pad_end[1] = 1;
 *   if (convjit_open(NULL, &context) || convjit_layer_create(context, &desc, &layer) ||
 *       convjit_layer_set_weights(layer, weights, bias, stream))
 *       fprintf(stderr, "%s\n", convjit_last_error());
 *   convjit_io io = CONVJIT_IO_INIT;
 *   io.batch = 32, io.x.data = x, io.y.data = y;
 *   convjit_layer_forward(layer, &io, stream);
 *
 * Words. x is the input, w the weights, y the output, z the optional residual; N is the batch, C the input channels,
 * K the output channels. A *target* is what code is made for: "sm_90a", "sm_80", ... or "cpu". A *layer line* is the
 * one-line text of a layer (see convjit_layer_line_format). Sizes are counted in elements unless a name says bytes.
 *
 * Threads. A context may be used from many threads at once. A layer is immutable once its weights are set: forward may
 * then be called from many threads on many streams. Creating, setting weights and destroying one layer must not
 * overlap with other calls on that same layer.
 *
 * CUDA. The caller's current context and stream are used as they are: no device switch, no default-stream work, no
 * synchronisation. convjit_open must be called with the CUDA context current that all later calls will have current.
 * No function aborts, prints or throws. Results are deterministic and do not depend on the batch size; another
 * batch_hint is another layer, which may add up in another order.
 */
#ifndef CONVJIT_H
#define CONVJIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CONVJIT_API __attribute__((visibility("default")))
#else
#define CONVJIT_API
#endif

/* Version of this header; convjit_version() gives that of the library. */
#define CONVJIT_VERSION "0.1.0"

/* ---------------------------------------------------------------------------------------------------------------------
 * Status
 * ------------------------------------------------------------------------------------------------------------------ */

/* Every status: its name, and the sentence convjit_status_text() gives. Numbers are fixed by the order; new ones are
 * appended. */
#define CONVJIT_STATUS_LIST(X)                                                                       \
    X(SUCCESS, "the call did what it was asked")                                                     \
    X(INVALID_ARGUMENT, "an argument breaks a rule of the call")                                     \
    X(INVALID_LAYER, "the descriptor describes no convolution")                                      \
    X(UNSUPPORTED, "the layer is legal, but nothing here computes it")                               \
    X(OUT_OF_MEMORY, "host or device memory is used up")                                             \
    X(NOT_READY, "a call that must come first is missing")                                           \
    X(NO_DRIVER, "the CUDA driver was not found or is too old")                                      \
    X(NO_DEVICE, "no CUDA context is current, or the context has no device to run on")               \
    X(NO_COMPILER, "the compiler is needed and was not found")                                       \
    X(COMPILE_FAILED, "the compiler refused a kernel; the error text holds its log")                 \
    X(LOAD_FAILED, "the device refused a binary")                                                    \
    X(LAUNCH_FAILED, "the device refused a launch, or an earlier error of this CUDA context stands") \
    X(INTERNAL, "convjit broke a rule of its own; please report the error text")                     \
    X(NOT_CACHED, "the cache does not hold the kernel, and its mode forbids to compile")             \
    X(FILE_FAILED, "a file could not be read or written, or is not what it should be")

typedef enum convjit_status {
#define CONVJIT_STATUS_ENUM(name, text) CONVJIT_##name,
    CONVJIT_STATUS_LIST(CONVJIT_STATUS_ENUM)
#undef CONVJIT_STATUS_ENUM
} convjit_status;

/* The name ("CONVJIT_SUCCESS") and the sentence of a status; never NULL, also for numbers that are none. */
CONVJIT_API const char *convjit_status_name(convjit_status status);
CONVJIT_API const char *convjit_status_text(convjit_status status);

/* What went wrong in the last call of this thread that did not return CONVJIT_SUCCESS: one line naming the layer, the
 * value and the rule, then the compiler's log if there is one. Valid until this thread's next failing call. */
CONVJIT_API const char *convjit_last_error(void);

/* Version of the library, "MAJOR.MINOR.PATCH". */
CONVJIT_API const char *convjit_version(void);

/* ---------------------------------------------------------------------------------------------------------------------
 * Descriptor of a layer
 * ------------------------------------------------------------------------------------------------------------------ */

typedef enum convjit_operation {
    CONVJIT_CONVOLUTION, /* cross-correlation, as in every framework; w is [K][C/groups][kernel...] */
    CONVJIT_TRANSPOSED   /* its transpose (deconvolution); w is [C][K/groups][kernel...] */
} convjit_operation;

typedef enum convjit_type { CONVJIT_F32, CONVJIT_F16, CONVJIT_BF16 } convjit_type;

typedef enum convjit_layout {
    CONVJIT_CHANNELS_FIRST, /* x is [N][C][size...] (NCHW) */
    CONVJIT_CHANNELS_LAST   /* x is [N][size...][C] (NHWC) */
} convjit_layout;

/* The accuracy promised, with S = the sum over the window of |x * w|, both float32. Any convjit kernel may be more
 * accurate than its promise, none less. 16-bit data is multiplied exactly and accumulated in float32 under all three.
 * A NaN or Inf in x or w reaches exactly the outputs whose window holds it; padding is skipped, not multiplied. */
typedef enum convjit_math {
    CONVJIT_FP32,       /* every output within 2^-21 S of the exact sum; never tf32 unasked. On tensor cores five times
                           that, but only where of 64 products of one sign one is 2^20 times the others; elsewhere 1.5
                           times, where one is far above the others, and seldom: README */
    CONVJIT_FP32_BLOCK, /* within 2^-20 S, where an |x| more than 2^15 smaller than the largest of its block (a tile's
                           pixels of some channels), and a |w| likewise in its output channel, counts as that largest */
    CONVJIT_TF32        /* 11-bit operands, float32 accumulation: within 2^-10 S */
} convjit_math;

typedef enum convjit_activation {
    CONVJIT_NONE,
    CONVJIT_RELU,       /* max(v, 0) */
    CONVJIT_LEAKY_RELU, /* v < 0 ? a * v : v */
    CONVJIT_SILU,       /* v / (1 + exp(-v)) */
    CONVJIT_GELU,       /* v / 2 * (1 + erf(v / sqrt(2))) */
    CONVJIT_SIGMOID,    /* 1 / (1 + exp(-v)) */
    CONVJIT_TANH,       /* tanh(v) */
    CONVJIT_HARDSWISH,  /* v * clamp(v + 3, 0, 6) / 6 */
    CONVJIT_CLAMP       /* min(max(v, a), b) */
} convjit_activation;

/* Everything that fixes a layer but the batch and the data. Arrays hold their first `rank` entries in the order of the
 * tensor's sizes: (depth, height, width), (height, width) or (width); further entries are ignored.
 *
 * Output size, convolution: floor((in + pad_begin + pad_end - dilation * (kernel - 1) - 1) / stride) + 1
 *              transposed:  (in - 1) * stride - pad_begin - pad_end + dilation * (kernel - 1) + output_padding + 1
 *
 * Every batch runs, on the same kernel, which is fastest for batch_hint. An engine that runs single images should say
 * 1: a plan for a batch that is not known (about 8 and more) leaves most of a large GPU idle there. */
typedef struct convjit_desc {
    size_t struct_size;            /* sizeof(convjit_desc), set by CONVJIT_DESC_INIT */
    convjit_operation operation;   /* default: convolution */
    int32_t rank;                  /* spatial dimensions, 1 to 3; default 2 */
    int64_t in_channels;           /* C >= 1, a multiple of groups; no default */
    int64_t out_channels;          /* K >= 1, a multiple of groups; no default */
    int64_t groups;                /* >= 1; default 1 */
    int64_t in_size[3];            /* spatial size of x; all 0 (default) = given at forward, no size is compiled in */
    int64_t batch_hint;            /* >= 0: the batch that the plan is made for, see above; default 0, not known */
    int64_t kernel[3];             /* taps, >= 1; default 1 */
    int64_t stride[3];             /* >= 1; default 1 */
    int64_t dilation[3];           /* >= 1; default 1 */
    int64_t pad_begin[3];          /* >= 0; default 0 */
    int64_t pad_end[3];            /* >= 0; default 0 */
    int64_t output_padding[3];     /* transposed only, >= 0 and < max(stride, dilation); default 0 */
    convjit_type data_type;        /* of x, y and z; default f32 */
    convjit_type weight_type;      /* of w: f32 with f32 data, or any 16-bit type; default f32 */
    convjit_type bias_type;        /* of bias; default f32 */
    convjit_layout layout;         /* of x, y and z; declared, never guessed from strides; default channels first */
    convjit_layout weight_layout;  /* channels last: the channel axis of w moved last, [K][kernel...][C/groups] */
    convjit_math math;             /* default CONVJIT_FP32 */
    convjit_activation activation; /* default none */
    float activation_a;            /* leaky relu: slope; clamp: lower bound */
    float activation_b;            /* clamp: upper bound, >= activation_a */
    float alpha;                   /* y = act(alpha * conv + bias[k] + beta * z); default 1 */
    float beta;                    /* default 0: z is not read */
} convjit_desc;

#define CONVJIT_DESC_INIT                                                                                            \
    {                                                                                                                \
        .struct_size = sizeof(convjit_desc), .operation = CONVJIT_CONVOLUTION, .rank = 2, .in_channels = 0,          \
        .out_channels = 0, .groups = 1, .in_size = {0, 0, 0}, .batch_hint = 0, .kernel = {1, 1, 1},                  \
        .stride = {1, 1, 1}, .dilation = {1, 1, 1}, .pad_begin = {0, 0, 0}, .pad_end = {0, 0, 0},                    \
        .output_padding = {0, 0, 0}, .data_type = CONVJIT_F32, .weight_type = CONVJIT_F32, .bias_type = CONVJIT_F32, \
        .layout = CONVJIT_CHANNELS_FIRST, .weight_layout = CONVJIT_CHANNELS_FIRST, .math = CONVJIT_FP32,             \
        .activation = CONVJIT_NONE, .activation_a = 0.0F, .activation_b = 0.0F, .alpha = 1.0F, .beta = 0.0F          \
    }

/* ---------------------------------------------------------------------------------------------------------------------
 * Context
 * ------------------------------------------------------------------------------------------------------------------ */

typedef struct convjit_context convjit_context;
typedef struct convjit_layer convjit_layer;

/* A CUDA stream; the same type as CUstream and cudaStream_t, without needing their headers. NULL is the legacy default
 * stream, as in CUDA. Ignored by the target "cpu", which has run to the end when a call returns. */
typedef struct CUstream_st *convjit_stream;

/* Called with one line at a time, without the newline; from any thread that calls convjit. */
typedef void (*convjit_log_fn)(void *user, const char *line);

/* What a context does with its cache. A kernel that this process already holds in memory is used in every mode. */
typedef enum convjit_cache_mode {
    CONVJIT_CACHE_DEFAULT, /* what CONVJIT_CACHE_MODE says: normal, cache-only, refresh or off; normal without it */
    CONVJIT_CACHE_NORMAL,  /* read; compile and store what is missing */
    CONVJIT_CACHE_ONLY,    /* read; never compile: what is missing is NOT_CACHED. Entries of any compiler build serve */
    CONVJIT_CACHE_REFRESH, /* compile without reading, and replace what is stored */
    CONVJIT_CACHE_OFF      /* compile; neither read nor write */
} convjit_cache_mode;

typedef struct convjit_options {
    size_t struct_size; /* sizeof(convjit_options), set by CONVJIT_OPTIONS_INIT */
    const char *target; /* NULL (default): the device of the current CUDA context. "sm_90a", ...: build for that
                           target into the cache, without a GPU; such layers cannot run. "cpu": run on the host,
                           with host pointers - slow, for development and verification */
    const char *cache_directory;   /* one, or A:B:C - A is written, all are read in this order; an empty A is the
                                      per-user default. NULL (default): CONVJIT_CACHE_DIR, else the per-user default */
    convjit_cache_mode cache_mode; /* default CONVJIT_CACHE_DEFAULT */
    const char *cache_size;  /* limit of the written directory in bytes, "512M"; "0" is none. What was not used for the
                                longest goes first. NULL (default): CONVJIT_CACHE_SIZE, else 4G */
    const char *record_file; /* gains the layer line of every layer that is created, once a context, also where its
                                kernel is missing (CONVJIT_CACHE_ONLY); processes may share it. A file that cannot be
                                written is only logged. NULL (default): CONVJIT_RECORD, else none */
    const char *plan_file;   /* plans that were measured (`convjit tune` writes them): layers that it names are computed
                                so, others as predicted. One that this version does not know is only logged. NULL
                                (default): CONVJIT_PLANS, else none */
    const char *dump_directory; /* not NULL: each created layer leaves NAME.cu and its binary there; must exist */
    convjit_log_fn log;         /* NULL (default): no lines, unless CONVJIT_LOG is set (then to standard error) */
    void *log_user;
} convjit_options;

#define CONVJIT_OPTIONS_INIT                                                                             \
    {                                                                                                    \
        .struct_size = sizeof(convjit_options), .target = NULL, .cache_directory = NULL,                 \
        .cache_mode = CONVJIT_CACHE_DEFAULT, .cache_size = NULL, .record_file = NULL, .plan_file = NULL, \
        .dump_directory = NULL, .log = NULL, .log_user = NULL                                            \
    }

/* Opens a context. options may be NULL for all defaults; strings are copied. Neither compiles nor changes the cache
 * directory; opens the CUDA driver when target is NULL, never NVRTC.
 * INVALID_ARGUMENT: NULL out, other struct_size, unknown target, a cache option or setting that is none. NO_DRIVER,
 * NO_DEVICE: target is NULL and the driver or a current CUDA context is missing. FILE_FAILED: the plan file, with the
 * line that is none. OUT_OF_MEMORY. */
CONVJIT_API convjit_status convjit_open(const convjit_options *options, convjit_context **out);

/* Closes a context and unloads its kernels. Every layer of it must have been destroyed, and no kernel of it may still
 * run. NULL is ignored. */
CONVJIT_API void convjit_close(convjit_context *context);

/* What a context has done so far; taken at one instant. */
typedef struct convjit_counters {
    uint64_t memory_hits;    /* layers whose kernel this process already held */
    uint64_t disk_hits;      /* ... was read from the cache directory */
    uint64_t misses;         /* ... was in neither, or was not to be read */
    uint64_t compiles;       /* compiler runs that succeeded */
    uint64_t corrupt;        /* entries that were damaged or stale, and so counted as misses */
    uint64_t store_failures; /* binaries that could not be written to the cache directory */
    double compile_ms;       /* total time in the compiler */
} convjit_counters;

CONVJIT_API convjit_counters convjit_get_counters(const convjit_context *context);

/* What was found on this machine; for `convjit info` and bug reports. Looks for the driver and NVRTC, so it may take a
 * while. Strings are always terminated; a part that is missing says why in its text. */
typedef struct convjit_environment {
    char version[32];          /* of convjit */
    char target[32];           /* of the context; "" without one */
    char device[128];          /* name and driver version, or why there is none */
    char driver[256];          /* path and version, or why there is none */
    char nvrtc[256];           /* path and version, or why there is none */
    char host_compiler[256];   /* of the target "cpu" */
    char cache_directory[512]; /* and where the choice came from, and a mode that is not the normal one */
    char nvrtc_targets[512];   /* targets NVRTC can build for, separated by spaces */
} convjit_environment;

CONVJIT_API void convjit_get_environment(const convjit_context *context_or_null, convjit_environment *out);

/* ---------------------------------------------------------------------------------------------------------------------
 * Questions about a descriptor: no compiler, no GPU, no context
 * ------------------------------------------------------------------------------------------------------------------ */

/* Can this layer be created for `target` ("sm_90a", "cpu", ...)? SUCCESS if so; else INVALID_LAYER, UNSUPPORTED or
 * INVALID_ARGUMENT, with the reason in convjit_last_error(). Takes microseconds. */
CONVJIT_API convjit_status convjit_supported(const convjit_desc *desc, const char *target);

/* Why is this layer computed the way it is? Calls `write` with one line at a time: every family, with the
 * configurations that its plan weighed up, their predicted milliseconds (see convjit_layer_predict_ms) and the reasons
 * against them, the chosen ones marked; for people, so the words may change. `batch` is predicted too, but decides
 * nothing: a layer has one plan for every batch, made for its batch_hint. What CONVJIT_FAMILY forces is taken into
 * account. Compiles nothing. UNSUPPORTED where no family computes the layer, with the reasons written all the same;
 * INVALID_LAYER, INVALID_ARGUMENT, OUT_OF_MEMORY: nothing is written. */
CONVJIT_API convjit_status convjit_explain(const convjit_desc *desc, int64_t batch, const char *target,
                                           convjit_log_fn write, void *user);

/* A way to compute a layer: family and configuration as in convjit_layer_info, and the milliseconds that are predicted
 * for the layer's batch_hint (see convjit_layer_predict_ms), 0 where the family has no cost model. */
typedef void (*convjit_candidate_fn)(void *user, const char *family, const char *config, double predicted_ms);

/* How might this layer be computed? Calls `visit` with at most `most` ways, the least predicted time first: the first
 * is how convjit_layer_create computes it, the others are what is worth measuring (`convjit tune` does, in benchmarks
 * of convjit the fastest is often among the first 8). Twelve a family are there at most. Takes milliseconds; compiles
 * nothing. The status is that of convjit_supported; OUT_OF_MEMORY. */
CONVJIT_API convjit_status convjit_candidates(const convjit_desc *desc, const char *target, size_t most,
                                              convjit_candidate_fn visit, void *user);

/* Spatial size of y for an x of in_size (both of desc->rank entries; in_size NULL = desc->in_size).
 * INVALID_LAYER where the descriptor or the size is illegal. An output size of 0 is legal. */
CONVJIT_API convjit_status convjit_output_size(const convjit_desc *desc, const int64_t *in_size, int64_t *out_size);

/* A layer as one line, and back. Example, all defaults left out:
 *
 *   conv2d n8 c32 k64 in512x512 f5x9 s1 p0 f32 nchw fp32
 *
 * README lists every word. The batch (n8) is not part of a layer: -1 = absent. A round trip gives an equal descriptor.
 * format writes at most `size` bytes with the terminator and returns the length of the whole line (as snprintf).
 * parse refuses (INVALID_ARGUMENT, the word named) what it does not know; batch may be NULL. */
#define CONVJIT_LAYER_LINE_MAX 768 /* no line is longer, with its terminator */
CONVJIT_API size_t convjit_layer_line_format(const convjit_desc *desc, int64_t batch, char *text, size_t size);
CONVJIT_API convjit_status convjit_layer_line_parse(const char *line, convjit_desc *desc, int64_t *batch);

/* ---------------------------------------------------------------------------------------------------------------------
 * Layers
 * ------------------------------------------------------------------------------------------------------------------ */

/* Creates a layer: checks the descriptor, plans, then takes the kernel from memory, from disk or from the compiler,
 * and loads it. The only slow call: microseconds, a few milliseconds or about a second. Blocks; illegal during stream
 * capture; `desc` is not kept. A cache that cannot be read or written never fails a create: the kernel is compiled and
 * kept in memory, the failure is counted and logged once.
 * INVALID_ARGUMENT, INVALID_LAYER, UNSUPPORTED, OUT_OF_MEMORY, NO_COMPILER (not in the cache, and no NVRTC),
 * NOT_CACHED (CONVJIT_CACHE_ONLY; the text has layer line and key), COMPILE_FAILED, LOAD_FAILED, NO_DEVICE (another
 * CUDA context is current than at convjit_open). */
CONVJIT_API convjit_status convjit_layer_create(convjit_context *context, const convjit_desc *desc,
                                                convjit_layer **out);

/* The same, computed in the way that is named: for engines that measure (convjit_candidates) or keep what they
 * measured. INVALID_ARGUMENT besides: NULL, or the layer has no such family and configuration in this version of
 * convjit. */
CONVJIT_API convjit_status convjit_layer_create_as(convjit_context *context, const convjit_desc *desc,
                                                   const char *family, const char *config, convjit_layer **out);

/* Gives the layer its weights: one launch that packs w and bias (device pointers; host pointers on "cpu") into memory
 * of the layer's own. bias may be NULL (zero). Asynchronous on `stream`: w and bias must live until the stream has
 * passed; forward calls on other streams must wait for it. The first call allocates device memory, later calls reuse
 * it (and must not overlap with a forward).
 * INVALID_ARGUMENT, OUT_OF_MEMORY, NO_DEVICE (context without a device), LAUNCH_FAILED. */
CONVJIT_API convjit_status convjit_layer_set_weights(convjit_layer *layer, const void *weights, const void *bias,
                                                     convjit_stream stream);

/* The same with packed weights in the caller's memory: at least convjit_layer_packed_bytes() bytes, aligned to 256, to
 * live as long as the layer. Allocates nothing. weights NULL: `packed` already holds this layer's packed weights. */
CONVJIT_API size_t convjit_layer_packed_bytes(const convjit_layer *layer);
CONVJIT_API convjit_status convjit_layer_set_weights_in(convjit_layer *layer, const void *weights, const void *bias,
                                                        void *packed, convjit_stream stream);

/* One tensor of a forward call. data may have any element-aligned address. Strides are in elements, 0 = dense, so that
 * a tensor may be a channel slice of a larger buffer:
 *   channels first: channel_stride >= product of the spatial size; pixel_stride 0
 *   channels last:  pixel_stride >= channels; channel_stride 0 */
typedef struct convjit_tensor {
    void *data;
    int64_t batch_stride;
    int64_t channel_stride;
    int64_t pixel_stride;
} convjit_tensor;

typedef struct convjit_io {
    size_t struct_size; /* sizeof(convjit_io), set by CONVJIT_IO_INIT */
    int64_t batch;      /* N >= 0 */
    int64_t in_size[3]; /* spatial size of x; read only where the descriptor left it 0 */
    convjit_tensor x;   /* read */
    convjit_tensor y;   /* written; may be z with z's strides, and may not overlap x or w */
    convjit_tensor z;   /* read if the descriptor's beta is not 0: shape of y; may be x */
} convjit_io;

#define CONVJIT_IO_INIT                                                                                            \
    {                                                                                                              \
        .struct_size = sizeof(convjit_io), .batch = 1, .in_size = {0, 0, 0}, .x = {0, 0, 0, 0}, .y = {0, 0, 0, 0}, \
        .z = {                                                                                                     \
            0,                                                                                                     \
            0,                                                                                                     \
            0,                                                                                                     \
            0                                                                                                      \
        }                                                                                                          \
    }

/* y = act(alpha * conv(x, w) + bias + beta * z): one launch on `stream`, nothing else - no allocation, no
 * synchronisation, no compile, no module load; legal during stream capture. Asynchronous. A batch or an output size of
 * 0 succeeds and launches nothing. Needs no workspace. The pointers go into the launch: a captured graph may replay
 * only while they live.
 * INVALID_ARGUMENT (a pointer, size or stride; y and x the same), NOT_READY (no weights set), NO_DEVICE (context
 * without a device), LAUNCH_FAILED. */
CONVJIT_API convjit_status convjit_layer_forward(const convjit_layer *layer, const convjit_io *io,
                                                 convjit_stream stream);

/* How a layer came to be; strings live as long as the layer. */
typedef struct convjit_layer_info {
    const char *line;   /* its layer line */
    const char *family; /* "direct", ... */
    const char *config; /* the configuration the plan chose, one line */
    const char *key;    /* of its cache entry, hexadecimal */
    const char *origin; /* "memory", "disk" or "compiler" */
    double create_ms;   /* time convjit_layer_create took */
} convjit_layer_info;

CONVJIT_API convjit_layer_info convjit_layer_get_info(const convjit_layer *layer);

/* Milliseconds that the layer's plan expects a forward of this batch to take on an NVIDIA H200, to which the cost
 * models are fitted, whatever the layer's target is: what families and configurations were chosen by. A layer without a
 * size is taken to be about 100 wide along each axis. 0 where the family has no cost model, or the batch is less
 * than 1. */
CONVJIT_API double convjit_layer_predict_ms(const convjit_layer *layer, int64_t batch);

/* The layer's kernel as bytes, for engines that keep their plans in files of their own: an entry of the cache, which
 * convjit_import takes on any machine. bytes NULL: only sets *size. Else *size is the room there, and becomes the size,
 * which is the same from call to call. Needs no GPU; blocks for milliseconds, for a context without a device reads its
 * cache again, and compiles where that has lost the kernel.
 * INVALID_ARGUMENT (NULL, too little room), OUT_OF_MEMORY; NO_COMPILER, COMPILE_FAILED, NOT_CACHED: lost, as above. */
CONVJIT_API convjit_status convjit_layer_export(const convjit_layer *layer, void *bytes, size_t *size);

/* Gives a context a kernel of convjit_layer_export: layers that are created later take it from memory, whatever the
 * mode of the cache, and neither compiler nor cache is needed. It stays in memory until the context closes; the bytes
 * are copied, and not written to the cache. Fast; needs no GPU. A kernel that no layer asks for (of another version of
 * convjit) does no harm.
 * INVALID_ARGUMENT: NULL, damaged bytes, or a kernel for another target than the context's. OUT_OF_MEMORY. */
CONVJIT_API convjit_status convjit_import(convjit_context *context, const void *bytes, size_t size);

/* Destroys a layer and frees its packed weights. No forward of it may be running. NULL is ignored. */
CONVJIT_API void convjit_layer_destroy(convjit_layer *layer);

/* ---------------------------------------------------------------------------------------------------------------------
 * The cache as files: for maintenance. No context, no compiler, no GPU; may run while others use the cache, and from
 * any thread. Of the options (NULL: all defaults) those of the cache are read. All block for as long as the disk takes.
 * INVALID_ARGUMENT: an option or setting that is none. OUT_OF_MEMORY. FILE_FAILED, with the name and the system's
 * words.
 * ------------------------------------------------------------------------------------------------------------------ */

/* The path of the directory that is written, which need not be there yet. FILE_FAILED: there is none, or `size` bytes
 * do not hold it. */
CONVJIT_API convjit_status convjit_cache_directory(const convjit_options *options, char *path, size_t size);

/* One file of an entry; valid during the call that it is given to. */
typedef struct convjit_cache_entry {
    const char *path;
    const char *key;      /* hexadecimal, as in convjit_layer_info; by the file's name */
    const char *problem;  /* NULL: the entry is sound. Else why it is none ("checksum"), and what follows below is 0 */
    uint64_t bytes;       /* of the file */
    int64_t used;         /* when it was last used, or up to an hour before: seconds since 1970 */
    const char *target;   /* "sm_90a" */
    const char *compiler; /* exact build */
    const char *version;  /* of the convjit that wrote it */
    const char *family;
    const char *line; /* layer line of the first layer that asked for it */
    uint32_t threads; /* of a block */
    uint32_t shared_bytes;
    uint64_t binary_bytes;
    const void *binary; /* what the device loads */
} convjit_cache_entry;

typedef void (*convjit_cache_fn)(void *user, const convjit_cache_entry *entry);

/* Reads and checks every entry of every directory of the cache, in search order; an entry may be there twice. */
CONVJIT_API convjit_status convjit_cache_list(const convjit_options *options, convjit_cache_fn visit, void *user);

/* What the written directory held, and what was removed from it. */
typedef struct convjit_cache_totals {
    uint64_t files; /* entries, and what was written beside them */
    uint64_t bytes;
    uint64_t removed; /* of these files */
    uint64_t removed_bytes;
    uint64_t temporaries; /* removed, of writers that were killed an hour ago or more; not among the files */
} convjit_cache_totals;

/* Keeps the written directory within cache_size now: removes what was not used for the longest, down to 90 % of it.
 * dry_run: removes nothing. `removed` (may be NULL) is told of each file that goes, with path, bytes and time only.
 * Others that use an entry which goes have it in memory; who comes later builds it anew. */
CONVJIT_API convjit_status convjit_cache_trim(const convjit_options *options, int dry_run, convjit_cache_fn removed,
                                              void *user, convjit_cache_totals *totals);

/* Writes every sound entry of the cache, each key once, into one file with a checksum, which may be moved to any
 * machine and path; a file that is there is replaced when the new one is whole. `entries` (may be NULL): how many. */
CONVJIT_API convjit_status convjit_cache_export(const convjit_options *options, const char *file, uint64_t *entries);

/* Puts the entries of such a file into the written directory, replacing those of the same key. Nothing is taken from a
 * file that is not whole. Entries of other compilers or targets do no harm: they are stale or never asked for. */
CONVJIT_API convjit_status convjit_cache_import(const convjit_options *options, const char *file, uint64_t *entries);

#ifdef __cplusplus
}
#endif
#endif
