/* test_layer_export.c - a layer's kernel as bytes: out of one context, into another. */
#include "layer_fixture.h"

TestSuite(layer_export, .init = enter_layer, .fini = leave);

static const char small[] = "conv2d c2 k8 in5x6 f3x3 s1 p1 f32 nchw fp32"; /* in full, as format writes it */
static const char other[] = "conv2d c2 k8 in5x7 f3x3 p1";

/* The kernel of a layer that is created and destroyed; to be freed. */
static void *export_of(const char *target, const char *line, size_t *size) {
    convjit_context *context = open_for(target);
    convjit_layer *layer = create(context, line);
    const convjit_counters before = convjit_get_counters(context);
    ASSERT_OK(convjit_layer_export(layer, NULL, size));
    unsigned char *bytes = malloc(*size + 1);
    cr_assert_not_null(bytes);
    bytes[*size] = 0xee;
    ASSERT_OK(convjit_layer_export(layer, bytes, size));
    cr_expect_eq(bytes[*size], 0xee);
    expect_counts(context, before);
    convjit_layer_destroy(layer);
    convjit_close(context);
    return bytes;
}

/* Nothing of a cache or a compiler is left, nor of what this process has in memory. */
static convjit_context *open_without_anything(const char *target) {
    testing_folder_remove(below("cache"));
    convjit_options options = options_for(target);
    options.cache_mode = CONVJIT_CACHE_ONLY;
    convjit_context *context = NULL;
    ASSERT_OK(convjit_open(&options, &context));
    return context;
}

Test(layer_export, kernel_is_taken_by_another_context_without_cache_and_compiler) {
    static const char *const makers[] = {"sm_90a", NULL}; /* without and with a device */
    for (int i = 0; i < 2; i++) {
        size_t size;
        void *bytes = export_of(makers[i], small, &size);
        convjit_context *context = open_without_anything(NULL);
        convjit_layer *layer;
        EXPECT_FAILS(try_create(context, small, &layer), CONVJIT_NOT_CACHED, "key ");
        ASSERT_OK(convjit_import(context, bytes, size));
        ASSERT_OK(convjit_import(context, bytes, size)); /* once more does no harm */
        free(bytes);
        convjit_layer_destroy(create_from(context, small, "memory"));
        EXPECT_FAILS(try_create(context, other, &layer), CONVJIT_NOT_CACHED, "key ");
        expect_counts(context, (convjit_counters){.memory_hits = 1, .misses = 2});
        convjit_close(context);
        cr_expect_eq(access(below("cache"), F_OK), -1, "an import writes nothing");
    }
}

Test(layer_export, kernel_stays_until_the_context_closes) {
    size_t size;
    void *bytes = export_of("sm_80", small, &size);
    convjit_context *context = open_without_anything("sm_80");
    ASSERT_OK(convjit_import(context, bytes, size));
    convjit_layer_destroy(create_from(context, small, "memory"));
    convjit_layer_destroy(create_from(context, small, "memory"));
    convjit_close(context);
    context = open_without_anything("sm_80");
    convjit_layer *layer;
    EXPECT_FAILS(try_create(context, small, &layer), CONVJIT_NOT_CACHED, "key ");
    convjit_close(context);
    free(bytes);
}

Test(layer_export, bytes_are_an_entry_of_the_cache) {
    static unsigned char entry[4096];
    size_t size;
    const cj_key key = make_and_close(small);
    void *bytes = export_of(NULL, small, &size);
    FILE *file = fopen(entry_file(below("cache"), &key), "rb");
    cr_assert_not_null(file);
    cr_expect_eq(fread(entry, 1, sizeof entry, file), size);
    fclose(file);
    cr_expect_arr_eq(bytes, entry, size);
    free(bytes);
}

Test(layer_export, calls_refuse_what_is_none) {
    size_t size;
    unsigned char *bytes = export_of("sm_80", small, &size);
    convjit_context *context = open_for("sm_80");
    convjit_layer *layer = create(context, small);
    size_t room = size - 1;
    EXPECT_FAILS(convjit_layer_export(layer, bytes, &room), CONVJIT_INVALID_ARGUMENT, "there is room for ");
    cr_expect_eq(room, size);
    EXPECT_FAILS(convjit_layer_export(NULL, bytes, &size), CONVJIT_INVALID_ARGUMENT, "layer is NULL");
    EXPECT_FAILS(convjit_layer_export(layer, bytes, NULL), CONVJIT_INVALID_ARGUMENT, "size is NULL");
    EXPECT_FAILS(convjit_import(NULL, bytes, size), CONVJIT_INVALID_ARGUMENT, "context is NULL");
    EXPECT_FAILS(convjit_import(context, NULL, size), CONVJIT_INVALID_ARGUMENT, "bytes is NULL");
    EXPECT_FAILS(convjit_import(context, bytes, size - 1), CONVJIT_INVALID_ARGUMENT, "are no kernel: truncated");
    bytes[size / 2] ^= 1;
    EXPECT_FAILS(convjit_import(context, bytes, size), CONVJIT_INVALID_ARGUMENT, "are no kernel: checksum");
    bytes[size / 2] ^= 1;
    convjit_layer_destroy(layer);
    convjit_close(context);
    context = open_for("sm_90a");
    EXPECT_FAILS(convjit_import(context, bytes, size), CONVJIT_INVALID_ARGUMENT,
                 "the kernel is for target sm_80, the context for sm_90a");
    convjit_close(context);
    free(bytes);
}

/* As of a convjit whose plan of the same source was another one. */
Test(layer_export, kernel_for_another_launch_is_not_used) {
    size_t size, other_size;
    void *bytes = export_of("sm_90a", small, &size);
    cj_entry entry;
    cr_assert_null(cj_entry_decode(bytes, size, &entry));
    entry.threads *= 2;
    void *other_bytes = cj_entry_encode(&entry, &other_size);
    static const char *const origins[] = {"disk", "compiler"};
    for (int i = 0; i < 2; i++) {
        convjit_context *context = open_for(NULL);
        ASSERT_OK(convjit_import(context, other_bytes, other_size));
        line_count = 0;
        convjit_layer_destroy(create_from(context, small, origins[i]));
        cr_expect_eq(convjit_get_counters(context).corrupt, 1);
        cr_expect_not_null(strstr(lines[0], "was made for another launch than the plan's; looked for elsewhere"), "%s",
                           lines[0]);
        convjit_close(context);
        testing_folder_remove(below("cache"));
    }
    free(other_bytes);
    free(bytes);
}
