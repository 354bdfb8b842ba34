/* test_layer_forward.c - weights, forward and threads by the public calls: what they refuse and launch on a fake
 * device, what they compute on the target cpu. */
#include "layer_fixture.h"

#include "kernel_src/args.h"
#include "reference.h"

TestSuite(layer_forward, .init = enter_layer, .fini = leave);

/* The fake device never looks at them. */
static _Alignas(256) char x[64], y[64], z[64], w[64], bias[64], packed[64];

#define IO_OF(batch_, ...) \
    { .struct_size = sizeof(convjit_io), .batch = (batch_), __VA_ARGS__ }
#define IO(batch_, ...) ((convjit_io)IO_OF(batch_, __VA_ARGS__))

static void give_weights(convjit_layer *layer) {
    ASSERT_OK(convjit_layer_set_weights_in(layer, NULL, NULL, packed, NULL));
}

static convjit_layer *create_ready(convjit_context *context, const char *line) {
    convjit_layer *layer = create(context, line);
    give_weights(layer);
    return layer;
}

static cj_forward_args forwarded(void) {
    cj_forward_args args;
    cr_assert_str_eq(driver_state()->kernel, "convjit_forward");
    memcpy(&args, driver_state()->args, sizeof args);
    return args;
}

/* ---------------------------------------------------------------- weights */

Test(layer_forward, a_context_that_only_builds_cannot_run) {
    static const char text[] = " failed for conv2d c2 k8 in5x6 f3x3 s1 p1 f32 nchw fp32: its context was opened for "
                               "target sm_80, which only builds; open it without a target to run on the current device";
    convjit_context *context = open_for("sm_80");
    convjit_layer *layer = create(context, "conv2d c2 k8 in5x6 f3x3 p1");
    const convjit_io io = IO(1, .x = {x}, .y = {y});
    EXPECT_FAILS(convjit_layer_set_weights(layer, w, bias, NULL), CONVJIT_NO_DEVICE, text);
    cr_expect_eq(strncmp(convjit_last_error(), "set weights ", 12), 0);
    EXPECT_FAILS(convjit_layer_set_weights_in(layer, w, bias, packed, NULL), CONVJIT_NO_DEVICE, text);
    EXPECT_FAILS(convjit_layer_forward(layer, &io, NULL), CONVJIT_NO_DEVICE, text);
    cr_expect_eq(strncmp(convjit_last_error(), "forward ", 8), 0);
    cr_expect_gt(convjit_layer_packed_bytes(layer), 0);
    convjit_layer_destroy(layer);
    convjit_close(context);
}

Test(layer_forward, null_is_refused) {
    convjit_context *context = open_for(NULL);
    convjit_layer *layer = create(context, "conv2d c2 k8 in5x6 f3x3 p1");
    const convjit_io io = IO(1, .x = {x}, .y = {y});
    EXPECT_FAILS(convjit_layer_set_weights(NULL, w, bias, NULL), CONVJIT_INVALID_ARGUMENT,
                 "set weights failed: layer is NULL");
    EXPECT_FAILS(convjit_layer_set_weights_in(NULL, w, bias, packed, NULL), CONVJIT_INVALID_ARGUMENT,
                 "set weights failed: layer is NULL");
    EXPECT_FAILS(convjit_layer_forward(NULL, &io, NULL), CONVJIT_INVALID_ARGUMENT, "forward failed: layer is NULL");
    EXPECT_FAILS(convjit_layer_set_weights(layer, NULL, bias, NULL), CONVJIT_INVALID_ARGUMENT,
                 "set weights failed for conv2d c2 k8 in5x6 f3x3 s1 p1 f32 nchw fp32: weights is NULL");
    EXPECT_FAILS(convjit_layer_set_weights_in(layer, w, bias, NULL, NULL), CONVJIT_INVALID_ARGUMENT, "packed is NULL");
    EXPECT_FAILS(convjit_layer_forward(layer, NULL, NULL), CONVJIT_INVALID_ARGUMENT,
                 "forward failed for conv2d c2 k8 in5x6 f3x3 s1 p1 f32 nchw fp32: io is NULL");
    cr_expect_eq(driver_state()->launches, 0);
    cr_expect_eq(driver_state()->allocations, 0);
    convjit_layer_destroy(layer);
    convjit_close(context);
}

