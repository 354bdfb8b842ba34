/* test_binary.c - memory, disk, compiler, with a fake host C++ compiler that counts its runs, waits and fails. */
#include "binary.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

#include "cache_fixture.h"

/* A shell script. Files beside it steer it: `fail` is printed and fails the run, `empty` makes an empty binary, and
 * while there is `wait` it waits. It adds a line to `opened` or `runs` each time. A binary holds the number of its run
 * and the source, whether that comes in a file or through standard input. */
static const char fake_compiler[] = "#!/bin/sh\n"
                                    "here='%s'\n"
                                    "if [ \"$1\" = --version ]; then\n"
                                    "  echo . >> \"$here/opened\"; echo 'fake 1.0'; exit 0\n"
                                    "fi\n"
                                    "echo . >> \"$here/runs\"\n"
                                    "while [ -e \"$here/wait\" ]; do sleep 0.02; done\n"
                                    "if [ -e \"$here/fail\" ]; then cat \"$here/fail\" >&2; exit 1; fi\n"
                                    "while [ $# -gt 0 ]; do\n"
                                    "  case \"$1\" in -o) out=$2; shift;; -|-*) ;; *) in=$1;; esac; shift\n"
                                    "done\n"
                                    "if [ -e \"$here/empty\" ]; then : > \"$out\"; exit 0; fi\n"
                                    "{ printf '\\177ELF run %%d: ' $(wc -l < \"$here/runs\")\n"
                                    "  if [ -f \"$in\" ]; then cat \"$in\"; else cat; fi; } > \"$out\"\n";

enum { LINES_MAX = 32 };
static char lines[LINES_MAX][512]; /* that were logged */
static int line_count;
static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_line(void *user, const char *line) {
    (void)user;
    pthread_mutex_lock(&lines_lock);
    cr_assert_lt(line_count, LINES_MAX);
    snprintf(lines[line_count++], sizeof lines[0], "%s", line);
    pthread_mutex_unlock(&lines_lock);
}

static cj_target cpu;
static cj_store *store;
static cj_counters *counters;
static const cj_log logged = {keep_line, NULL};

static void enter_binary(void) {
    enter();
    char script[4096];
    snprintf(script, sizeof script, fake_compiler, folder);
    write_file(below("fake c++"), script);
    chmod(below("fake c++"), 0700);
    setenv("CONVJIT_CXX", below("fake c++"), 1);
    unsetenv("CONVJIT_CXXFLAGS");
    cr_assert_eq(cj_target_parse("cpu", &cpu), CONVJIT_SUCCESS);
    store = open_store(below("cache"));
    counters = cj_counters_create();
    cr_assert(counters != NULL);
}

static void leave_binary(void) {
    cj_counters_destroy(counters);
    cj_store_close(store);
    leave();
}

TestSuite(binary, .init = enter_binary, .fini = leave_binary);

static int runs(const char *name) {
    FILE *file = fopen(below(name), "r");
    int count = 0;
    for (int c; file != NULL && (c = fgetc(file)) != EOF;) {
        count += c == '\n';
    }
    if (file != NULL) {
        fclose(file);
    }
    return count;
}

static cj_request make_request(const cj_target *target, const char *source) {
    return (cj_request){.target = target,
                        .source = source,
                        .source_size = strlen(source),
                        .line = "conv2d c3 k8",
                        .family = "direct",
                        .threads = 64,
                        .shared_bytes = 1024};
}

static convjit_status get(const char *source, cj_binary **out, cj_origin *origin) {
    const cj_request request = make_request(&cpu, source);
    return cj_binary_get(&request, store, counters, &logged, out, origin);
}

