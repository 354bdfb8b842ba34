/* test_layer_modes.c - what the modes of the cache allow, and what explains a miss. */
#include "layer_fixture.h"

#include <sys/stat.h>

TestSuite(layer_modes, .init = enter_layer, .fini = leave);

static const char small[] = "conv2d c2 k8 in5x6 f3x3 s1 p1 f32 nchw fp32"; /* in full, as format writes it */
static const char other[] = "conv2d c2 k8 in5x7 f3x3 p1";

static convjit_context *open_in_mode(convjit_cache_mode mode) {
    convjit_options options = options_for(NULL);
    options.cache_mode = mode;
    convjit_context *context = NULL;
    ASSERT_OK(convjit_open(&options, &context));
    return context;
}

Test(layer_modes, cache_only_never_compiles_and_names_layer_and_key) {
    const cj_key key = make_and_close(small);
    convjit_context *context = open_in_mode(CONVJIT_CACHE_ONLY);
    convjit_layer_destroy(create_from(context, small, "disk"));
    convjit_layer *layer;
    EXPECT_FAILS(try_create(context, other, &layer), CONVJIT_NOT_CACHED, "conv2d c2 k8 in5x7 f3x3 s1 p1 f32 nchw fp32");
    cr_expect_not_null(strstr(convjit_last_error(), " is not in the cache, whose mode is cache-only: "), "%s",
                       convjit_last_error());
    cr_expect_not_null(strstr(convjit_last_error(), below("cache (cache_directory); ")), "%s", convjit_last_error());
    cr_expect_null(strstr(convjit_last_error(), key.hex), "the key of the other layer");
    cr_expect_null(layer);
    expect_counts(context, (convjit_counters){.disk_hits = 1, .misses = 1});
    convjit_close(context);
    context = open_in_mode(CONVJIT_CACHE_NORMAL); /* it told the right key */
    char text[1024];
    snprintf(text, sizeof text, "%s", convjit_last_error());
    layer = create_from(context, other, "compiler");
    cr_expect_not_null(strstr(text, convjit_layer_get_info(layer).key), "%s", text);
    convjit_layer_destroy(layer);
    convjit_close(context);
    cr_expect_eq(nvrtc_state()->compiles, 2);
}

Test(layer_modes, cache_only_says_what_is_wrong_with_an_entry_and_leaves_it) {
    const cj_key key = make_and_close(small);
    cr_assert_eq(truncate(entry_file(below("cache"), &key), 200), 0);
    line_count = 0;
    convjit_context *context = open_in_mode(CONVJIT_CACHE_ONLY);
    convjit_layer *layer;
    EXPECT_FAILS(try_create(context, small, &layer), CONVJIT_NOT_CACHED,
                 " is of no use in the cache, whose mode is cache-only: truncated (in ");
    expect_counts(context, (convjit_counters){.misses = 1, .corrupt = 1});
    cr_expect_not_null(strstr(lines[0], "not built anew, the cache mode is cache-only"), "%s", lines[0]);
    convjit_close(context);
}

/* The fake NVRTC is open in this process, and of another version than the entries. */
Test(layer_modes, cache_only_takes_entries_of_any_compiler_build) {
    setenv("FAKE_NVRTC_VERSION", "12.4.99", 1);
    create_in_a_child(NULL, small);
    unsetenv("FAKE_NVRTC_VERSION");
    convjit_environment found;
    convjit_get_environment(NULL, &found); /* opens the compiler */
    convjit_context *context = open_in_mode(CONVJIT_CACHE_ONLY);
    convjit_layer_destroy(create_from(context, small, "disk"));
    convjit_close(context);
    context = open_in_mode(CONVJIT_CACHE_NORMAL);
    convjit_layer_destroy(create_from(context, small, "compiler"));
    convjit_close(context);
}

Test(layer_modes, cache_only_keeps_the_words_of_a_device_that_refuses_a_binary) {
    make_and_close(small);
    setenv("FAKE_DRIVER_LOAD", "200", 1);
    convjit_context *context = open_in_mode(CONVJIT_CACHE_ONLY);
    convjit_layer *layer;
    EXPECT_FAILS(try_create(context, small, &layer), CONVJIT_NOT_CACHED, "CUDA_ERROR_INVALID_IMAGE (200)");
    cr_expect_not_null(strstr(convjit_last_error(), " is of no use in the cache"), "%s", convjit_last_error());
    convjit_close(context);
    cr_expect_eq(nvrtc_state()->compiles, 1);
}