Test(layer_forward, packed_weights_have_to_be_aligned) {
    convjit_context *context = open_for(NULL);
    convjit_layer *layer = create(context, "conv2d c2 k8 in5x6 f3x3 p1");
    for (int offset = 1; offset < 64; offset *= 2) {
        char text[64];
        snprintf(text, sizeof text, "packed %p is not aligned to 256 bytes", (void *)(packed + offset));
        EXPECT_FAILS(convjit_layer_set_weights_in(layer, w, bias, packed + offset, NULL), CONVJIT_INVALID_ARGUMENT,
                     text);
    }
    convjit_layer_destroy(layer);
    convjit_close(context);
}

Test(layer_forward, weights_come_before_forward) {
    convjit_context *context = open_for(NULL);
    convjit_layer *layer = create(context, "conv2d c2 k8 in5x6 f3x3 p1");
    const convjit_io io = IO(1, .x = {x}, .y = {y}), empty = IO(0, .in_size = {0});
    EXPECT_FAILS(convjit_layer_forward(layer, &io, NULL), CONVJIT_NOT_READY,
                 "no weights are set, call convjit_layer_set_weights first");
    EXPECT_FAILS(convjit_layer_forward(layer, &empty, NULL), CONVJIT_NOT_READY, "no weights are set");
    setenv("FAKE_DRIVER_LAUNCH", "700", 1); /* weights that were not packed are none */
    EXPECT_FAILS(convjit_layer_set_weights(layer, w, NULL, NULL), CONVJIT_LAUNCH_FAILED,
                 "set weights failed for conv2d c2 k8 in5x6 f3x3 s1 p1 f32 nchw fp32: launching convjit_pack");
    EXPECT_FAILS(convjit_layer_set_weights_in(layer, w, NULL, packed, NULL), CONVJIT_LAUNCH_FAILED,
                 "set weights failed for conv2d c2 k8 in5x6 f3x3 s1 p1 f32 nchw fp32: launching convjit_pack");
    EXPECT_FAILS(convjit_layer_forward(layer, &io, NULL), CONVJIT_NOT_READY, "no weights are set");
    unsetenv("FAKE_DRIVER_LAUNCH");
    ASSERT_OK(convjit_layer_set_weights(layer, w, NULL, NULL));
    ASSERT_OK(convjit_layer_forward(layer, &io, NULL));
    convjit_layer_destroy(layer);
    convjit_close(context);
}

Test(layer_forward, weights_take_device_memory_once_and_give_it_back) {
    convjit_context *context = open_for(NULL);
    convjit_layer *layer = create(context, "conv2d c2 k8 in5x6 f3x3 p1");
    setenv("FAKE_DRIVER_ALLOCATE", "2", 1);
    EXPECT_FAILS(convjit_layer_set_weights(layer, w, bias, NULL), CONVJIT_OUT_OF_MEMORY,
                 "set weights failed for conv2d c2 k8 in5x6 f3x3 s1 p1 f32 nchw fp32: allocating ");
    unsetenv("FAKE_DRIVER_ALLOCATE");
    for (int i = 0; i < 3; i++) {
        ASSERT_OK(convjit_layer_set_weights(layer, w, bias, (convjit_stream)(void *)z));
        cr_expect_eq(driver_state()->allocations, 1);
    }
    cr_expect_eq(driver_state()->launches, 3);
    cr_expect_str_eq(driver_state()->kernel, "convjit_pack");
    cr_expect_eq(driver_state()->stream, (void *)z);
    cj_pack_args args;
    memcpy(&args, driver_state()->args, sizeof args);
    cr_expect(args.w == w && args.bias == bias);
    cr_expect_eq((uintptr_t)args.packed % 256, 0);
    convjit_layer_destroy(layer);
    cr_expect_eq(driver_state()->frees, 1);
    convjit_close(context);
}

