/* test_progress.c - the bar and the lines of a long command, at times that are made up. */
#include "progress.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static char *text;
static size_t size;
static FILE *out;
static progress shown;

static void start(bool bar, size_t total) {
    out = open_memstream(&text, &size);
    cr_assert_not_null(out);
    progress_start(&shown, out, bar, total, 100.0);
}

/* What was written since the last call. */
static void expect_written(const char *wanted) {
    static size_t seen;
    fflush(out);
    cr_expect_str_eq(text + seen, wanted);
    seen = size;
}

static void end(void) {
    fclose(out);
    free(text);
}

Test(progress, lines_come_every_ten_seconds) {
    start(false, 200);
    progress_show(&shown, 1, 0, 101.0);
    progress_show(&shown, 19, 0, 109.9);
    expect_written("");
    progress_show(&shown, 20, 1, 110.0);
    expect_written("convjit: 20 of 200, 2.0/s, 1:30 left, 1 missing\n");
    progress_show(&shown, 40, 1, 119.0);
    progress_end(&shown);
    expect_written("");
    end();
}

Test(progress, bar_is_drawn_over_itself_ten_times_a_second_at_most) {
    start(true, 3);
    progress_show(&shown, 1, 0, 100.05);
    expect_written("");
    progress_show(&shown, 1, 0, 100.5);
    expect_written("\r[##########....................] 1 of 3, 2.0/s, 0:01 left, 0 missing\033[K");
    progress_show(&shown, 2, 0, 100.55);
    expect_written("");
    progress_show(&shown, 3, 2, 102.0);
    expect_written("\r[##############################] 3 of 3, 1.5/s, 0:00 left, 2 missing\033[K");
    progress_end(&shown);
    expect_written("\r\033[K");
    end();
}

Test(progress, hours_are_told_and_a_rate_of_nothing_tells_no_time) {
    start(false, 20000);
    progress_show(&shown, 0, 0, 120.0);
    expect_written("convjit: 0 of 20000, 0.0/s, ? left, 0 missing\n");
    progress_show(&shown, 100, 0, 140.0);
    expect_written("convjit: 100 of 20000, 2.5/s, 2:12:40 left, 0 missing\n");
    end();
}
