/* test_layer.c - contexts and convjit_layer_create by the public calls; test_layer_cache.c has where kernels come from,
 * test_layer_forward.c weights and forward. */
#include "layer_fixture.h"

#include <math.h>
#include <sys/stat.h>

TestSuite(layer, .init = enter_layer, .fini = leave);

static const char small[] = "conv2d c2 k4 in5x6 f3x3 s1 p1 f32 nchw fp32"; /* in full, as format writes it */

/* ---------------------------------------------------------------- open */

static void expect_open_fails(const convjit_options *options, convjit_status status, const char *part) {
    convjit_context *context = NULL;
    EXPECT_FAILS(convjit_open(options, &context), status, part);
    cr_expect_null(context);
}

Test(layer, open_without_a_place_for_the_context_is_refused) {
    EXPECT_FAILS(convjit_open(NULL, NULL), CONVJIT_INVALID_ARGUMENT, "open failed: out is NULL");
}

Test(layer, open_refuses_options_of_another_version) {
    convjit_options options = CONVJIT_OPTIONS_INIT;
    char text[128];
    options.struct_size += 8;
    snprintf(text, sizeof text, "open failed: struct_size %zu, must be %zu; initialise with CONVJIT_OPTIONS_INIT",
             options.struct_size, sizeof options);
    expect_open_fails(&options, CONVJIT_INVALID_ARGUMENT, text);
    options.struct_size = 0;
    expect_open_fails(&options, CONVJIT_INVALID_ARGUMENT, "open failed: struct_size 0, must be");
}