Test(layer_forward, weights_in_the_callers_memory_are_never_freed) {
    convjit_context *context = open_for(NULL);
    convjit_layer *layer = create(context, "conv2d c2 k8 in5x6 f3x3 p1");
    const convjit_io io = IO(1, .x = {x}, .y = {y});
    ASSERT_OK(convjit_layer_set_weights_in(layer, w, bias, packed, NULL));
    cr_expect_eq(driver_state()->launches, 1);
    ASSERT_OK(convjit_layer_set_weights_in(layer, NULL, NULL, packed, NULL)); /* they are there already */
    cr_expect_eq(driver_state()->launches, 1);
    ASSERT_OK(convjit_layer_forward(layer, &io, NULL));
    cr_expect_eq(forwarded().packed, (const void *)packed);
    convjit_layer_destroy(layer);
    cr_expect_eq(driver_state()->allocations, 0);
    cr_expect_eq(driver_state()->frees, 0);
    convjit_close(context);
}

/* ---------------------------------------------------------------- what forward refuses */

typedef struct refusal {
    const char *line;
    convjit_io io;
    const char *text;
} refusal;

#define NCHW "conv2d c2 k8 in5x6 f3x3 p1"
#define NHWC "conv2d c2 k8 in5x6 f3x3 p1 nhwc"
#define WITH_Z "conv2d c2 k8 in5x6 f3x3 p1 beta=1"
#define OPEN_SIZE "conv2d c2 k8 f3x4 p1x0"

static const refusal refusals[] = {
    /* pointers */
    {NCHW, IO_OF(1, .y = {y}), "x is NULL"},
    {NCHW, IO_OF(1, .x = {x}), "y is NULL"},
    {WITH_Z, IO_OF(1, .x = {x}, .y = {y}), "z is NULL"},
    {NCHW, IO_OF(1, .x = {x + 2}, .y = {y}), "is not aligned to its elements"},
    {NCHW, IO_OF(1, .x = {x}, .y = {y + 1}), "is not aligned to its elements"},
    {WITH_Z, IO_OF(1, .x = {x}, .y = {y}, .z = {z + 2}), "is not aligned to its elements"},
    {NCHW " f16", IO_OF(1, .x = {x + 1}, .y = {y}), "is not aligned to its elements"},
    {NCHW, IO_OF(1, .x = {x}, .y = {x}), ", but a convolution cannot run in place"},
    /* strides of channels first, of channels last */
    {NCHW, IO_OF(1, .x = {x, 0, 29, 0}, .y = {y}), "x channel_stride 29, must be 0 or at least 30"},
    {NCHW, IO_OF(1, .x = {x}, .y = {y, 0, -30, 0}), "y channel_stride -30, must be 0 or at least 30"},
    {NCHW, IO_OF(1, .x = {x, 0, 30, 1}, .y = {y}), "x has a pixel_stride, which this layout does not"},
    {WITH_Z, IO_OF(1, .x = {x}, .y = {y}, .z = {z, 0, 29, 0}), "z channel_stride 29, must be 0 or at least 30"},
    {NHWC, IO_OF(1, .x = {x, 0, 0, 1}, .y = {y}), "x pixel_stride 1, must be 0 or at least 2"},
    {NHWC, IO_OF(1, .x = {x}, .y = {y, 0, 0, 7}), "y pixel_stride 7, must be 0 or at least 8"},
    {NHWC, IO_OF(1, .x = {x}, .y = {y, 0, 0, INT64_MIN}), "y pixel_stride -9223372036854775808, must be 0 or"},
    {NHWC, IO_OF(1, .x = {x, 0, 1, 0}, .y = {y}), "x has a channel_stride, which this layout does not"},
    {WITH_Z, IO_OF(1, .x = {x}, .y = {y}, .z = {y, 241, 0, 0}), "z is y, but with other strides"},
    {WITH_Z, IO_OF(1, .x = {x}, .y = {y}, .z = {y, 240, 31, 0}), "z is y, but with other strides"},
    /* numbers that are negative or too large */
    {NCHW, IO_OF(-1, .x = {x}, .y = {y}), "batch -1, must be at least 0"},
    {NCHW, IO_OF(1, .x = {x, -60}, .y = {y}), "x batch_stride -60, must be at least 0"},
    {NCHW, IO_OF(INT64_MAX / 60, .x = {x}, .y = {y}),
     "x of batch 153722867280912930 and batch_stride 60 passes 2^63 bytes"},
    {NCHW, IO_OF(2, .x = {x}, .y = {y, INT64_MAX}),
     "y of batch 2 and batch_stride 9223372036854775807 passes 2^63 bytes"},
    {NCHW, IO_OF(1, .x = {x}, .y = {y, 1, INT64_MAX / 8 + 1}), "y of batch 1 and batch_stride 1 passes 2^63 bytes"},
    {NHWC, IO_OF(1, .x = {x, 1, 0, INT64_MAX / 4}, .y = {y}), "x of batch 1 and batch_stride 1 passes 2^63 bytes"},
    /* sizes that the descriptor left open */
    {OPEN_SIZE, IO_OF(1, .x = {x}, .y = {y}), "in_size[0] 0 is less than 1"},
    {OPEN_SIZE, IO_OF(1, .in_size = {5}, .x = {x}, .y = {y}), "in_size[1] 0 is less than 1"},
    {OPEN_SIZE, IO_OF(1, .in_size = {5, -6}, .x = {x}, .y = {y}), "in_size[1] -6 is less than 1"},
    {OPEN_SIZE, IO_OF(1, .in_size = {5, 3}, .x = {x}, .y = {y}),
     "kernel[1] 4 with dilation 1 spans 4, more than the padded input 3"},
    {OPEN_SIZE, IO_OF(1, .in_size = {INT64_MAX, 4}, .x = {x}, .y = {y}), "is more than 2^63 - 1"},
    {OPEN_SIZE, IO_OF(1, .in_size = {INT64_MAX / 8, INT64_MAX / 8}, .x = {x}, .y = {y}),
     "x of 2 channels and size 1x1152921504606846975x1152921504606846975 takes more than 2^63 - 1 bytes"},
    {"conv1d c2 k8 f3", IO_OF(1, .in_size = {2, 9, 9}, .x = {x}, .y = {y}), "kernel[0] 3 with dilation 1 spans 3"},
};

