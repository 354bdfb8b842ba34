#include "log.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Collects lines, each followed by '|'. */
static void collect(void *user, const char *line) {
    strcat(user, line);
    strcat(user, "|");
}

Test(log, a_line_reaches_the_callback_without_a_newline) {
    char lines[256] = "";
    const cj_log log = {.fn = collect, .user = lines};
    cj_log_line(&log, "created %s in %d ms", "conv2d", 3);
    cj_log_line(&log, "ends with a newline\n");
    cj_log_line(&log, "%s", "");
    cr_expect_str_eq(lines, "created conv2d in 3 ms|ends with a newline||");
}

Test(log, a_text_of_several_lines_becomes_several_calls) {
    char lines[256] = "";
    const cj_log log = {.fn = collect, .user = lines};
    cj_log_line(&log, "compile failed\n%s", "a.cu(1): error\n\na.cu(2): error\n");
    cr_expect_str_eq(lines, "compile failed|a.cu(1): error||a.cu(2): error|");
}

/* What `log` writes to standard error. */
static void capture(const cj_log *log, char *out, size_t size) {
    FILE *file = tmpfile();
    cr_assert_not_null(file);
    const int saved = dup(STDERR_FILENO);
    cr_assert_geq(saved, 0);
    cr_assert_geq(dup2(fileno(file), STDERR_FILENO), 0);
    cj_log_line(log, "%s", "one\ntwo");
    cr_assert_geq(dup2(saved, STDERR_FILENO), 0);
    close(saved);
    rewind(file);
    out[fread(out, 1, size - 1, file)] = '\0';
    fclose(file);
}

Test(log, without_callback_and_setting_nothing_is_written) {
    char out[64];
    unsetenv("CONVJIT_LOG");
    capture(&(cj_log){0}, out, sizeof out);
    cr_expect_str_eq(out, "");
}

Test(log, the_setting_sends_lines_to_standard_error) {
    char out[64];
    setenv("CONVJIT_LOG", "1", 1);
    capture(&(cj_log){0}, out, sizeof out);
    cr_expect_str_eq(out, "one\ntwo\n");
}

Test(log, a_callback_wins_over_the_setting) {
    char out[64], lines[64] = "";
    setenv("CONVJIT_LOG", "1", 1);
    capture(&(cj_log){.fn = collect, .user = lines}, out, sizeof out);
    cr_expect_str_eq(out, "");
    cr_expect_str_eq(lines, "one|two|");
}
