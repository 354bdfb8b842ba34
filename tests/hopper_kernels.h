/* hopper_kernels.h - builds and launches kernels that the tests of Hopper's words on the target cpu give as source. */
#ifndef HOPPER_KERNELS_H
#define HOPPER_KERNELS_H

#include "cpu_kernels.h"

enum { SHARED_BYTES = 8192 };

static inline const char *hopper(void) {
    for (const cj_embedded_file *file = cj_embedded_files; file->name; ++file) {
        if (strcmp(file->name, "cpu/hopper.cuh") == 0) {
            return file->text;
        }
    }
    cr_assert_fail("cpu/hopper.cuh is not embedded");
    return "";
}

/* head + body + tail is the text of convjit_forward. */
static inline cj_module *load_hopper(const char *head, const char *body, const char *tail) {
    cj_text source = {0};
    cj_text_printf(&source, "%s\n%s%s%s", hopper(), head, body, tail);
    cr_assert_not(source.failed);
    cj_module *module = load(source.data);
    cj_text_free(&source);
    return module;
}

static inline convjit_status launch_hopper(cj_module *module, uint32_t blocks, uint32_t threads, const void *x,
                                           void *y) {
    const args a = {x, y, threads};
    return cj_cpu_device.launch(
        module,
        &(cj_launch){
            .entry = CJ_FORWARD, .blocks = blocks, .threads = threads, .shared_bytes = SHARED_BYTES, .args = &a},
        NULL);
}

/* Runs three blocks. */
static inline void run_hopper(const char *head, const char *body, const char *tail, uint32_t threads, const void *x,
                              void *y) {
    cj_module *module = load_hopper(head, body, tail);
    cr_assert_eq(launch_hopper(module, 3, threads, x, y), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cj_cpu_device.unload(module);
}

/* Block 1 of 3 fails with these words, each time. Bodies do nothing in block 0. */
static inline void expect_error(const char *head, const char *body, const char *tail, uint32_t threads, const void *x,
                                const char *expected) {
    static float y[64 * 64];
    cj_module *module = load_hopper(head, body, tail);
    char text[512];
    snprintf(text, sizeof(text), "convjit_forward failed: block 1 of 3: %s", expected);
    for (int again = 0; again < 2; ++again) {
        cr_expect_eq(launch_hopper(module, 3, threads, x, y), CONVJIT_LAUNCH_FAILED);
        cr_expect_str_eq(convjit_last_error(), text);
    }
    cj_cpu_device.unload(module);
}

#endif
