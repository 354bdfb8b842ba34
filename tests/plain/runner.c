/* runner.c - runs the tests that plain/criterion/criterion.h registers, each in a child process, one after another. */
#include <criterion/criterion.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PASSED = 0, FAILED = 1, SKIPPED = 77 }; /* exit statuses of a child; ThreadSanitizer's own is 66 */

static plain_test *tests;
static atomic_int outcome; /* of the running test, in its child */
static jmp_buf end_of_test;
static pthread_t main_thread;

void plain_register(plain_test *test) {
    test->next = tests;
    tests = test;
}

/* Ends the test; one that fails in a thread of its own ends the whole child. */
static _Noreturn void end_test(void) {
    if (pthread_equal(pthread_self(), main_thread)) {
        longjmp(end_of_test, 1);
    }
    exit(outcome);
}

static void report(const char *file, int line, const char *what, const char *format, va_list arguments) {
    (void)fprintf(stderr, "%s:%d: fails: %s: ", file, line, what);
    (void)vfprintf(stderr, format, arguments);
    (void)fputc('\n', stderr);
    outcome = FAILED;
}

void plain_expect(const char *file, int line, const char *what, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    report(file, line, what, format, arguments);
    va_end(arguments);
}

void plain_assert(const char *file, int line, const char *what, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    report(file, line, what, format, arguments);
    va_end(arguments);
    end_test();
}

void plain_skip(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)fputs("skipped: ", stderr);
    (void)vfprintf(stderr, format, arguments);
    (void)fputc('\n', stderr);
    va_end(arguments);
    outcome = SKIPPED;
    end_test();
}

static const plain_options *suite_of(const plain_test *test) {
    for (const plain_test *suite = tests; suite != NULL; suite = suite->next) {
        if (suite->name == NULL && strcmp(suite->suite, test->suite) == 0) {
            return &suite->options;
        }
    }
    return NULL;
}

static void call(void (*function)(void)) {
    if (function != NULL) {
        function();
    }
}

static void begin(const plain_test *test, void *parameter) {
    const plain_options *suite = suite_of(test);
    call(suite != NULL ? suite->init : NULL);
    call(test->options.init);
    test->run(parameter);
}

static void finish(const plain_test *test) {
    const plain_options *suite = suite_of(test);
    call(test->options.fini);
    call(suite != NULL ? suite->fini : NULL);
}

/* In the child. exit(), not _exit(): ThreadSanitizer reports at the end of the process. */
static _Noreturn void run_in_child(const plain_test *test, void *parameter) {
    main_thread = pthread_self();
    alarm((unsigned)test->options.timeout);
    if (setjmp(end_of_test) == 0) {
        begin(test, parameter);
    }
    if (setjmp(end_of_test) == 0) {
        finish(test);
    }
    exit(outcome);
}

/* PASSED, FAILED or SKIPPED. */
static int run(const plain_test *test, void *parameter) {
    (void)printf("%s::%s\n", test->suite, test->name); /* the last one tells which test hangs */
    (void)fflush(NULL);
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        run_in_child(test, parameter);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("fork");
        return FAILED;
    }
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : FAILED;
    if (code != PASSED && code != SKIPPED) {
        (void)fprintf(stderr, "failed: %s::%s (%s %d)\n", test->suite, test->name,
                      WIFEXITED(status) ? "exit status" : "signal", WIFEXITED(status) ? code : WTERMSIG(status));
    }
    return code == PASSED || code == SKIPPED ? code : FAILED;
}

int main(void) {
    int passed = 0;
    int failed = 0;
    int skipped = 0;
    for (const plain_test *test = tests; test != NULL; test = test->next) {
        struct criterion_test_params all = {.length = test->name != NULL ? 1 : 0};
        if (test->parameters != NULL) {
            all = test->parameters();
        }
        for (size_t i = 0; i < all.length; ++i) {
            const int code = run(test, all.params != NULL ? (char *)all.params + i * all.size : NULL);
            passed += code == PASSED;
            failed += code == FAILED;
            skipped += code == SKIPPED;
        }
    }
    (void)printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed == 0 && passed + skipped > 0 ? 0 : 1;
}
