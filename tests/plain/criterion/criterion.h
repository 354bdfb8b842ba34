/* criterion.h - the part of Criterion that the tests use, for builds under ThreadSanitizer: Criterion itself does not
 * run there, since its shared arena lies at an address that the sanitizer refuses (Snaipe/Criterion issue 274). Same
 * names, same meaning: each test in a child process; an assertion ends its test, an expectation only fails it. */
#ifndef PLAIN_CRITERION_H
#define PLAIN_CRITERION_H
#pragma GCC system_header /* as of the header it stands for: no warnings from inside the macros */

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct criterion_test_params {
    size_t size; /* of one parameter */
    void *params;
    size_t length;
};
#define cr_make_param_array(type, array, count) \
    ((struct criterion_test_params){.size = sizeof(type), .params = (array), .length = (count)})

typedef struct plain_options {
    void (*init)(void);
    void (*fini)(void);
    double timeout; /* seconds; 0 = none */
} plain_options;

typedef struct plain_test {
    const char *suite;
    const char *name; /* NULL: the suite itself, for its options */
    void (*run)(void *parameter);
    struct criterion_test_params (*parameters)(void); /* or NULL */
    plain_options options;
    struct plain_test *next;
} plain_test;

void plain_register(plain_test *test);

/* Report a failure; the second one ends the test. */
void plain_expect(const char *file, int line, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
_Noreturn void plain_assert(const char *file, int line, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
_Noreturn void plain_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define PLAIN_REGISTER(suite_, name_, symbol, run_, parameters_, ...)                       \
    static plain_test symbol##_test = {suite_, name_, run_, parameters_, {__VA_ARGS__}, 0}; \
    __attribute__((constructor)) static void symbol##_register(void) {                      \
        plain_register(&symbol##_test);                                                     \
    }

#define TestSuite(suite, ...)                                   \
    PLAIN_REGISTER(#suite, 0, suite##_suite, 0, 0, __VA_ARGS__) \
    extern int plain_semicolon
#define Test(suite, name, ...)                                                          \
    static void suite##_##name##_run(void *);                                           \
    PLAIN_REGISTER(#suite, #name, suite##_##name, suite##_##name##_run, 0, __VA_ARGS__) \
    static void suite##_##name##_run(void *plain_unused __attribute__((unused)))
#define ParameterizedTestParameters(suite, name) static struct criterion_test_params suite##_##name##_parameters(void)
#define ParameterizedTest(parameter, suite, name, ...)                                                            \
    static void suite##_##name##_body(parameter);                                                                 \
    static void suite##_##name##_run(void *of) {                                                                  \
        suite##_##name##_body(of);                                                                                \
    }                                                                                                             \
    PLAIN_REGISTER(#suite, #name, suite##_##name, suite##_##name##_run, suite##_##name##_parameters, __VA_ARGS__) \
    static void suite##_##name##_body(parameter)

/* The message is a literal format, or absent. */
#define PLAIN_CHECK(report, holds, what, ...) ((holds) ? (void)0 : report(__FILE__, __LINE__, what, "" __VA_ARGS__))
#define PLAIN_OP(report, a, op, b, ...) PLAIN_CHECK(report, (a)op(b), #a " " #op " " #b, __VA_ARGS__)
#define PLAIN_STR(report, a, op, b, ...) \
    PLAIN_CHECK(report, strcmp(a, b) op 0, #a " " #op " " #b " (text)", __VA_ARGS__)
#define PLAIN_ARR(report, a, b, size, ...) \
    PLAIN_CHECK(report, memcmp(a, b, size) == 0, #a " == " #b " (bytes)", __VA_ARGS__)
#define PLAIN_FLOAT(report, a, b, within, ...) \
    PLAIN_CHECK(report, fabs((double)(a) - (double)(b)) <= (double)(within), #a " is near " #b, __VA_ARGS__)

#define cr_assert(a, ...) PLAIN_CHECK(plain_assert, (a), #a, __VA_ARGS__)
#define cr_assert_not(a, ...) PLAIN_CHECK(plain_assert, !(a), "not " #a, __VA_ARGS__)
#define cr_assert_null(a, ...) PLAIN_CHECK(plain_assert, !(a), #a " is NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...) PLAIN_CHECK(plain_assert, (a), #a " is not NULL", __VA_ARGS__)
#define cr_assert_eq(a, b, ...) PLAIN_OP(plain_assert, a, ==, b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) PLAIN_OP(plain_assert, a, !=, b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) PLAIN_OP(plain_assert, a, <, b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) PLAIN_OP(plain_assert, a, <=, b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) PLAIN_OP(plain_assert, a, >, b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) PLAIN_OP(plain_assert, a, >=, b, __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) PLAIN_STR(plain_assert, a, ==, b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) PLAIN_STR(plain_assert, a, !=, b, __VA_ARGS__)
#define cr_assert_str_empty(a, ...) PLAIN_CHECK(plain_assert, (a)[0] == '\0', #a " is empty", __VA_ARGS__)
#define cr_assert_str_not_empty(a, ...) PLAIN_CHECK(plain_assert, (a)[0] != '\0', #a " is not empty", __VA_ARGS__)
#define cr_assert_arr_eq(a, b, size, ...) PLAIN_ARR(plain_assert, a, b, size, __VA_ARGS__)
#define cr_assert_float_eq(a, b, within, ...) PLAIN_FLOAT(plain_assert, a, b, within, __VA_ARGS__)
#define cr_assert_fail(...) PLAIN_CHECK(plain_assert, false, "fail", __VA_ARGS__)

#define cr_expect(a, ...) PLAIN_CHECK(plain_expect, (a), #a, __VA_ARGS__)
#define cr_expect_not(a, ...) PLAIN_CHECK(plain_expect, !(a), "not " #a, __VA_ARGS__)
#define cr_expect_null(a, ...) PLAIN_CHECK(plain_expect, !(a), #a " is NULL", __VA_ARGS__)
#define cr_expect_not_null(a, ...) PLAIN_CHECK(plain_expect, (a), #a " is not NULL", __VA_ARGS__)
#define cr_expect_eq(a, b, ...) PLAIN_OP(plain_expect, a, ==, b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...) PLAIN_OP(plain_expect, a, !=, b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) PLAIN_OP(plain_expect, a, <, b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) PLAIN_OP(plain_expect, a, <=, b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) PLAIN_OP(plain_expect, a, >, b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...) PLAIN_OP(plain_expect, a, >=, b, __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) PLAIN_STR(plain_expect, a, ==, b, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...) PLAIN_STR(plain_expect, a, !=, b, __VA_ARGS__)
#define cr_expect_str_empty(a, ...) PLAIN_CHECK(plain_expect, (a)[0] == '\0', #a " is empty", __VA_ARGS__)
#define cr_expect_str_not_empty(a, ...) PLAIN_CHECK(plain_expect, (a)[0] != '\0', #a " is not empty", __VA_ARGS__)
#define cr_expect_arr_eq(a, b, size, ...) PLAIN_ARR(plain_expect, a, b, size, __VA_ARGS__)
#define cr_expect_float_eq(a, b, within, ...) PLAIN_FLOAT(plain_expect, a, b, within, __VA_ARGS__)
#define cr_expect_fail(...) PLAIN_CHECK(plain_expect, false, "fail", __VA_ARGS__)

#define cr_skip_test(...) plain_skip(__VA_ARGS__)

#endif
