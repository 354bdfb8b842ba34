/* test_far.c - tensors whose elements lie more than 2^31 elements apart, on the target cpu in every family: the same
 * bits as from dense tensors. Few of their pages are touched, so that they take address space but little memory. */
#include <sys/mman.h>

#include "layer_fixture.h"
#include "reference.h"

TestSuite(far, .init = enter_layer, .fini = leave);

enum { BATCH = 2 };
static const int64_t channel_far = (INT64_C(1) << 28) + 4, pixel_far = (INT64_C(1) << 23) + 4; /* elements */

/* A tensor of a layer, dense and far apart. */
typedef struct tensor {
    int64_t channels, pixels; /* of an image */
    bool channels_last;
    float *dense, *far;
    size_t far_bytes;
    convjit_tensor place;
} tensor;

static int64_t dense_index(const tensor *t, int64_t n, int64_t c, int64_t pixel) {
    return n * t->channels * t->pixels + (t->channels_last ? pixel * t->channels + c : c * t->pixels + pixel);
}

static int64_t far_index(const tensor *t, int64_t n, int64_t c, int64_t pixel) {
    return n * t->place.batch_stride +
           (t->channels_last ? pixel * t->place.pixel_stride + c : c * t->place.channel_stride + pixel);
}

static void copy(const tensor *t, float *dense, bool to_far) {
    for (int64_t n = 0; n < BATCH; n++) {
        for (int64_t c = 0; c < t->channels; c++) {
            for (int64_t pixel = 0; pixel < t->pixels; pixel++) {
                float *one = &dense[dense_index(t, n, c, pixel)], *other = &t->far[far_index(t, n, c, pixel)];
                *(to_far ? other : one) = *(to_far ? one : other);
            }
        }
    }
}

/* Skips the test where the system gives no such address space. */
static tensor tensor_make(const reference_layer *layer, reference_role role, int64_t channels, int64_t count) {
    const bool last = layer->desc.layout == CONVJIT_CHANNELS_LAST;
    tensor t = {.channels = channels, .pixels = count / BATCH / channels, .channels_last = last};
    if (last) {
        t.place.pixel_stride = pixel_far, t.place.batch_stride = t.pixels * pixel_far;
    } else {
        t.place.channel_stride = channel_far, t.place.batch_stride = channels * channel_far;
    }
    cr_assert_gt(far_index(&t, 0, channels - 1, t.pixels - 1), INT64_C(1) << 31);
    t.dense = malloc((size_t)count * sizeof *t.dense);
    cr_assert_not_null(t.dense);
    reference_fill_tensor(t.dense, layer, role, 3, REFERENCE_NORMAL);
    t.far_bytes = (size_t)(BATCH * t.place.batch_stride) * sizeof *t.far;
    t.far = mmap(NULL, t.far_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (t.far == MAP_FAILED) {
        cr_skip_test("no address space of %zu bytes", t.far_bytes);
    }
    t.place.data = t.far;
    copy(&t, t.dense, true);
    return t;
}

static void tensor_free(tensor *t) {
    free(t->dense);
    munmap(t->far, t->far_bytes);
}

/* y of the far tensors must be that of the dense ones, bit by bit, and right. */
static void expect_same_bits(convjit_context *context, const char *line) {
    const convjit_desc desc = desc_of(line);
    convjit_layer *layer = create(context, line);
    reference_layer shape;
    ASSERT_OK(reference_layer_make(&desc, BATCH, NULL, &shape));
    float *w = malloc((size_t)shape.w_count * sizeof *w);
    cr_assert_not_null(w);
    reference_fill_tensor(w, &shape, REFERENCE_W, 3, REFERENCE_NORMAL);
    tensor x = tensor_make(&shape, REFERENCE_X, desc.in_channels, shape.x_count);
    tensor y = tensor_make(&shape, REFERENCE_Y, desc.out_channels, shape.y_count);
    tensor z = tensor_make(&shape, REFERENCE_Z, desc.out_channels, shape.y_count);
    ASSERT_OK(convjit_layer_set_weights(layer, w, NULL, NULL));
    convjit_io io = CONVJIT_IO_INIT;
    io.batch = BATCH, io.x.data = x.dense, io.y.data = y.dense, io.z.data = z.dense;
    ASSERT_OK(convjit_layer_forward(layer, &io, NULL));
    cr_expect_eq(reference_compare(&shape, x.dense, w, NULL, z.dense, y.dense, shape.y_count).failed, 0, "%s", line);
    io.x = x.place, io.y = y.place, io.z = z.place;
    ASSERT_OK(convjit_layer_forward(layer, &io, NULL));
    float *got = malloc((size_t)shape.y_count * sizeof *got);
    cr_assert_not_null(got);
    copy(&y, got, false);
    cr_expect_arr_eq(got, y.dense, (size_t)shape.y_count * sizeof *got, "%s", line);
    free(got);
    free(w);
    tensor_free(&x);
    tensor_free(&y);
    tensor_free(&z);
    convjit_layer_destroy(layer);
}

static void run(const char *family, const char *const *layers, size_t count) {
    setenv("CONVJIT_FAMILY", family, 1);
    convjit_context *context = open_for("cpu");
    convjit_layer *layer;
    if (try_create(context, layers[0], &layer) == CONVJIT_NO_COMPILER) {
        cr_skip_test("no host C++ compiler");
    }
    convjit_layer_destroy(layer);
    for (size_t i = 0; i < count; i++) {
        expect_same_bits(context, layers[i]);
    }
    convjit_close(context);
}

#define RUN(family, layers) run(family, layers, sizeof layers / sizeof *layers)

Test(far, tensor) {
    static const char *const layers[] = {
        "conv2d c16 k24 in9x12 f3x3 p1",            /* bulk copies */
        "conv2d c16 k24 in9x12 f3x3 p1 beta=1",     /* lanes */
        "conv2d c17 k20 in8x16 f1x1 tf32",          /* rows that are joined */
        "convt2d c16 k20 in6x9 f4x4 s2 p1",         /* phases */
        "convt2d c16 k9 in6x9 f3x3 s2 p1 beta=1",   /* ... by lanes */
        "conv2d c16 k12 in16x18 f3x3 p1 fp32_block" /* rows of outputs as channels */
    };
    RUN("tensor", layers);
}

Test(far, depthwise) {
    static const char *const layers[] = {"conv2d c10 k10 g10 in20x21 f3x3 p1 beta=1", "conv1d c9 k18 g9 in300 f5",
                                         "conv2d c12 k12 g12 in20x21 f3x3 p1 nhwc beta=1"};
    RUN("depthwise", layers);
}

Test(far, direct) {
    static const char *const layers[] = {"conv2d c10 k12 in9x12 f3x3 p1 beta=1", "convt2d c10 k12 in9x12 f3x3 s2",
                                         "conv2d c6 k12 in20x21 f3x3 p1 nhwc beta=1"};
    RUN("direct", layers);
}
