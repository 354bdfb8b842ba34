#include "text.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

Test(text, empty_until_something_is_added) {
    cj_text text = {0};
    cr_expect_null(text.data);
    cj_text_add(&text, "", 0);
    cr_expect_str_eq(text.data, "");
    cr_expect_eq(text.size, 0);
    cj_text_free(&text);
}

Test(text, grows_and_stays_terminated) {
    cj_text text = {0};
    for (int i = 0; i < 3000; ++i) {
        cj_text_printf(&text, "%d,", i % 10);
        cr_assert_eq(text.size, 2 * (size_t)(i + 1));
        cr_assert_eq(text.data[text.size], '\0');
    }
    cr_expect_eq(strlen(text.data), 6000);
    cr_expect(strncmp(text.data, "0,1,2,3,4,5,6,7,8,9,0,1,", 24) == 0);
    cr_expect_not(text.failed);
    cj_text_free(&text);
}

Test(text, keeps_bytes_after_a_zero) {
    cj_text text = {0};
    cj_text_add(&text, "a\0b", 3);
    cj_text_printf(&text, "%s", "c");
    cr_expect_eq(text.size, 4);
    cr_expect_eq(memcmp(text.data, "a\0bc", 5), 0);
    cj_text_free(&text);
}

/* Sizes at which the terminator just fits or just does not. */
Test(text, every_size_around_a_capacity_is_whole) {
    char bytes[600];
    memset(bytes, 'x', sizeof bytes);
    for (size_t size = 250; size < 262; ++size) {
        cj_text text = {0};
        cj_text_printf(&text, "%.*s", (int)size, bytes);
        cj_text_add(&text, bytes, size);
        cr_expect_eq(strlen(text.data), 2 * size);
        cr_expect_gt(text.capacity, text.size);
        cj_text_free(&text);
    }
}

Test(text, a_failed_allocation_is_remembered_and_later_texts_are_dropped) {
    cj_text text = {0};
    cj_text_printf(&text, "kept");
    volatile size_t too_much = SIZE_MAX - 4;
    cj_text_add(&text, "", too_much);
    cr_expect(text.failed);
    cj_text_printf(&text, "dropped");
    cj_text_add(&text, "dropped", 7);
    cr_expect(text.failed);
    cr_expect_str_eq(text.data, "kept");
    cj_text_free(&text);
    cr_expect_not(text.failed, "a freed text is as good as new");
}

Test(text, free_leaves_an_empty_text_and_may_come_twice) {
    cj_text text = {0};
    cj_text_printf(&text, "first");
    cj_text_free(&text);
    cj_text_free(&text);
    cr_expect_null(text.data);
    cr_expect_eq(text.size, 0);
    cj_text_printf(&text, "second");
    cr_expect_str_eq(text.data, "second");
    cj_text_free(&text);
}
