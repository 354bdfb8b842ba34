/* host_overhead.c - how long the host is busy in convjit_layer_forward, beside a bare cuLaunchKernel of the same kernel
 * with the same arguments on the same stream.
 *
 * The launch itself is learnt by capturing one forward into a CUDA graph: its one kernel node holds function, grid and
 * arguments. That also shows that forward is legal under capture and is one launch. Both are then called in turns,
 * CALLS at a time with the stream empty before each turn, so that the queue never fills and the device's time stays
 * out.
 *
 * Needs a GPU; nothing but convjit.h and the CUDA driver. Exit status 1 if forward costs over LIMIT_US more. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "convjit.h"

enum { CALLS = 200, TURNS = 101 };
#define LIMIT_US 3.0

/* The driver is opened as convjit opens it: this program links without one. cuda.h maps a name to its current version
 * (cuGraphKernelNodeGetParams_v2), so the names to look up are taken after that mapping. */
#define DRIVER_LIST(X)            \
    X(cuInit)                     \
    X(cuDeviceGet)                \
    X(cuDevicePrimaryCtxRetain)   \
    X(cuCtxSetCurrent)            \
    X(cuMemAlloc)                 \
    X(cuMemsetD32)                \
    X(cuStreamCreate)             \
    X(cuStreamSynchronize)        \
    X(cuStreamBeginCapture)       \
    X(cuStreamEndCapture)         \
    X(cuGraphGetNodes)            \
    X(cuGraphKernelNodeGetParams) \
    X(cuGetErrorString)           \
    X(cuLaunchKernel)
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

static struct driver {
#define DECLARE(name) __typeof__(&(name)) name##_;
    DRIVER_LIST(DECLARE)
#undef DECLARE
} driver;

static void open_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "host_overhead: %s\n", dlerror());
        exit(EXIT_FAILURE);
    }
#define LOAD(name)                                                                 \
    *(void **)&driver.name##_ = dlsym(library, TEXT(name));                        \
    if (!driver.name##_) {                                                         \
        fprintf(stderr, "host_overhead: the CUDA driver has no %s\n", TEXT(name)); \
        exit(EXIT_FAILURE);                                                        \
    }
    DRIVER_LIST(LOAD)
#undef LOAD
}

static void check_cuda(CUresult result, const char *what) {
    const char *text = "unknown error";
    if (result != CUDA_SUCCESS) {
        driver.cuGetErrorString_(result, &text);
        fprintf(stderr, "host_overhead: %s: %s\n", what, text);
        exit(EXIT_FAILURE);
    }
}
#define CUDA(name, ...) check_cuda(driver.name##_(__VA_ARGS__), #name)

static void check(convjit_status status) {
    if (status != CONVJIT_SUCCESS) {
        fprintf(stderr, "host_overhead: %s: %s\n", convjit_status_name(status), convjit_last_error());
        exit(EXIT_FAILURE);
    }
}

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static CUstream open_device(void) {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    open_driver();
    CUDA(cuInit, 0);
    CUDA(cuDeviceGet, &device, 0);
    CUDA(cuDevicePrimaryCtxRetain, &context, device);
    CUDA(cuCtxSetCurrent, context);
    CUDA(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    return stream;
}

static void *zeros(size_t floats) {
    CUdeviceptr memory;
    CUDA(cuMemAlloc, &memory, floats * sizeof(float));
    CUDA(cuMemsetD32, memory, 0, floats);
    return (void *)memory;
}

/* A kernel of a few microseconds, so that a turn is soon over. */
static void make_layer(CUstream stream, convjit_layer **layer, convjit_io *io) {
    convjit_context *context;
    convjit_desc desc;
    int64_t out[3];
    check(convjit_layer_line_parse("conv2d c8 k8 in16x16 f3x3 s1 p1 f32 nchw fp32", &desc, NULL));
    check(convjit_output_size(&desc, NULL, out));
    check(convjit_open(NULL, &context));
    check(convjit_layer_create(context, &desc, layer));
    check(convjit_layer_set_weights(*layer, zeros((size_t)(8 * 8 * 3 * 3)), NULL, stream));
    io->batch = 1;
    io->x.data = zeros((size_t)(8 * 16 * 16));
    io->y.data = zeros((size_t)(8 * out[0] * out[1]));
    check(convjit_layer_forward(*layer, io, stream));
    CUDA(cuStreamSynchronize, stream);
}

/* The launch a forward makes. Its arguments belong to the graph, which is kept for the life of the process. */
static CUDA_KERNEL_NODE_PARAMS capture(const convjit_layer *layer, const convjit_io *io, CUstream stream) {
    CUDA_KERNEL_NODE_PARAMS launch;
    CUgraph graph;
    CUgraphNode node;
    size_t nodes = 0;
    CUDA(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    check(convjit_layer_forward(layer, io, stream));
    CUDA(cuStreamEndCapture, stream, &graph);
    CUDA(cuGraphGetNodes, graph, NULL, &nodes);
    if (nodes != 1) {
        fprintf(stderr, "host_overhead: a forward captured %zu graph nodes, not one\n", nodes);
        exit(EXIT_FAILURE);
    }
    CUDA(cuGraphGetNodes, graph, &node, &nodes);
    CUDA(cuGraphKernelNodeGetParams, node, &launch);
    launch.func = launch.func ? launch.func : (CUfunction)launch.kern; /* a graph names a kernel in one of two ways */
    return launch;
}

static double turn_forward(const convjit_layer *layer, const convjit_io *io, CUstream stream) {
    const double start = now_us();
    for (int call = 0; call < CALLS; call++) {
        check(convjit_layer_forward(layer, io, stream));
    }
    return (now_us() - start) / CALLS;
}

static double turn_bare(const CUDA_KERNEL_NODE_PARAMS *launch, CUstream stream) {
    const double start = now_us();
    for (int call = 0; call < CALLS; call++) {
        CUDA(cuLaunchKernel, launch->func, launch->gridDimX, launch->gridDimY, launch->gridDimZ, launch->blockDimX,
             launch->blockDimY, launch->blockDimZ, launch->sharedMemBytes, stream, launch->kernelParams, launch->extra);
    }
    return (now_us() - start) / CALLS;
}

static int by_value(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values) {
    qsort(values, TURNS, sizeof *values, by_value);
    return values[TURNS / 2];
}

int main(void) {
    static double forward_us[TURNS], bare_us[TURNS];
    convjit_layer *layer;
    convjit_io io = CONVJIT_IO_INIT;
    CUstream stream = open_device();
    make_layer(stream, &layer, &io);
    const CUDA_KERNEL_NODE_PARAMS launch = capture(layer, &io, stream);
    for (int turn = 0; turn < TURNS; turn++) {
        forward_us[turn] = turn_forward(layer, &io, stream);
        CUDA(cuStreamSynchronize, stream);
        bare_us[turn] = turn_bare(&launch, stream);
        CUDA(cuStreamSynchronize, stream);
    }
    const double forward = median(forward_us), bare = median(bare_us);
    const bool within = forward - bare <= LIMIT_US;
    printf(
        "host time of a call, median of %d turns of %d: forward %.2f us, bare cuLaunchKernel %.2f us, difference %.2f "
        "us, limit %.1f us: %s\n",
        TURNS, CALLS, forward, bare, forward - bare, LIMIT_US, within ? "pass" : "FAIL");
    return within ? EXIT_SUCCESS : EXIT_FAILURE;
}
