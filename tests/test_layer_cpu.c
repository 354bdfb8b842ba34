/* test_layer_cpu.c - layers that run, on the target cpu: weights that are handed on, batches, many threads at once. */
#include "layer_fixture.h"

#include "reference.h"

TestSuite(layer_cpu, .init = enter_layer, .fini = leave);

/* Data for a layer, and what it made of it. */
typedef struct data {
    reference_layer reference;
    float *x, *w, *bias, *y;
} data;

static void data_make(data *d, const char *line, int64_t batch, uint64_t seed) {
    const convjit_desc desc = desc_of(line);
    ASSERT_OK(reference_layer_make(&desc, batch, NULL, &d->reference));
    const int64_t counts[] = {d->reference.x_count, d->reference.w_count, d->reference.bias_count,
                              d->reference.y_count};
    float **const tensors[] = {&d->x, &d->w, &d->bias, &d->y};
    for (int i = 0; i < 4; i++) {
        *tensors[i] = malloc((size_t)counts[i] * sizeof(float));
        cr_assert_not_null(*tensors[i]);
        /* w and bias are the same for every x of a layer */
        reference_fill(*tensors[i], CONVJIT_F32, counts[i], i == 0 ? seed : (uint64_t)i, REFERENCE_NORMAL);
    }
    reference_poison(d->y, CONVJIT_F32, d->reference.y_count);
}

static void data_free(data *d) {
    free(d->x);
    free(d->w);
    free(d->bias);
    free(d->y);
}

static convjit_status forward(const convjit_layer *layer, data *d) {
    convjit_io io = CONVJIT_IO_INIT;
    io.batch = d->reference.batch, io.x.data = d->x, io.y.data = d->y;
    return convjit_layer_forward(layer, &io, NULL);
}

static bool is_right(const data *d) {
    const reference_comparison found =
        reference_compare(&d->reference, d->x, d->w, d->bias, NULL, d->y, d->reference.y_count);
    return found.failed == 0 && found.checked == d->reference.y_count;
}

static bool same_output(const data *a, const data *b) {
    return a->reference.y_count == b->reference.y_count &&
           memcmp(a->y, b->y, (size_t)a->reference.y_count * sizeof(float)) == 0;
}

/* Skips the test where there is no compiler. */
static convjit_context *open_cpu(void) {
    convjit_context *context = open_for("cpu");
    convjit_layer *layer;
    if (try_create(context, "conv1d c1 k1 in1 f1", &layer) == CONVJIT_NO_COMPILER) {
        cr_skip_test("no host C++ compiler");
    }
    convjit_layer_destroy(layer);
    return context;
}

static const char *const layers[] = {"conv2d c3 k8 in9x11 f3x3 p1 relu", "conv2d c4 k6 g2 in7x8 f2x3 s2",
                                     "convt2d c3 k5 in4x5 f3x2 s2", "conv1d c5 k7 in20 f4 d2 p3"};
enum { LAYERS = sizeof layers / sizeof layers[0] };

Test(layer_cpu, packed_weights_serve_an_equal_layer) {
    convjit_context *context = open_cpu();
    for (int i = 0; i < 2; i++) {
        convjit_layer *first = create(context, layers[i]), *second = create(context, layers[i]);
        const size_t size = (convjit_layer_packed_bytes(first) + 255) / 256 * 256;
        cr_expect_eq(convjit_layer_packed_bytes(second), convjit_layer_packed_bytes(first));
        void *packed = aligned_alloc(256, size);
        cr_assert_not_null(packed);
        data a, b;
        data_make(&a, layers[i], 2, 9);
        data_make(&b, layers[i], 2, 9);
        ASSERT_OK(convjit_layer_set_weights_in(first, a.w, a.bias, packed, NULL));
        ASSERT_OK(forward(first, &a));
        convjit_layer_destroy(first);
        ASSERT_OK(convjit_layer_set_weights_in(second, NULL, NULL, packed, NULL));
        ASSERT_OK(forward(second, &b));
        cr_expect(is_right(&a), "%s", layers[i]);
        cr_expect(same_output(&a, &b), "%s", layers[i]);
        convjit_layer_destroy(second);
        data_free(&a);
        data_free(&b);
        free(packed);
    }
    convjit_close(context);
}

