#include "status.h"

#include <criterion/criterion.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static const convjit_status all[] = {
#define STATUS(name, text) CONVJIT_##name,
    CONVJIT_STATUS_LIST(STATUS)
#undef STATUS
};
enum { ALL = sizeof all / sizeof all[0] };

/* A text of `length` letters, to be freed. */
static char *long_word(size_t length) {
    char *word = malloc(length + 1);
    cr_assert_not_null(word);
    memset(word, 'w', length);
    word[length] = '\0';
    return word;
}

Test(status, numbers_are_fixed) {
    cr_expect_eq(CONVJIT_SUCCESS, 0);
    cr_expect_eq(CONVJIT_INVALID_LAYER, 2);
    cr_expect_eq(CONVJIT_INTERNAL, 12, "a new status must be appended");
}

Test(status, every_status_has_a_name_and_a_sentence_of_its_own) {
    cr_expect_str_eq(convjit_status_name(CONVJIT_NO_COMPILER), "CONVJIT_NO_COMPILER");
    for (int i = 0; i < ALL; ++i) {
        cr_expect_eq(all[i], (convjit_status)i);
        cr_expect(strncmp(convjit_status_name(all[i]), "CONVJIT_", 8) == 0);
        cr_expect_gt(strlen(convjit_status_text(all[i])), 10);
        for (int j = 0; j < i; ++j) {
            cr_expect_str_neq(convjit_status_name(all[i]), convjit_status_name(all[j]));
            cr_expect_str_neq(convjit_status_text(all[i]), convjit_status_text(all[j]));
        }
    }
}

Test(status, numbers_that_are_none_have_words_too) {
    const int none[] = {-1, ALL, INT_MAX, INT_MIN};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; ++i) {
        cr_expect_str_eq(convjit_status_name((convjit_status)none[i]), "no convjit_status");
        cr_expect_str_eq(convjit_status_text((convjit_status)none[i]), "this number is no status of convjit");
    }
}

Test(status, version_is_that_of_the_header) {
    cr_expect_str_eq(convjit_version(), CONVJIT_VERSION);
}

Test(status, no_text_before_the_first_failure) {
    cr_expect_str_eq(convjit_last_error(), "");
}

Test(status, fail_returns_the_status_and_keeps_the_text) {
    cr_expect_eq(cj_fail(CONVJIT_UNSUPPORTED, "rank %d", 7), CONVJIT_UNSUPPORTED);
    cr_expect_str_eq(convjit_last_error(), "rank 7");
    cr_expect_eq(cj_fail(CONVJIT_INTERNAL, "%s", ""), CONVJIT_INTERNAL);
    cr_expect_str_eq(convjit_last_error(), "");
}

Test(status, prefix_goes_in_front) {
    cj_fail(CONVJIT_INVALID_LAYER, "groups 0");
    cr_expect_eq(cj_fail_prefix(CONVJIT_INVALID_LAYER, "create failed for %s", "conv2d"), CONVJIT_INVALID_LAYER);
    cr_expect_str_eq(convjit_last_error(), "create failed for conv2d: groups 0");
}

Test(status, arguments_may_be_the_current_text) {
    cj_fail(CONVJIT_INTERNAL, "inner");
    cj_fail(CONVJIT_INTERNAL, "outer, %s, %s", convjit_last_error(), convjit_last_error());
    cr_expect_str_eq(convjit_last_error(), "outer, inner, inner");
    cj_fail_prefix(CONVJIT_INTERNAL, "%.5s", convjit_last_error());
    cr_expect_str_eq(convjit_last_error(), "outer: outer, inner, inner");
}

/* 1023 characters are the last that lie in the thread's own memory. */
Test(status, texts_around_the_short_limit_are_whole) {
    for (size_t length = 1020; length < 1030; ++length) {
        char *word = long_word(length);
        cj_fail(CONVJIT_COMPILE_FAILED, "%s", word);
        cr_expect_str_eq(convjit_last_error(), word);
        cj_fail(CONVJIT_INTERNAL, "%s!", convjit_last_error());
        cr_expect_eq(strlen(convjit_last_error()), length + 1);
        free(word);
    }
}

