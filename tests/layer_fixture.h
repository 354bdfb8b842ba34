/* layer_fixture.h - contexts and layers in a private folder: what the tests of the public calls share. The driver and
 * NVRTC are fakes; a context without a target is on the fake device. */
#ifndef LAYER_FIXTURE_H
#define LAYER_FIXTURE_H

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>

#include "cache_fixture.h"
#include "convjit.h"
#include "fake_driver.h"
#include "fake_nvrtc.h"

static inline void enter_layer(void) {
    enter();
    setenv("CONVJIT_DRIVER", FAKE_DRIVER_PATH, 1);
    setenv("CONVJIT_NVRTC", FAKE_NVRTC_PATH, 1);
    unsetenv("CONVJIT_FAMILY");
    unsetenv("CONVJIT_LOG");
}

/* The call fails with this status, and this is part of the text. */
#define EXPECT_FAILS(call, status, part)                                                                            \
    do {                                                                                                            \
        cr_expect_eq(call, status, "%s", convjit_last_error());                                                     \
        cr_expect_not_null(strstr(convjit_last_error(), part), "\"%s\" is not in: %s", part, convjit_last_error()); \
    } while (0)

#define ASSERT_OK(call) cr_assert_eq(call, CONVJIT_SUCCESS, "%s", convjit_last_error())

/* The state of a fake that is open. */
static inline fake_driver_state *driver_state(void) {
    void *library = dlopen(FAKE_DRIVER_PATH, RTLD_NOW | RTLD_NOLOAD);
    cr_assert_not_null(library);
    return dlsym(library, "fake_driver");
}

static inline fake_nvrtc_state *nvrtc_state(void) {
    void *library = dlopen(FAKE_NVRTC_PATH, RTLD_NOW | RTLD_NOLOAD);
    cr_assert_not_null(library);
    return dlsym(library, "fake_nvrtc");
}

/* Lines that contexts log. */
enum { LINES_MAX = 64 };
static char lines[LINES_MAX][1024];
static int line_count;
static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;

static inline void keep_line(void *user, const char *line) {
    (void)user;
    pthread_mutex_lock(&lines_lock);
    cr_assert_lt(line_count, LINES_MAX);
    snprintf(lines[line_count++], sizeof lines[0], "%s", line);
    pthread_mutex_unlock(&lines_lock);
}

static inline convjit_options options_for(const char *target) {
    convjit_options options = CONVJIT_OPTIONS_INIT;
    options.target = target;
    options.cache_directory = below("cache");
    options.log = keep_line;
    return options;
}

/* NULL: the fake device, of target sm_90a. */
static inline convjit_context *open_for(const char *target) {
    const convjit_options options = options_for(target);
    convjit_context *context = NULL;
    ASSERT_OK(convjit_open(&options, &context));
    return context;
}

static inline convjit_desc desc_of(const char *line) {
    convjit_desc desc;
    ASSERT_OK(convjit_layer_line_parse(line, &desc, NULL));
    return desc;
}

static inline convjit_status try_create(convjit_context *context, const char *line, convjit_layer **layer) {
    const convjit_desc desc = desc_of(line);
    *layer = NULL;
    return convjit_layer_create(context, &desc, layer);
}

static inline convjit_layer *create(convjit_context *context, const char *line) {
    convjit_layer *layer;
    ASSERT_OK(try_create(context, line, &layer));
    return layer;
}

/* Creates a layer that comes from there. */
static inline convjit_layer *create_from(convjit_context *context, const char *line, const char *origin) {
    convjit_layer *layer = create(context, line);
    cr_expect_str_eq(convjit_layer_get_info(layer).origin, origin);
    return layer;
}

static inline void expect_counts(const convjit_context *context, convjit_counters want) {
    const convjit_counters got = convjit_get_counters(context);
    cr_expect_eq(got.memory_hits, want.memory_hits, "%lu memory hits", (unsigned long)got.memory_hits);
    cr_expect_eq(got.disk_hits, want.disk_hits, "%lu disk hits", (unsigned long)got.disk_hits);
    cr_expect_eq(got.misses, want.misses, "%lu misses", (unsigned long)got.misses);
    cr_expect_eq(got.compiles, want.compiles, "%lu compiles", (unsigned long)got.compiles);
    cr_expect_eq(got.corrupt, want.corrupt, "%lu corrupt", (unsigned long)got.corrupt);
    cr_expect_eq(got.store_failures, want.store_failures, "%lu store failures", (unsigned long)got.store_failures);
}

/* Runs in a child, so that NVRTC stays closed in this process. */
static inline void create_in_a_child(const char *target, const char *line) {
    const pid_t child = fork();
    if (child == 0) {
        convjit_context *context = open_for(target);
        convjit_layer *layer;
        const convjit_status status = try_create(context, line, &layer);
        convjit_layer_destroy(layer);
        convjit_close(context);
        _exit(status == CONVJIT_SUCCESS ? 0 : 1);
    }
    int status = -1;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
}

/* Creates a layer, which leaves its entry in the cache; its key. */
static inline cj_key make_and_close(const char *line) {
    convjit_context *context = open_for(NULL);
    convjit_layer *layer = create(context, line);
    const char *hex = convjit_layer_get_info(layer).key;
    cj_key key;
    cr_assert_eq(strlen(hex), 2 * CJ_KEY_BYTES);
    for (int i = 0; i < CJ_KEY_BYTES; i++) {
        const char digits[] = {hex[2 * i], hex[2 * i + 1], '\0'};
        key.bytes[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    cj_key_spell(&key);
    cr_assert_str_eq(key.hex, hex);
    convjit_layer_destroy(layer);
    convjit_close(context);
    return key;
}

#endif