Test(layer_cpu, weights_may_be_set_again_and_a_bias_left_out) {
    convjit_context *context = open_cpu();
    convjit_layer *layer = create(context, layers[0]);
    data d;
    data_make(&d, layers[0], 1, 9);
    ASSERT_OK(convjit_layer_set_weights(layer, d.w, d.bias, NULL));
    ASSERT_OK(forward(layer, &d));
    cr_expect(is_right(&d));
    memset(d.bias, 0, (size_t)d.reference.bias_count * sizeof(float));
    cr_expect_not(is_right(&d)); /* the bias counts */
    d.w[0] += 1.0F;
    ASSERT_OK(convjit_layer_set_weights(layer, d.w, NULL, NULL));
    ASSERT_OK(forward(layer, &d));
    cr_expect(is_right(&d));
    convjit_layer_destroy(layer);
    data_free(&d);
    convjit_close(context);
}

Test(layer_cpu, an_image_gives_the_same_bits_in_every_batch) {
    enum { BATCH = 5 };
    convjit_context *context = open_cpu();
    for (int i = 0; i < 2; i++) {
        convjit_layer *layer = create(context, layers[i]);
        data all, one;
        data_make(&all, layers[i], BATCH, 9);
        data_make(&one, layers[i], 1, 0);
        ASSERT_OK(convjit_layer_set_weights(layer, all.w, all.bias, NULL));
        ASSERT_OK(forward(layer, &all));
        cr_expect(is_right(&all), "%s", layers[i]);
        for (int64_t n = 0; n < BATCH; n++) {
            memcpy(one.x, all.x + n * one.reference.x_count, (size_t)one.reference.x_count * sizeof(float));
            ASSERT_OK(forward(layer, &one));
            cr_expect_arr_eq(one.y, all.y + n * one.reference.y_count, (size_t)one.reference.y_count * sizeof(float));
        }
        convjit_layer_destroy(layer);
        data_free(&all);
        data_free(&one);
    }
    convjit_close(context);
}

/* Each has an input of a few elements; all else is padding, or lies between taps. */
Test(layer_cpu, distances_near_the_end_of_64_bits_give_right_results) {
    static const char *const far[] = {
        "conv1d c2 k3 in3 f1 s4611686018427387904 p4611686018427387904:0",
        "conv1d c2 k3 in2 f2 d4611686018427387904 p4611686018427387904:0",
        "conv2d c2 k3 in3x2 f2x1 d2147483648x1 p2147483648x4611686018427387904:0 s1x4611686018427387904",
        "conv1d c1 k1 in5 f3 s3 d3074457345618258602 p4611686018427387904:1537228672809129300",
        "convt1d c2 k3 in2 f2 d1152921504606846976 p1152921504606846975:0",
        "convt2d c2 k3 in2x3 f2x2 s3x2 d4611686018427387904x1 p4611686018427387903x0:0x1",
    };
    convjit_context *context = open_cpu();
    for (size_t i = 0; i < sizeof far / sizeof far[0]; i++) {
        convjit_layer *layer = create(context, far[i]);
        data d;
        data_make(&d, far[i], 2, 9);
        ASSERT_OK(convjit_layer_set_weights(layer, d.w, d.bias, NULL));
        ASSERT_OK(forward(layer, &d));
        cr_expect(is_right(&d), "%s", far[i]);
        convjit_layer_destroy(layer);
        data_free(&d);
    }
    convjit_close(context);
}

/* ---------------------------------------------------------------- threads */

enum { THREADS = 8 };

/* One thread's work. Assertions are for the main thread: threads leave what they found. */
typedef struct job {
    pthread_t thread;
    pthread_barrier_t *start;
    convjit_context *context;
    const char *line;
    const convjit_layer *shared; /* or NULL: creates one of its own */
    data data;
    convjit_status status;
    char error[1024];
} job;

static convjit_status create_and_run(job *j) {
    convjit_layer *layer = NULL;
    convjit_desc desc;
    convjit_status status = convjit_layer_line_parse(j->line, &desc, NULL);
    status = status ? status : convjit_layer_create(j->context, &desc, &layer);
    status = status ? status : convjit_layer_set_weights(layer, j->data.w, j->data.bias, NULL);
    status = status ? status : forward(layer, &j->data);
    convjit_layer_destroy(layer);
    return status;
}

static void *work(void *argument) {
    job *j = argument;
    pthread_barrier_wait(j->start);
    for (int again = 0; again < 3 && j->status == CONVJIT_SUCCESS; again++) {
        j->status = j->shared ? forward(j->shared, &j->data) : create_and_run(j);
    }
    if (j->status != CONVJIT_SUCCESS) {
        snprintf(j->error, sizeof j->error, "%s", convjit_last_error());
    }
    return NULL;
}