Test(layer, open_refuses_targets_it_does_not_know) {
    static const char *const refused[][2] = {
        {"sm_91", "target \"sm_91\" is unknown, must be cpu or one of sm_70"},
        {"sm_80a", "target \"sm_80a\" is unknown, must be"},
        {"", "target \"\" is unknown, must be"},
        {"sm_52", "target sm_52 is older than sm_70, must be"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const convjit_options options = options_for(refused[i][0]);
        expect_open_fails(&options, CONVJIT_INVALID_ARGUMENT, refused[i][1]);
    }
}

Test(layer, open_without_a_target_needs_a_driver) {
    setenv("CONVJIT_DRIVER", "/nowhere/libcuda.so.1", 1);
    expect_open_fails(NULL, CONVJIT_NO_DRIVER, "CONVJIT_DRIVER is \"/nowhere/libcuda.so.1\"");
}

Test(layer, open_without_a_target_needs_a_device) {
    setenv("FAKE_DRIVER_INIT", "100", 1);
    expect_open_fails(NULL, CONVJIT_NO_DEVICE, "CUDA_ERROR_NO_DEVICE (100)");
}

Test(layer, open_without_a_target_needs_a_current_context) {
    setenv("FAKE_DRIVER_CONTEXT", "none", 1);
    expect_open_fails(NULL, CONVJIT_NO_DEVICE, "no CUDA context is current in this thread; make one current first");
}

Test(layer, open_makes_no_directory_and_opens_neither_nvrtc_nor_an_unasked_driver) {
    convjit_close(open_for("cpu"));
    convjit_close(open_for("sm_80"));
    cr_expect_null(dlopen(FAKE_DRIVER_PATH, RTLD_NOW | RTLD_NOLOAD));
    convjit_close(open_for(NULL));
    cr_expect_null(dlopen(FAKE_NVRTC_PATH, RTLD_NOW | RTLD_NOLOAD));
    cr_expect_neq(access(below("cache"), F_OK), 0);
    cr_expect_eq(line_count, 0);
}

Test(layer, open_copies_the_strings_it_is_given) {
    char target[] = "sm_80", cache[TESTING_PATH_MAX + 128], dump[TESTING_PATH_MAX + 128];
    snprintf(cache, sizeof cache, "%s", below("cache"));
    snprintf(dump, sizeof dump, "%s", folder);
    convjit_options options = CONVJIT_OPTIONS_INIT;
    options.target = target, options.cache_directory = cache, options.dump_directory = dump;
    convjit_context *context = NULL;
    ASSERT_OK(convjit_open(&options, &context));
    memset(target, 'x', strlen(target)), memset(cache, 'x', strlen(cache)), memset(dump, 'x', strlen(dump));
    convjit_layer_destroy(create(context, small));
    convjit_close(context);
    cr_expect_eq(access(below("cache"), F_OK), 0);
    cr_expect_eq(count_files(folder), 3); /* cache, source, binary */
}

Test(layer, nothing_has_no_counters_no_info_and_can_be_closed) {
    convjit_close(NULL);
    convjit_layer_destroy(NULL);
    expect_counts(NULL, (convjit_counters){0});
    const convjit_layer_info info = convjit_layer_get_info(NULL);
    cr_expect_str_eq(info.line, "");
    cr_expect_str_eq(info.family, "");
    cr_expect_str_eq(info.config, "");
    cr_expect_str_eq(info.key, "");
    cr_expect_str_eq(info.origin, "");
    cr_expect_eq(convjit_layer_packed_bytes(NULL), 0);
    cr_expect_eq(convjit_layer_predict_ms(NULL, 1), 0.0);
}

/* ---------------------------------------------------------------- what create refuses */

Test(layer, create_refuses_null) {
    convjit_context *context = open_for("sm_80");
    const convjit_desc desc = desc_of(small);
    convjit_layer *layer = NULL;
    EXPECT_FAILS(convjit_layer_create(NULL, &desc, &layer), CONVJIT_INVALID_ARGUMENT, "create failed: context is NULL");
    EXPECT_FAILS(convjit_layer_create(context, NULL, &layer), CONVJIT_INVALID_ARGUMENT,
                 "create failed for this descriptor: desc is NULL");
    EXPECT_FAILS(convjit_layer_create(context, &desc, NULL), CONVJIT_INVALID_ARGUMENT, "create failed: out is NULL");
    cr_expect_null(layer);
    convjit_close(context);
}

Test(layer, create_refuses_a_descriptor_of_another_version) {
    convjit_context *context = open_for("sm_80");
    convjit_desc desc = desc_of(small);
    convjit_layer *layer = NULL;
    char text[128];
    desc.struct_size -= 8;
    snprintf(text, sizeof text, "struct_size %zu of convjit_desc is not %zu, start from CONVJIT_DESC_INIT",
             desc.struct_size, sizeof desc);
    EXPECT_FAILS(convjit_layer_create(context, &desc, &layer), CONVJIT_INVALID_ARGUMENT, text);
    convjit_close(context);
}

Test(layer, create_refuses_an_epilogue_that_is_no_number) {
    convjit_context *context = open_for("sm_80");
    static const struct {
        convjit_activation activation;
        float alpha, beta, a, b;
        const char *text;
    } refused[] = {
        {CONVJIT_NONE, NAN, 0, 0, 0, "alpha nan is not a number"},
        {CONVJIT_NONE, 1, NAN, 0, 0, "beta nan is not a number"},
        {CONVJIT_LEAKY_RELU, 1, 0, NAN, 0, "activation_a nan is not a number"},
        {CONVJIT_CLAMP, 1, 0, NAN, 0, "activation_a nan is not a number"},
        {CONVJIT_CLAMP, 1, 0, 0, NAN, "activation_b nan is not a number"},
        {CONVJIT_CLAMP, 1, 0, 2, 1, "activation_a 2 is more than activation_b 1, a clamp's upper bound"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        convjit_layer *layer = NULL;
        convjit_desc desc = desc_of(small);
        desc.activation = refused[i].activation;
        desc.alpha = refused[i].alpha, desc.beta = refused[i].beta;
        desc.activation_a = refused[i].a, desc.activation_b = refused[i].b;
        EXPECT_FAILS(convjit_layer_create(context, &desc, &layer), CONVJIT_INVALID_LAYER, refused[i].text);
        cr_expect_not_null(strstr(convjit_last_error(), "create failed for "));
        cr_expect_null(layer);
    }
    convjit_desc desc = desc_of(small); /* no activation reads them */
    desc.activation_a = desc.activation_b = NAN;
    convjit_layer *layer = NULL;
    ASSERT_OK(convjit_layer_create(context, &desc, &layer));
    convjit_layer_destroy(layer);
    convjit_close(context);
}

static void expect_unsupported(convjit_context *context, const char *line, const char *direct, const char *tensor) {
    convjit_layer *layer;
    char text[CONVJIT_LAYER_LINE_MAX + 64];
    convjit_desc desc = desc_of(line);
    const int head = snprintf(text, sizeof text, "create failed for ");
    convjit_layer_line_format(&desc, -1, text + head, sizeof text - (size_t)head);
    EXPECT_FAILS(try_create(context, line, &layer), CONVJIT_UNSUPPORTED, text);
    EXPECT_FAILS(convjit_supported(&desc, "sm_80"), CONVJIT_UNSUPPORTED, "no family computes this layer on sm_80: ");
    EXPECT_FAILS(convjit_supported(&desc, "sm_80"), CONVJIT_UNSUPPORTED, direct);
    EXPECT_FAILS(convjit_supported(&desc, "sm_80"), CONVJIT_UNSUPPORTED, tensor);
    cr_expect_null(layer);
}

Test(layer, create_names_the_reason_of_every_family) {
    convjit_context *context = open_for("sm_80");
    static const char *const refused[][2] = {
        {"conv2d c2 k8 f50000x50000", "direct: more than 2147483647 kernel taps"},
        {"conv3d c2 k8 f2000x2000x2000", "direct: more than 2147483647 kernel taps"},
        {"conv2d c2147483648 k8 f1x1", "direct: more than 2147483647 input channels a group"},
        {"conv2d c2 k2147482624 f1x1", "direct: more than 2147482623 output channels a group"},
        {"convt2d c2 k8 f1x1 s50000x50000", "direct: more than 2147483647 output phases"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        expect_unsupported(context, refused[i][0], refused[i][1], "tensor: ");
    }
    convjit_close(context);
}

Test(layer, create_obeys_convjit_family) {
    convjit_context *context = open_for("sm_80");
    setenv("CONVJIT_FAMILY", "tensor", 1);
    expect_unsupported(context, small, "direct: CONVJIT_FAMILY is tensor", "tensor: not sm_90a");
    setenv("CONVJIT_FAMILY", "nosuch", 1);
    expect_unsupported(context, small, "direct: CONVJIT_FAMILY is nosuch", "tensor: CONVJIT_FAMILY is nosuch");
    setenv("CONVJIT_FAMILY", "direct", 1);
    convjit_layer *layer = create(context, small);
    cr_expect_str_eq(convjit_layer_get_info(layer).family, "direct");
    convjit_layer_destroy(layer);
    convjit_close(context);
}

static void make_current(void *cuda_context) {
    void *library = dlopen(FAKE_DRIVER_PATH, RTLD_NOW | RTLD_NOLOAD);
    int (*set_current)(void *) = NULL;
    void *address = dlsym(library, "cuCtxSetCurrent");
    memcpy(&set_current, &address, sizeof address);
    cr_assert_not_null(set_current);
    cr_assert_eq(set_current(cuda_context), 0);
}

Test(layer, create_needs_the_cuda_context_of_open_to_be_current) {
    static char first, second;
    convjit_context *context = open_for("sm_80"); /* opens no driver, and does not care */
    convjit_layer_destroy(create(context, small));
    convjit_close(context);
    context = open_for(NULL);
    make_current(&first);
    convjit_context *in_first = open_for(NULL);
    convjit_layer *layer;
    EXPECT_FAILS(try_create(context, small, &layer), CONVJIT_NO_DEVICE,
                 "the CUDA context of convjit_open is not current: another one is; make it current");
    cr_expect_not_null(strstr(convjit_last_error(), small), "%s", convjit_last_error());
    cr_expect_null(layer);
    expect_counts(context, (convjit_counters){0}); /* no compiler ran for it */
    make_current(&second);
    EXPECT_FAILS(try_create(in_first, small, &layer), CONVJIT_NO_DEVICE, "another one is");
    make_current(NULL);
    EXPECT_FAILS(try_create(in_first, small, &layer), CONVJIT_NO_DEVICE, "is not current: none is");
    make_current(&first);
    convjit_layer_destroy(create(in_first, small));
    convjit_close(in_first);
    convjit_close(context);
}

/* ---------------------------------------------------------------- compilers that fail */

Test(layer, what_the_compiler_says_is_in_the_error_text) {
    convjit_context *context = open_for("sm_80");
    convjit_layer *layer;
    setenv("FAKE_NVRTC_FAIL", "direct.cu(12): error: identifier \"x\" is undefined", 1);
    EXPECT_FAILS(try_create(context, small, &layer), CONVJIT_COMPILE_FAILED,
                 "\ndirect.cu(12): error: identifier \"x\" is undefined");
    cr_expect_eq(strncmp(convjit_last_error(), "create failed for conv2d c2 k4", 30), 0, "%s", convjit_last_error());
    cr_expect_null(layer);
    expect_counts(context, (convjit_counters){.misses = 1});
    unsetenv("FAKE_NVRTC_FAIL"); /* a failure is not remembered */
    convjit_layer_destroy(create_from(context, small, "compiler"));
    expect_counts(context, (convjit_counters){.misses = 2, .compiles = 1});
    convjit_close(context);
}

Test(layer, what_the_host_compiler_says_is_in_the_error_text) {
    write_file(below("c++"), "#!/bin/sh\n[ \"$1\" = --version ] && echo fake 1 && exit\n"
                             "cat >/dev/null\necho 'cpu/words.cuh:3: error: no such word' >&2\nexit 1\n");
    chmod(below("c++"), 0700);
    setenv("CONVJIT_CXX", below("c++"), 1);
    convjit_context *context = open_for("cpu");
    convjit_layer *layer;
    EXPECT_FAILS(try_create(context, small, &layer), CONVJIT_COMPILE_FAILED, "\ncpu/words.cuh:3: error: no such word");
    convjit_close(context);
}

/* ---------------------------------------------------------------- what a layer leaves behind */

Test(layer, info_tells_how_a_layer_came_to_be) {
    convjit_context *context = open_for("sm_80");
    convjit_layer *layer = create(context, small);
    const convjit_layer_info info = convjit_layer_get_info(layer);
    cr_expect_str_eq(info.line, small);
    cr_expect_str_eq(info.family, "direct");
    cr_expect_eq(strncmp(info.config, "tile ", 5), 0, "%s", info.config);
    cr_expect_eq(strspn(info.key, "0123456789abcdef"), 32, "%s", info.key);
    cr_expect_eq(strlen(info.key), 32);
    cr_expect_str_eq(info.origin, "compiler");
    cr_expect_gt(info.create_ms, 0.0);
    cr_expect_geq(info.create_ms, convjit_get_counters(context).compile_ms);
    cr_expect_gt(convjit_layer_packed_bytes(layer), 2 * 4 * 9 * sizeof(float));
    cr_expect_gt(convjit_layer_predict_ms(layer, 1), 0.0);
    cr_expect_gt(convjit_layer_predict_ms(layer, 64), convjit_layer_predict_ms(layer, 1));
    cr_expect_eq(convjit_layer_predict_ms(layer, 0), 0.0);
    convjit_layer_destroy(layer);
    convjit_close(context);
}

Test(layer, each_create_logs_one_line) {
    static const char *const origins[] = {"compiler", "memory", "memory"};
    convjit_context *context = open_for(NULL);
    for (int i = 0; i < 3; i++) {
        char line[1024];
        convjit_layer *layer = create(context, small);
        snprintf(line, sizeof line, "convjit: sm_90a direct %s: %s, key %s, ", small, origins[i],
                 convjit_layer_get_info(layer).key);
        cr_assert_eq(line_count, i + 1);
        cr_expect_eq(strncmp(lines[i], line, strlen(line)), 0, "%s", lines[i]);
        convjit_layer_destroy(layer);
    }
    convjit_close(context);
    cr_expect_eq(line_count, 3);
}

Test(layer, hints_that_lead_to_one_plan_share_its_kernel) {
    static const char *const hinted[] = {"conv2d c3 k4 in7x7 f3x3 s1 p0 f32 nchw fp32",
                                         "conv2d c3 k4 in7x7 hint=8 f3x3 s1 p0 f32 nchw fp32",
                                         "conv2d c3 k4 in7x7 hint=9223372036854775807 f3x3 s1 p0 f32 nchw fp32"};
    convjit_context *context = open_for("sm_80");
    for (size_t i = 0; i < sizeof hinted / sizeof *hinted; i++) {
        convjit_layer *layer = create(context, hinted[i]);
        cr_expect_str_eq(convjit_layer_get_info(layer).line, hinted[i]);
        convjit_layer_destroy(layer);
    }
    cr_expect_eq(convjit_get_counters(context).compiles, 1);
    convjit_close(context);
}

static long size_of(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 ? (long)status.st_size : -1;
}

Test(layer, dump_leaves_the_source_and_the_binary_wherever_it_came_from) {
    for (int i = 0; i < 2; i++) { /* from the compiler, then from disk */
        char name[128];
        convjit_options options = options_for(NULL);
        options.dump_directory = below("dump");
        convjit_context *context = NULL;
        cr_assert_eq(mkdir(below("dump"), 0700), 0);
        ASSERT_OK(convjit_open(&options, &context));
        convjit_layer *layer = create(context, small);
        cr_expect_eq(count_files(below("dump")), 2);
        snprintf(name, sizeof name, "dump/direct-sm_90a-%.12s.cu", convjit_layer_get_info(layer).key);
        cr_expect_gt(size_of(below(name)), 10000, "%s", name);
        snprintf(name, sizeof name, "dump/direct-sm_90a-%.12s.cubin", convjit_layer_get_info(layer).key);
        cr_expect_eq(size_of(below(name)), 72, "%s: %ld bytes", name, size_of(below(name))); /* as fake_nvrtc.c's */
        convjit_layer_destroy(layer);
        convjit_close(context);
        testing_folder_remove(below("dump"));
    }
}

Test(layer, a_dump_directory_that_is_missing_is_only_logged) {
    convjit_options options = options_for("sm_80");
    options.dump_directory = below("nowhere");
    convjit_context *context = NULL;
    ASSERT_OK(convjit_open(&options, &context));
    convjit_layer_destroy(create(context, small));
    cr_assert_eq(line_count, 3);
    cr_expect_not_null(strstr(lines[0], "dump failed for conv2d c2 k4"), "%s", lines[0]);
    cr_expect_not_null(strstr(lines[0], "nowhere/direct-sm_80-"), "%s", lines[0]);
    cr_expect_not_null(strstr(lines[1], ".cubin"), "%s", lines[1]);
    convjit_close(context);
}