Test(layer_forward, what_breaks_a_rule_is_refused_by_name_and_value) {
    convjit_context *context = open_for(NULL);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        convjit_layer *layer = create_ready(context, refusals[i].line);
        EXPECT_FAILS(convjit_layer_forward(layer, &refusals[i].io, NULL), CONVJIT_INVALID_ARGUMENT, refusals[i].text);
        char head[CONVJIT_LAYER_LINE_MAX + 64];
        snprintf(head, sizeof head, "forward failed for %s: ", convjit_layer_get_info(layer).line);
        cr_expect_eq(strncmp(convjit_last_error(), head, strlen(head)), 0, "%s", convjit_last_error());
        convjit_layer_destroy(layer);
    }
    cr_expect_eq(driver_state()->launches, 0);
    convjit_close(context);
}

Test(layer_forward, io_of_another_version_is_refused) {
    convjit_context *context = open_for(NULL);
    convjit_layer *layer = create_ready(context, NCHW);
    convjit_io io = IO(1, .x = {x}, .y = {y});
    char text[96];
    io.struct_size++;
    snprintf(text, sizeof text, "struct_size %zu, must be %zu; initialise with CONVJIT_IO_INIT", io.struct_size,
             sizeof io);
    EXPECT_FAILS(convjit_layer_forward(layer, &io, NULL), CONVJIT_INVALID_ARGUMENT, text);
    convjit_layer_destroy(layer);
    convjit_close(context);
}

Test(layer_forward, a_launch_that_fails_names_the_layer) {
    convjit_context *context = open_for(NULL);
    convjit_layer *layer = create_ready(context, NCHW);
    const convjit_io io = IO(1, .x = {x}, .y = {y});
    setenv("FAKE_DRIVER_LAUNCH", "1", 1);
    EXPECT_FAILS(convjit_layer_forward(layer, &io, NULL), CONVJIT_LAUNCH_FAILED,
                 "forward failed for conv2d c2 k8 in5x6 f3x3 s1 p1 f32 nchw fp32: launching convjit_forward");
    setenv("FAKE_DRIVER_LAUNCH", "700", 1);
    EXPECT_FAILS(convjit_layer_forward(layer, &io, NULL), CONVJIT_LAUNCH_FAILED, "an earlier error of this CUDA");
    convjit_layer_destroy(layer);
    convjit_close(context);
}

/* ---------------------------------------------------------------- what forward launches */