Test(status, a_compiler_log_is_kept_whole_and_prefixed) {
    char *log = long_word(200000);
    cj_fail(CONVJIT_COMPILE_FAILED, "%s", log);
    cj_fail_prefix(CONVJIT_COMPILE_FAILED, "nvrtc");
    cr_expect_eq(strlen(convjit_last_error()), 200000 + strlen("nvrtc: "));
    cr_expect(strncmp(convjit_last_error(), "nvrtc: www", 10) == 0);
    cj_fail(CONVJIT_COMPILE_FAILED, "short");
    cr_expect_str_eq(convjit_last_error(), "short", "a long text must not outlive the next failure");
    free(log);
}

Test(status, a_prefix_too_long_is_cut_visibly) {
    char *word = long_word(5000);
    cj_fail(CONVJIT_INTERNAL, "reason");
    cj_fail_prefix(CONVJIT_INTERNAL, "%s", word);
    cr_expect_not_null(strstr(convjit_last_error(), "www...: reason"));
    free(word);
}

Test(status, a_text_that_cannot_be_printed_shows_its_format) {
    volatile int width = INT_MAX; /* longer than an int counts, so the C library refuses */
    cj_fail(CONVJIT_INTERNAL, "width %*s", width, "x");
    cr_expect_str_eq(convjit_last_error(), "width %*s");
}

Test(status, without_memory_a_long_text_is_cut) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    cr_skip_test("a sanitizer's own memory does not fit under a limit of the address space");
#endif
    enum { LENGTH = 64 << 20 };
    char *log = long_word(LENGTH);
    cj_fail(CONVJIT_INTERNAL, "earlier");
    const struct rlimit none = {.rlim_cur = 1, .rlim_max = RLIM_INFINITY};
    cr_assert_eq(setrlimit(RLIMIT_AS, &none), 0);
    cj_fail(CONVJIT_COMPILE_FAILED, "%s", log);
    const char *text = convjit_last_error();
    const size_t length = strlen(text);
    const struct rlimit all_memory = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    cr_assert_eq(setrlimit(RLIMIT_AS, &all_memory), 0);
    cr_expect_eq(length, 1023);
    cr_expect_str_eq(text + length - 6, "www...");
    free(log);
}

static void *fail_in_thread(void *unused) {
    (void)unused;
    const bool empty = convjit_last_error()[0] == '\0';
    char *log = long_word(50000); /* freed at the thread's end; the leak checker tells if it is not */
    cj_fail(CONVJIT_INTERNAL, "%s", log);
    free(log);
    return empty && strlen(convjit_last_error()) == 50000 ? "fine" : NULL;
}

Test(status, every_thread_has_a_text_of_its_own) {
    cj_fail(CONVJIT_INTERNAL, "main thread");
    pthread_t threads[8];
    for (int i = 0; i < 8; ++i) {
        cr_assert_eq(pthread_create(&threads[i], NULL, fail_in_thread, NULL), 0);
    }
    for (int i = 0; i < 8; ++i) {
        void *result = NULL;
        cr_assert_eq(pthread_join(threads[i], &result), 0);
        cr_expect_not_null(result);
    }
    cr_expect_str_eq(convjit_last_error(), "main thread");
}

static convjit_status return_if(bool condition) {
    CJ_RETURN_IF(condition, CONVJIT_NOT_READY, "value %d, rule", 3);
    return CONVJIT_SUCCESS;
}

static convjit_status try_it(bool condition) {
    CJ_TRY(return_if(condition));
    return CONVJIT_INTERNAL;
}

Test(status, macros_pass_the_first_failure_on) {
    cr_expect_eq(return_if(false), CONVJIT_SUCCESS);
    cr_expect_eq(try_it(false), CONVJIT_INTERNAL);
    cr_expect_eq(try_it(true), CONVJIT_NOT_READY);
    cr_expect_str_eq(convjit_last_error(), "value 3, rule");
}