/* Runs the jobs, all at once, and looks at what they computed. */
static void run_jobs(job *jobs, int count) {
    pthread_barrier_t start;
    cr_assert_eq(pthread_barrier_init(&start, NULL, (unsigned)count), 0);
    for (int i = 0; i < count; i++) {
        data_make(&jobs[i].data, jobs[i].line, 1 + i % 3, 100 + (uint64_t)i);
        jobs[i].start = &start;
    }
    for (int i = 0; i < count; i++) {
        cr_assert_eq(pthread_create(&jobs[i].thread, NULL, work, &jobs[i]), 0);
    }
    for (int i = 0; i < count; i++) {
        cr_assert_eq(pthread_join(jobs[i].thread, NULL), 0);
    }
    for (int i = 0; i < count; i++) {
        cr_expect_eq(jobs[i].status, CONVJIT_SUCCESS, "%s: %s", jobs[i].line, jobs[i].error);
        cr_expect(jobs[i].status != CONVJIT_SUCCESS || is_right(&jobs[i].data), "thread %d: %s", i, jobs[i].line);
        data_free(&jobs[i].data);
    }
    pthread_barrier_destroy(&start);
}

Test(layer_cpu, eight_threads_create_and_run_equal_and_different_layers_at_once) {
    convjit_context *context = open_cpu();
    const convjit_counters before = convjit_get_counters(context);
    job jobs[THREADS] = {0};
    for (int i = 0; i < THREADS; i++) {
        jobs[i].context = context, jobs[i].line = layers[i % LAYERS];
    }
    run_jobs(jobs, THREADS);
    expect_counts(context, (convjit_counters){.memory_hits = before.memory_hits + 3 * THREADS - LAYERS,
                                              .misses = before.misses + LAYERS,
                                              .compiles = before.compiles + LAYERS});
    convjit_close(context);
}

Test(layer_cpu, threads_with_contexts_of_their_own_share_one_build) {
    convjit_close(open_cpu());
    job jobs[4] = {0};
    for (int i = 0; i < 4; i++) {
        jobs[i].context = open_for("cpu"), jobs[i].line = layers[0];
    }
    run_jobs(jobs, 4);
    uint64_t compiles = 0, hits = 0;
    for (int i = 0; i < 4; i++) {
        const convjit_counters counts = convjit_get_counters(jobs[i].context);
        compiles += counts.compiles, hits += counts.memory_hits;
        convjit_close(jobs[i].context);
    }
    cr_expect_eq(compiles, 1);
    cr_expect_eq(hits, 3 * 4 - 1);
}

Test(layer_cpu, four_threads_run_one_layer_at_once) {
    convjit_context *context = open_cpu();
    convjit_layer *layer = create(context, layers[0]);
    job jobs[4] = {0};
    data weights;
    data_make(&weights, layers[0], 1, 0);
    ASSERT_OK(convjit_layer_set_weights(layer, weights.w, weights.bias, NULL));
    for (int i = 0; i < 4; i++) {
        jobs[i].line = layers[0], jobs[i].shared = layer;
    }
    run_jobs(jobs, 4);
    data_free(&weights);
    convjit_layer_destroy(layer);
    convjit_close(context);
}

Test(layer_cpu, every_thread_has_an_error_text_of_its_own) {
    convjit_context *context = open_cpu();
    job jobs[4] = {0};
    pthread_barrier_t start;
    EXPECT_FAILS(convjit_layer_forward(NULL, NULL, NULL), CONVJIT_INVALID_ARGUMENT, "layer is NULL");
    cr_assert_eq(pthread_barrier_init(&start, NULL, 4), 0);
    for (int i = 0; i < 4; i++) {
        static const char *const wrong[] = {"conv1d c1 k1 in1 f2", "conv1d c1 k1 in1 f3", "conv1d c1 k1 in1 f4",
                                            "conv1d c1 k1 in1 f5"};
        jobs[i].context = context, jobs[i].line = wrong[i], jobs[i].start = &start;
        cr_assert_eq(pthread_create(&jobs[i].thread, NULL, work, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        char text[64];
        cr_assert_eq(pthread_join(jobs[i].thread, NULL), 0);
        snprintf(text, sizeof text, "kernel[0] %d with dilation 1", i + 2);
        cr_expect_eq(jobs[i].status, CONVJIT_INVALID_LAYER);
        cr_expect_not_null(strstr(jobs[i].error, text), "%s", jobs[i].error);
    }
    cr_expect_not_null(strstr(convjit_last_error(), "layer is NULL"), "%s", convjit_last_error());
    pthread_barrier_destroy(&start);
    convjit_close(context);
}