Test(layer_forward, nothing_to_compute_succeeds_and_launches_nothing) {
    static const struct {
        const char *line;
        convjit_io io;
    } empty[] = {
        {NCHW, IO_OF(0, .in_size = {0})},
        {WITH_Z, IO_OF(0, .x = {x + 1}, .y = {x + 1})},
        {OPEN_SIZE, IO_OF(0, .in_size = {5, 6})},
        {"convt1d c2 k8 in1 f1 p1:0", IO_OF(1, .in_size = {0})},
        {"convt2d c2 k8 in3x1 f3x1 p1:1x0", IO_OF(7, .in_size = {0})},
        {"convt2d c2 k8 f2x3 p1", IO_OF(7, .in_size = {1, 9})},
    };
    convjit_context *context = open_for(NULL);
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
        convjit_layer *layer = create_ready(context, empty[i].line);
        if (empty[i].io.batch != 0) {
            int64_t size[3] = {1, 1, 1};
            const convjit_desc desc = desc_of(empty[i].line);
            ASSERT_OK(convjit_output_size(&desc, desc.in_size[0] ? NULL : empty[i].io.in_size, size));
            cr_assert_eq(size[0] * size[1] * size[2], 0, "%s", empty[i].line);
        }
        cr_expect_eq(convjit_layer_forward(layer, &empty[i].io, NULL), CONVJIT_SUCCESS, "%s", convjit_last_error());
        convjit_layer_destroy(layer);
    }
    const convjit_io io = IO(0, .in_size = {0}); /* what a batch of 0 has to tell is still looked at */
    convjit_layer *layer = create_ready(context, OPEN_SIZE);
    EXPECT_FAILS(convjit_layer_forward(layer, &io, NULL), CONVJIT_INVALID_ARGUMENT, "in_size[0] 0 is less than 1");
    convjit_layer_destroy(layer);
    cr_expect_eq(driver_state()->launches, 0);
    convjit_close(context);
}

static void expect_strides(const long long *got, long long batch, long long channel, long long pixel) {
    cr_expect_eq(got[0], batch, "batch stride %lld", got[0]);
    cr_expect_eq(got[1], channel, "channel stride %lld", got[1]);
    cr_expect_eq(got[2], pixel, "pixel stride %lld", got[2]);
}

Test(layer_forward, dense_strides_are_filled_in_and_given_ones_kept) {
    convjit_context *context = open_for(NULL);
    convjit_layer *first = create_ready(context, "conv2d c2 k8 in5x6 f3x3 beta=1");
    convjit_layer *last = create_ready(context, "conv2d c2 k8 in5x6 f3x3 beta=1 nhwc");
    convjit_io io = IO(3, .x = {x}, .y = {y, 100, 13, 0}, .z = {z});
    ASSERT_OK(convjit_layer_forward(first, &io, (convjit_stream)(void *)w));
    cr_expect_eq(driver_state()->stream, (void *)w);
    cj_forward_args args = forwarded();
    cr_expect(args.x == x && args.y == y && args.z == z && args.packed == packed);
    cr_expect_eq(args.batch, 3);
    expect_strides(&args.x_batch_stride, 60, 30, 1);
    expect_strides(&args.y_batch_stride, 100, 13, 1);
    expect_strides(&args.z_batch_stride, 96, 12, 1);
    io = IO(3, .x = {x, 0, 0, 9}, .y = {y}, .z = {z, 1000, 0, 10});
    ASSERT_OK(convjit_layer_forward(last, &io, NULL));
    args = forwarded();
    expect_strides(&args.x_batch_stride, 270, 1, 9);
    expect_strides(&args.y_batch_stride, 96, 1, 8);
    expect_strides(&args.z_batch_stride, 1000, 1, 10);
    convjit_layer_destroy(first);
    convjit_layer_destroy(last);
    convjit_close(context);
}

Test(layer_forward, open_sizes_come_with_the_call) {
    convjit_context *context = open_for(NULL);
    convjit_layer *layer = create_ready(context, OPEN_SIZE);
    const convjit_io io = IO(1, .in_size = {5, 9}, .x = {x}, .y = {y});
    ASSERT_OK(convjit_layer_forward(layer, &io, NULL));
    const cj_forward_args args = forwarded();
    cr_expect(args.in_size[0] == 1 && args.in_size[1] == 5 && args.in_size[2] == 9);
    cr_expect(args.out_size[0] == 1 && args.out_size[1] == 5 && args.out_size[2] == 6);
    expect_strides(&args.y_batch_stride, 8 * 30, 30, 1);
    convjit_layer_destroy(layer);
    convjit_close(context);
}