static cj_binary *get_from(const char *source, cj_origin expected) {
    cj_binary *binary = NULL;
    cj_origin origin;
    cr_assert_eq(get(source, &binary, &origin), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_expect_str_eq(cj_origin_name(origin), cj_origin_name(expected));
    return binary;
}

static void expect_bytes(const cj_binary *binary, const char *bytes) {
    cr_assert_eq(binary->blob.size, strlen(bytes), "%.*s", (int)binary->blob.size, (char *)binary->blob.data);
    cr_expect_arr_eq(binary->blob.data, bytes, strlen(bytes), "%.*s", (int)binary->blob.size,
                     (char *)binary->blob.data);
}

static void expect_counts(uint64_t memory_hits, uint64_t disk_hits, uint64_t misses, uint64_t compiles,
                          uint64_t corrupt, uint64_t store_failures) {
    const convjit_counters counts = cj_counters_read(counters);
    cr_expect_eq(counts.memory_hits, memory_hits, "%lu memory hits", (unsigned long)counts.memory_hits);
    cr_expect_eq(counts.disk_hits, disk_hits, "%lu disk hits", (unsigned long)counts.disk_hits);
    cr_expect_eq(counts.misses, misses, "%lu misses", (unsigned long)counts.misses);
    cr_expect_eq(counts.compiles, compiles, "%lu compiles", (unsigned long)counts.compiles);
    cr_expect_eq(counts.corrupt, corrupt, "%lu corrupt", (unsigned long)counts.corrupt);
    cr_expect_eq(counts.store_failures, store_failures, "%lu failures", (unsigned long)counts.store_failures);
}

static void expect_line(int index, const char *part) {
    cr_assert_gt(line_count, index);
    cr_expect(strstr(lines[index], part) != NULL, "\"%s\" lacks \"%s\"", lines[index], part);
}

static cj_key key_of(const cj_target *target, const char *source) {
    cj_text options = {0};
    cj_target_compiler(target)->options(target, &options);
    cr_assert(options.size > 0);
    const cj_key key = cj_key_make(target->name, options.data, source, strlen(source));
    cj_text_free(&options);
    return key;
}

/* Puts an entry into the cache as another process would have. */
static void plant(const cj_target *target, const char *source, const char *compiler, const char *binary) {
    cj_entry entry = make_entry(0, binary, strlen(binary));
    entry.key = key_of(target, source);
    entry.target = target->name;
    entry.compiler = compiler;
    write_ok(store, &entry);
}

static void damage(const char *source) {
    const cj_key key = key_of(&cpu, source);
    cr_assert_eq(truncate(entry_file(below("cache"), &key), 99), 0);
}

static void sleep_ms(long ms) {
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* ------------------------------------------------------------------------------------------------------ origins --- */

Test(binary, comes_from_the_compiler_then_from_memory_then_from_disk) {
    cj_binary *first = get_from("a", CJ_ORIGIN_COMPILER);
    expect_bytes(first, "\177ELF run 1: a");
    cr_expect_str_eq(first->compiler, "fake 1.0");
    cj_binary *second = get_from("a", CJ_ORIGIN_MEMORY);
    cr_expect_eq(first, second);
    cj_binary_release(first);
    cj_binary_release(second);
    first = get_from("a", CJ_ORIGIN_DISK);
    expect_bytes(first, "\177ELF run 1: a");
    cr_expect_str_eq(first->compiler, "fake 1.0");
    cj_binary_release(first);
    cr_expect_eq(runs("runs"), 1);
    cr_expect_eq(runs("opened"), 1);
    expect_counts(1, 1, 1, 1, 0, 0);
    cr_expect_gt(cj_counters_read(counters).compile_ms, 0);
    cr_expect_eq(line_count, 0);
}

Test(binary, stored_names_its_layer_target_and_compiler) {
    cj_binary_release(get_from("a", CJ_ORIGIN_COMPILER));
    const cj_key key = key_of(&cpu, "a");
    cj_read read;
    cr_assert(read_file_of(below("cache"), &key, &read));
    cr_expect_str_eq(read.entry.target, "cpu");
    cr_expect_str_eq(read.entry.compiler, "fake 1.0");
    cr_expect_str_eq(read.entry.version, convjit_version());
    cr_expect_str_eq(read.entry.family, "direct");
    cr_expect_str_eq(read.entry.line, "conv2d c3 k8");
    cr_expect_eq(read.entry.threads, 64);
    cr_expect_eq(read.entry.shared_bytes, 1024);
    free(read.bytes);
}

Test(binary, on_disk_needs_no_compiler) {
    plant(&cpu, "a", "some compiler", "planted");
    setenv("CONVJIT_CXX", below("nothing"), 1);
    cj_binary *binary = get_from("a", CJ_ORIGIN_DISK);
    expect_bytes(binary, "planted");
    cr_expect_str_eq(binary->compiler, "some compiler");
    cj_binary_release(binary);
    cr_expect_eq(runs("opened"), 0);
    expect_counts(0, 1, 0, 0, 0, 0);
}

Test(binary, without_cache_and_compiler_is_a_status) {
    setenv("CONVJIT_CXX", below("nothing"), 1);
    cj_binary *binary;
    cj_origin origin;
    cr_expect_eq(get("a", &binary, &origin), CONVJIT_NO_COMPILER);
    expect_counts(0, 0, 1, 0, 0, 0);
    setenv("CONVJIT_CXX", below("fake c++"), 1); /* the compiler comes: nothing was remembered */
    cj_binary_release(get_from("a", CJ_ORIGIN_COMPILER));
}

Test(binary, of_one_source_differs_from_target_to_target) {
    const char *names[] = {"sm_90", "sm_90a", "sm_80"};
    cj_binary *binaries[3];
    for (int i = 0; i < 3; i++) {
        cj_target target;
        cr_assert_eq(cj_target_parse(names[i], &target), CONVJIT_SUCCESS);
        plant(&target, "a", "nvrtc 1", names[i]);
        const cj_request request = make_request(&target, "a");
        cj_origin origin;
        cr_assert_eq(cj_binary_get(&request, store, counters, &logged, &binaries[i], &origin), CONVJIT_SUCCESS);
        expect_bytes(binaries[i], names[i]);
    }
    for (int i = 0; i < 3; i++) {
        cj_binary_release(binaries[i]);
    }
    expect_counts(0, 3, 0, 0, 0, 0);
}

/* ------------------------------------------------------------------------------------------------------ threads --- */

enum { THREADS = 16 };

typedef struct asker {
    pthread_t thread;
    cj_binary *refused; /* NULL: get, else rebuild */
    cj_binary *binary;
    cj_origin origin;
    convjit_status status;
    char error[200];
} asker;

static asker askers[THREADS];
static pthread_barrier_t start;

static void *ask(void *argument) {
    asker *me = argument;
    const cj_request request = make_request(&cpu, "a");
    pthread_barrier_wait(&start);
    if (me->refused == NULL) {
        me->status = cj_binary_get(&request, store, counters, &logged, &me->binary, &me->origin);
    } else {
        me->status = cj_binary_rebuild(&request, me->refused, store, counters, &logged, &me->binary);
    }
    snprintf(me->error, sizeof me->error, "%s", convjit_last_error());
    return NULL;
}

/* All threads ask at once, and the compiler does not end before they have. */
static void ask_all(void) {
    write_file(below("wait"), "");
    pthread_barrier_init(&start, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
    }
    pthread_barrier_wait(&start);
    sleep_ms(300);
    cr_assert_eq(unlink(below("wait")), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(askers[i].thread, NULL);
    }
    pthread_barrier_destroy(&start);
}

Test(binary, asked_for_by_many_threads_is_compiled_once) {
    ask_all();
    int compiled = 0;
    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(askers[i].status, CONVJIT_SUCCESS, "%s", askers[i].error);
        cr_expect_eq(askers[i].binary, askers[0].binary);
        compiled += askers[i].origin == CJ_ORIGIN_COMPILER;
        cr_expect_neq(askers[i].origin, CJ_ORIGIN_DISK);
    }
    cr_expect_eq(compiled, 1);
    expect_bytes(askers[0].binary, "\177ELF run 1: a");
    for (int i = 0; i < THREADS; i++) {
        cj_binary_release(askers[i].binary);
    }
    cr_expect_eq(runs("runs"), 1);
    expect_counts(THREADS - 1, 0, 1, 1, 0, 0);
}

Test(binary, that_fails_fails_for_all_who_wait_and_is_not_remembered) {
    write_file(below("fail"), "error: no such word\n");
    ask_all();
    for (int i = 0; i < THREADS; i++) {
        cr_expect_eq(askers[i].status, CONVJIT_COMPILE_FAILED);
        cr_expect(strstr(askers[i].error, "no such word") != NULL, "%s", askers[i].error);
        cr_expect_str_eq(askers[i].error, askers[0].error);
    }
    cr_expect_eq(runs("runs"), 1);
    expect_counts(0, 0, 1, 0, 0, 0);
    unlink(below("fail"));
    cj_binary *binary = get_from("a", CJ_ORIGIN_COMPILER);
    expect_bytes(binary, "\177ELF run 2: a");
    cj_binary_release(binary);
    expect_counts(0, 0, 2, 1, 0, 0);
}

Test(binary, that_is_empty_is_a_failure) {
    write_file(below("empty"), "");
    cj_binary *binary;
    cj_origin origin;
    cr_expect_eq(get("a", &binary, &origin), CONVJIT_COMPILE_FAILED);
    const cj_key key = key_of(&cpu, "a");
    cj_read read;
    cr_expect(!read_file_of(below("cache"), &key, &read));
    expect_counts(0, 0, 1, 0, 0, 0);
}

static void *get_and_release(void *source) {
    for (int i = 0; i < 200; i++) {
        cj_binary *binary;
        cj_origin origin;
        cr_assert_eq(get(source, &binary, &origin), CONVJIT_SUCCESS);
        cr_assert_eq(((const char *)binary->blob.data)[binary->blob.size - 1], *(const char *)source);
        cj_binary_release(binary);
    }
    return NULL;
}

Test(binary, may_be_taken_and_given_back_by_many_threads) {
    static char sources[3][2] = {"a", "b", "c"};
    pthread_t threads[9];
    for (int i = 0; i < 9; i++) {
        pthread_create(&threads[i], NULL, get_and_release, sources[i % 3]);
    }
    for (int i = 0; i < 9; i++) {
        pthread_join(threads[i], NULL);
    }
    const convjit_counters counts = cj_counters_read(counters);
    cr_expect_eq(counts.memory_hits + counts.disk_hits + counts.misses, 1800); /* 9 threads, 200 times */
    cr_expect_eq(counts.compiles, 3, "who builds holds the binary until it is on disk");
    cr_expect_eq(counts.corrupt, 0);
    cr_expect_eq(runs("runs"), 3);
}

/* -------------------------------------------------------------------------------------------------- bad entries --- */

Test(binary, damaged_on_disk_is_rebuilt_replaced_and_warned_about_once) {
    cj_binary_release(get_from("a", CJ_ORIGIN_COMPILER));
    damage("a");
    cj_binary *binary = get_from("a", CJ_ORIGIN_COMPILER);
    expect_bytes(binary, "\177ELF run 2: a");
    cj_binary_release(binary);
    expect_counts(0, 0, 2, 2, 1, 0);
    cr_expect_eq(line_count, 1);
    expect_line(0, "truncated");
    expect_line(0, key_of(&cpu, "a").hex);
    binary = get_from("a", CJ_ORIGIN_DISK);
    expect_bytes(binary, "\177ELF run 2: a");
    cj_binary_release(binary);

    damage("a"); /* again: counted, but said before */
    cj_binary_release(get_from("a", CJ_ORIGIN_COMPILER));
    expect_counts(0, 1, 3, 3, 2, 0);
    cr_expect_eq(line_count, 1);
    plant(&cpu, "b", "fake 1.0", "x");
    damage("b"); /* another key has a line of its own */
    cj_binary_release(get_from("b", CJ_ORIGIN_COMPILER));
    cr_expect_eq(line_count, 2);
}

Test(binary, of_another_compiler_build_is_stale_once_the_compiler_is_open) {
    plant(&cpu, "a", "fake 0.9", "old a");
    plant(&cpu, "b", "fake 0.9", "old b");
    plant(&cpu, "c", "fake 1.0", "same build");
    cj_binary *a = get_from("a", CJ_ORIGIN_DISK); /* nobody has looked for a compiler */
    expect_bytes(a, "old a");
    cj_binary_release(a);
    char id[CJ_COMPILER_ID_MAX];
    cr_assert_eq(cj_target_compiler(&cpu)->open(id), CONVJIT_SUCCESS);
    cj_binary *b = get_from("b", CJ_ORIGIN_COMPILER);
    expect_bytes(b, "\177ELF run 1: b");
    cr_expect_eq(line_count, 1);
    expect_line(0, "built by fake 0.9, the compiler in use is fake 1.0");
    cj_binary_release(b);
    cj_binary_release(get_from("b", CJ_ORIGIN_DISK));
    cj_binary *c = get_from("c", CJ_ORIGIN_DISK);
    expect_bytes(c, "same build");
    cj_binary_release(c);
    expect_counts(0, 3, 1, 1, 1, 0);
}

Test(binary, made_for_another_launch_is_stale) {
    const char *sources[] = {"a", "b"};
    for (int i = 0; i < 2; i++) {
        plant(&cpu, sources[i], "fake 1.0", "for 64 threads and 1024 bytes");
        cj_request request = make_request(&cpu, sources[i]);
        request.threads += i == 0;
        request.shared_bytes += i == 1;
        cj_binary *binary;
        cj_origin origin;
        cr_assert_eq(cj_binary_get(&request, store, counters, &logged, &binary, &origin), CONVJIT_SUCCESS);
        cr_expect_eq(origin, CJ_ORIGIN_COMPILER);
        cj_binary_release(binary);
    }
    expect_counts(0, 0, 2, 2, 2, 0);
    expect_line(0, "made for 64 threads");
}

Test(binary, refused_by_the_device_is_rebuilt_and_replaced) {
    plant(&cpu, "a", "fake 1.0", "bad");
    cj_binary *keeper = get_from("a", CJ_ORIGIN_DISK);
    cj_binary *refused = get_from("a", CJ_ORIGIN_MEMORY);
    const cj_request request = make_request(&cpu, "a");
    cj_binary *rebuilt;
    cr_assert_eq(cj_binary_rebuild(&request, refused, store, counters, &logged, &rebuilt), CONVJIT_SUCCESS);
    expect_bytes(rebuilt, "\177ELF run 1: a");
    expect_bytes(keeper, "bad"); /* who could load it keeps it */
    cj_binary *later = get_from("a", CJ_ORIGIN_MEMORY);
    cr_expect_eq(later, rebuilt);
    cj_binary_release(keeper);
    cj_binary_release(rebuilt);
    cj_binary_release(later);
    cj_binary *stored = get_from("a", CJ_ORIGIN_DISK);
    expect_bytes(stored, "\177ELF run 1: a");
    cj_binary_release(stored);
    expect_counts(2, 2, 1, 1, 1, 0);
    cr_expect_eq(line_count, 1);
    expect_line(0, "refused");
}

Test(binary, refused_in_many_threads_is_rebuilt_once) {
    plant(&cpu, "a", "fake 1.0", "bad");
    for (int i = 0; i < THREADS; i++) {
        askers[i].refused = get_from("a", i == 0 ? CJ_ORIGIN_DISK : CJ_ORIGIN_MEMORY);
    }
    ask_all();
    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(askers[i].status, CONVJIT_SUCCESS, "%s", askers[i].error);
        cr_expect_eq(askers[i].binary, askers[0].binary);
    }
    expect_bytes(askers[0].binary, "\177ELF run 1: a");
    for (int i = 0; i < THREADS; i++) {
        cj_binary_release(askers[i].binary);
    }
    cr_expect_eq(runs("runs"), 1);
    expect_counts(THREADS - 1, 1, 1, 1, 1, 0);
}