Test(layer_modes, refresh_compiles_what_is_stored_and_off_leaves_no_trace) {
    make_and_close(small);
    convjit_context *context = open_in_mode(CONVJIT_CACHE_REFRESH);
    convjit_layer_destroy(create_from(context, small, "compiler"));
    convjit_layer_destroy(create_from(context, small, "memory"));
    expect_counts(context, (convjit_counters){.memory_hits = 1, .misses = 1, .compiles = 1});
    convjit_close(context);
    context = open_in_mode(CONVJIT_CACHE_OFF);
    convjit_layer_destroy(create_from(context, small, "compiler"));
    convjit_layer_destroy(create_from(context, other, "compiler"));
    convjit_close(context);
    context = open_in_mode(CONVJIT_CACHE_ONLY);
    convjit_layer_destroy(create_from(context, small, "disk"));
    convjit_layer *layer;
    EXPECT_FAILS(try_create(context, other, &layer), CONVJIT_NOT_CACHED, "key ");
    convjit_close(context);
}

/* What one context may not compile, another that waited for it compiles. */
static void *create_while_another_may_not_compile(void *context) {
    for (int i = 0; i < 50; i++) {
        convjit_layer *layer;
        const convjit_status status = try_create(context, small, &layer);
        cr_assert(status == CONVJIT_NOT_CACHED || status == CONVJIT_SUCCESS, "%s", convjit_last_error());
        convjit_layer_destroy(layer); /* the other context may have had it in memory */
    }
    return NULL;
}

Test(layer_modes, cache_only_of_one_context_fails_no_other) {
    convjit_options options = options_for("sm_80"); /* holds no kernel */
    convjit_context *only = NULL, *off = NULL;
    options.cache_mode = CONVJIT_CACHE_ONLY;
    options.log = NULL;
    options.cache_directory = below("empty");
    ASSERT_OK(convjit_open(&options, &only));
    options.cache_mode = CONVJIT_CACHE_OFF;
    ASSERT_OK(convjit_open(&options, &off));
    pthread_t thread;
    pthread_create(&thread, NULL, create_while_another_may_not_compile, only);
    for (int i = 0; i < 50; i++) {
        convjit_layer *layer;
        const convjit_status status = try_create(off, small, &layer);
        cr_assert_eq(status, CONVJIT_SUCCESS, "%s", convjit_last_error());
        convjit_layer_destroy(layer);
    }
    pthread_join(thread, NULL);
    convjit_close(only);
    convjit_close(off);
}

/* ---------------------------------------------------------------- keys */

/* Writes what a layer that is missing says, key and all, to FOLDER/NAME. */
static void tell_key(const char *name) {
    convjit_context *context = open_in_mode(CONVJIT_CACHE_ONLY);
    convjit_layer *layer;
    cr_assert_eq(try_create(context, other, &layer), CONVJIT_NOT_CACHED);
    write_file(below(name), convjit_last_error());
    convjit_close(context);
}

static void read_told(const char *name, char text[1024]) {
    FILE *file = fopen(below(name), "r");
    cr_assert_not_null(file);
    text[fread(text, 1, 1023, file)] = '\0';
    fclose(file);
    cr_expect_not_null(strstr(text, ": key "));
}

/* In a process of its own: another directory, home, time zone and language, and where we can another user. */
Test(layer_modes, key_depends_on_no_place_time_or_user) {
    char here[1024], elsewhere[1024];
    tell_key("here");
    const pid_t child = fork();
    if (child == 0) {
        setenv("TZ", "Pacific/Auckland", 1);
        setenv("LC_ALL", "C.UTF-8", 1);
        setenv("USER", "somebody", 1);
        setenv("HOME", "/", 1);
        char absolute[TESTING_PATH_MAX];
        snprintf(absolute, sizeof absolute, "%s", folder);
        (void)become_ordinary();
        if (chdir(absolute) == 0) {
            tell_key("elsewhere");
        }
        _exit(0);
    }
    int status = -1;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    read_told("here", here);
    read_told("elsewhere", elsewhere);
    cr_expect_str_eq(here, elsewhere);
}

/* ---------------------------------------------------------------- why a key misses */

static long size_of(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (long)info.st_size : -1;
}

static const char *fields_file(const char *hex) {
    char name[128];
    snprintf(name, sizeof name, "cache/%.2s/%.30s.fields", hex, hex + 2);
    return below(name);
}

Test(layer_modes, with_the_setting_a_miss_leaves_what_its_key_hashes) {
    const cj_key key = make_and_close(small);
    cr_expect_eq(size_of(fields_file(key.hex)), -1);
    setenv("CONVJIT_CACHE_FIELDS", "1", 1);
    convjit_context *context = open_in_mode(CONVJIT_CACHE_ONLY);
    convjit_layer_destroy(create_from(context, small, "disk"));
    cr_expect_eq(size_of(fields_file(key.hex)), -1, "this was no miss");
    convjit_layer *layer;
    EXPECT_FAILS(try_create(context, other, &layer), CONVJIT_NOT_CACHED, "key ");
    const char *hex = strstr(convjit_last_error(), "key ") + 4;
    cr_expect_gt(size_of(fields_file(hex)), 1000, "not even one that may not be compiled");
    convjit_close(context);
}