/* 16 bytes: where a kernel that moves four elements at once would start is what counts, for every row. */
Test(layer_forward, four_elements_move_together_only_where_every_row_is_aligned) {
    static const struct {
        const char *line;
        convjit_io io;
        int x_aligned, y_aligned;
    } cases[] = {
        {"conv2d c2 k8 in5x8 f1x1", IO_OF(1, .x = {x}, .y = {y}), 1, 1},
        {"conv2d c2 k8 in5x6 f1x1", IO_OF(1, .x = {x}, .y = {y}), 0, 0},
        {"conv2d c2 k8 in4x8 f1x1 s1x2", IO_OF(1, .x = {x}, .y = {y}), 1, 1},
        {"conv2d c2 k8 in4x8 f1x3", IO_OF(1, .x = {x}, .y = {y}), 1, 0},
        {"conv2d c2 k8 in5x8 f1x1", IO_OF(1, .x = {x + 4}, .y = {y + 16}), 0, 1},
        {"conv2d c2 k8 in5x8 f1x1", IO_OF(1, .x = {x, 0, 44}, .y = {y, 0, 41}), 1, 0},
        {"conv2d c2 k8 in5x8 f1x1", IO_OF(1, .x = {x, 82}, .y = {y}), 0, 1},
        {"conv2d c2 k8 in5x8 f1x1 beta=1", IO_OF(1, .x = {x}, .y = {y}, .z = {z + 8}), 1, 0},
        {"conv2d c2 k8 in5x8 f1x1", IO_OF(1, .x = {x}, .y = {y}, .z = {z + 8}), 1, 1},
        {"conv2d c2 k8 in5x8 f1x1 f16", IO_OF(1, .x = {x + 8}, .y = {y + 4}), 1, 0},
        {"conv2d c4 k8 in5x7 f1x1 nhwc", IO_OF(1, .x = {x}, .y = {y}), 1, 1},
        {"conv2d c4 k12 g2 in5x7 f1x1 nhwc", IO_OF(1, .x = {x}, .y = {y}), 0, 0},
        {"conv2d c4 k8 in5x7 f1x1 nhwc", IO_OF(1, .x = {x, 0, 0, 6}, .y = {y, 0, 0, 12}), 0, 1},
    };
    convjit_context *context = open_for(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        convjit_layer *layer = create_ready(context, cases[i].line);
        ASSERT_OK(convjit_layer_forward(layer, &cases[i].io, NULL));
        const cj_forward_args args = forwarded();
        cr_expect_eq(args.x_aligned, cases[i].x_aligned, "%zu: %s", i, cases[i].line);
        cr_expect_eq(args.y_aligned, cases[i].y_aligned, "%zu: %s", i, cases[i].line);
        convjit_layer_destroy(layer);
    }
    convjit_close(context);
}

Test(layer_forward, a_residual_may_be_x_or_y_and_is_not_looked_at_where_beta_is_0) {
    convjit_context *context = open_for(NULL);
    convjit_layer *with = create_ready(context, "conv2d c8 k8 in5x6 f3x3 p1 beta=0.5");
    convjit_layer *without = create_ready(context, "conv2d c8 k8 in5x6 f3x3 p1");
    const convjit_io is_x = IO(1, .x = {x}, .y = {y}, .z = {x}),
                     is_y = IO(1, .x = {x}, .y = {y, 0, 31}, .z = {y, 0, 31});
    const convjit_io spelt_out = IO(1, .x = {x}, .y = {y}, .z = {y, 240, 30});
    const convjit_io ignored = IO(1, .x = {x}, .y = {y}, .z = {z + 1, -1, -1, -1});
    ASSERT_OK(convjit_layer_forward(with, &is_x, NULL));
    cr_expect_eq(forwarded().z, (const void *)x);
    ASSERT_OK(convjit_layer_forward(with, &is_y, NULL));
    cr_expect_eq(forwarded().z, (const void *)y);
    ASSERT_OK(convjit_layer_forward(with, &spelt_out, NULL));
    ASSERT_OK(convjit_layer_forward(without, &ignored, NULL));
    cr_expect_null(forwarded().z);
    convjit_layer_destroy(with);
    convjit_layer_destroy(without);
    convjit_close(context);
}