Test(binary, refused_and_not_built_anew_is_gone_from_memory) {
    plant(&cpu, "a", "fake 1.0", "bad");
    cj_binary *refused = get_from("a", CJ_ORIGIN_DISK);
    const cj_request request = make_request(&cpu, "a");
    cj_binary *rebuilt;
    write_file(below("fail"), "no\n");
    cr_expect_eq(cj_binary_rebuild(&request, refused, store, counters, &logged, &rebuilt), CONVJIT_COMPILE_FAILED);
    cj_binary_release(get_from("a", CJ_ORIGIN_DISK));
    expect_counts(0, 2, 1, 0, 1, 0);
}

/* ------------------------------------------------------------------------------------------------ store failures ---
 */

Test(binary, that_cannot_be_stored_is_served_all_the_same_and_said_once) {
    cj_store_close(store);
    write_file(below("file"), "");
    store = open_store(below("file"));
    const char *sources[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) {
        cj_binary *binary = get_from(sources[i], CJ_ORIGIN_COMPILER);
        cr_expect_gt(binary->blob.size, 0);
        cj_binary_release(binary);
    }
    expect_counts(0, 0, 3, 3, 0, 3);
    cr_expect_eq(line_count, 1);
    expect_line(0, "Not a directory");

    cj_counters *others = counters; /* another context says it once more */
    counters = cj_counters_create();
    cj_binary_release(get_from("d", CJ_ORIGIN_COMPILER));
    expect_counts(0, 0, 1, 1, 0, 1);
    cr_expect_eq(line_count, 2);
    cj_counters_destroy(others);
}

Test(binary, damaged_and_not_replaceable_is_warned_about_once) {
    plant(&cpu, "a", "fake 1.0", "x");
    const cj_key key = key_of(&cpu, "a");
    char file[TESTING_PATH_MAX + 256];
    snprintf(file, sizeof file, "%s", entry_file(below("cache"), &key));
    cr_assert_eq(unlink(file), 0);
    cr_assert_eq(mkdir(file, 0700), 0);
    for (int i = 0; i < 3; i++) {
        cj_binary_release(get_from("a", CJ_ORIGIN_COMPILER));
    }
    expect_counts(0, 0, 3, 3, 3, 3);
    cr_expect_eq(line_count, 2);
    expect_line(0, "not a regular file");
    expect_line(1, "not stored");
}

Test(binary, released_as_null_is_ignored) {
    cj_binary_release(NULL);
    cj_counters_destroy(NULL);
}
