/* test_cache_processes.c - many processes on one cache, processes that are killed, disks that are full: what may happen
 * to a fleet. The compiler is fake_nvrtc.c, which counts its runs over all processes. */
#include "layer_fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>

#include "cache/listing.h"
#include "cache/trim.h"

TestSuite(cache_processes, .init = enter_layer, .fini = leave);

enum { PROCESSES = 16, LAYERS = 50 };

static const char *line_of(int layer) {
    static char line[64];
    snprintf(line, sizeof line, "conv2d c2 k8 in5x%d f3x3 p1", 6 + layer);
    return line;
}

/* Creates all layers, from the `first` on and around. Exits with the number of those that failed. */
static void create_all(convjit_context *context, int first) {
    int failed = 0;
    for (int i = 0; i < LAYERS; i++) {
        convjit_layer *layer;
        failed += try_create(context, line_of((first + i) % LAYERS), &layer) != CONVJIT_SUCCESS;
        convjit_layer_destroy(layer);
    }
    convjit_close(context);
    _exit(failed);
}

static convjit_context *open_dumping(const char *cache, const char *dump) {
    convjit_options options = CONVJIT_OPTIONS_INIT;
    convjit_context *context = NULL;
    mkdir(below(dump), 0777);
    chmod(below(dump), 0777); /* for those who become another user */
    options.cache_directory = cache;
    options.dump_directory = below(dump);
    ASSERT_OK(convjit_open(&options, &context));
    return context;
}

static int exit_status(pid_t child) {
    int status = -1;
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* All bytes of a file; their number. */
static size_t read_all(const char *path, unsigned char *bytes, size_t size) {
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file, "%s: %s", path, strerror(errno));
    const size_t count = fread(bytes, 1, size, file);
    fclose(file);
    return count;
}

static void expect_same_file(const char *wanted, const char *got) {
    static unsigned char bytes[2][1 << 16];
    const size_t size = read_all(wanted, bytes[0], sizeof bytes[0]);
    cr_expect_eq(read_all(got, bytes[1], sizeof bytes[1]), size, "%s", got);
    cr_expect_arr_eq(bytes[1], bytes[0], size, "%s", got);
}

/* Every binary that a process was given, as it dumped them, is that of the one that was alone. */
static void expect_same_dump(const char *wanted, const char *got) {
    DIR *listing = opendir(below(wanted));
    int count = 0;
    for (const struct dirent *at; (at = readdir(listing)) != NULL;) {
        if (strstr(at->d_name, ".cubin") != NULL) {
            char names[2][400];
            snprintf(names[0], sizeof names[0], "%s/%s", wanted, at->d_name);
            snprintf(names[1], sizeof names[1], "%s/%s", got, at->d_name);
            expect_same_file(below(names[0]), below(names[1]));
            count++;
        }
    }
    closedir(listing);
    cr_expect_eq(count, LAYERS);
}

static cj_listing list(const char *cache) {
    cj_directory directory = {.directory_mode = 0700};
    cj_listing listing;
    snprintf(directory.path, sizeof directory.path, "%s", below(cache));
    cr_assert_eq(cj_listing_make(&directory, &listing), 0);
    return listing;
}

/* The cache has the same files as that of the one who was alone, and no others. */
static void expect_same_cache(const char *wanted, const char *got) {
    cj_listing listing = list(wanted);
    cj_listing other = list(got);
    cr_expect_eq(listing.count, LAYERS);
    cr_assert_eq(other.count, listing.count);
    for (size_t i = 0; i < listing.count; i++) {
        char names[2][400];
        cr_assert_str_eq(other.files[i].name, listing.files[i].name);
        snprintf(names[0], sizeof names[0], "%s/%s", wanted, listing.files[i].name);
        snprintf(names[1], sizeof names[1], "%s/%s", got, listing.files[i].name);
        expect_same_file(below(names[0]), below(names[1]));
    }
    cj_listing_free(&other);
    cj_listing_free(&listing);
}

static void create_alone(void) {
    const pid_t child = fork();
    if (child == 0) {
        create_all(open_dumping(below("alone"), "dump"), 0);
    }
    cr_assert_eq(exit_status(child), 0);
}

static int count_compiles(void) {
    FILE *file = fopen(below("compiles"), "r");
    int count = 0;
    for (int c; file != NULL && (c = fgetc(file)) != EOF;) {
        count += c == '\n';
    }
    if (file != NULL) {
        fclose(file);
    }
    return count;
}

/* ------------------------------------------------------------------------------------------------- at once --- */

/* Forks all processes, which start together. Those with an even number use FOLDER/cache, the others `odd_cache`, and
 * run `odd_before` first. */
static void create_together(const char *odd_cache, void (*odd_before)(void)) {
    char caches[2][3 * TESTING_PATH_MAX];
    pid_t children[PROCESSES];
    snprintf(caches[0], sizeof caches[0], "%s", below("cache"));
    snprintf(caches[1], sizeof caches[1], "%s", odd_cache);
    int start[2];
    cr_assert_eq(pipe(start), 0);
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            char dump[32];
            char byte;
            close(start[1]);
            const ssize_t end = read(start[0], &byte, 1); /* until all are there, and the parent closes its end */
            snprintf(dump, sizeof dump, "dump%d", i);
            convjit_context *context = open_dumping(caches[i % 2], dump);
            if (i % 2 != 0 && odd_before != NULL) {
                odd_before();
            }
            create_all(context, end == 0 && i % 4 < 2 ? 0 : 3 * i);
        }
    }
    close(start[0]);
    close(start[1]);
    for (int i = 0; i < PROCESSES; i++) {
        char dump[32];
        cr_expect_eq(exit_status(children[i]), 0, "process %d", i);
        snprintf(dump, sizeof dump, "dump%d", i);
        expect_same_dump("dump", dump);
    }
}

Test(cache_processes, many_at_once_on_an_empty_directory_compile_and_publish_each_key_once) {
    create_alone();
    setenv("FAKE_NVRTC_RECORD", below("compiles"), 1);
    setenv("FAKE_NVRTC_DELAY_MS", "3", 1);
    create_together(below("cache"), NULL);
    expect_same_cache("alone", "cache");
    cr_expect_eq(count_compiles(), LAYERS);
}

/* As containers with the cache mounted read-only beside one that fills it. */
Test(cache_processes, many_at_once_half_of_which_only_read_get_the_same) {
    char path[2 * TESTING_PATH_MAX];
    create_alone();
    setenv("FAKE_NVRTC_RECORD", below("compiles"), 1);
    snprintf(path, sizeof path, "/proc/self/nowhere:%s", below("cache"));
    create_together(path, NULL);
    expect_same_cache("alone", "cache");
    cr_expect_geq(count_compiles(), LAYERS);
    cr_expect_leq(count_compiles(), LAYERS + PROCESSES / 2 * LAYERS);
}

static void open_compiler_and_become_ordinary(void) {
    convjit_environment ignored;
    convjit_get_environment(NULL, &ignored); /* opens the compiler, whose folder another user may not enter */
    if (!become_ordinary()) {
        _exit(99);
    }
}

Test(cache_processes, many_at_once_half_of_whom_may_not_write_get_the_same) {
    if (geteuid() != 0) {
        cr_skip_test("only user 0 can become another user");
    }
    create_alone();
    cr_assert_eq(mkdir(below("cache"), 0755), 0);
    umask(022);
    create_together(below("cache"), open_compiler_and_become_ordinary);
    expect_same_cache("alone", "cache");
}

/* ------------------------------------------------------------------------------------------------ killed --- */

static void create_for_ever(void) {
    convjit_options options = CONVJIT_OPTIONS_INIT;
    convjit_context *context = NULL;
    options.cache_directory = below("cache");
    options.cache_mode = CONVJIT_CACHE_REFRESH;
    options.cache_size = "30K"; /* trims too */
    options.target = "sm_90a";
    ASSERT_OK(convjit_open(&options, &context));
    for (int i = 0;; i++) {
        convjit_layer *layer;
        if (try_create(context, line_of(i % LAYERS), &layer) != CONVJIT_SUCCESS) {
            _exit(1);
        }
        convjit_layer_destroy(layer);
    }
}

/* Every entry that is there is whole; their number. */
static size_t expect_whole_entries(const char *cache) {
    cj_listing listing = list(cache);
    size_t entries = 0;
    for (size_t i = 0; i < listing.count; i++) {
        static unsigned char bytes[1 << 16];
        char name[400];
        cj_entry entry;
        if (!listing.files[i].temporary) {
            snprintf(name, sizeof name, "%s/%s", cache, listing.files[i].name);
            const char *fault = cj_entry_decode(bytes, read_all(below(name), bytes, sizeof bytes), &entry);
            cr_expect_null(fault, "%s: %s", name, fault);
            entries++;
        }
    }
    cj_listing_free(&listing);
    return entries;
}

Test(cache_processes, killed_at_any_moment_leave_whole_entries_only) {
    enum { KILLS = 200, MOST_NS = 500000000 };
    unsigned random = 1, window_ns = 8000000; /* grows until one comes so far as to write, for builds differ in speed */
    int killed = 0;
    for (int i = 0; i < KILLS; i++) {
        const pid_t child = fork();
        if (child == 0) {
            create_for_ever();
        }
        random = random * 1103515245U + 12345U;
        const struct timespec time = {.tv_nsec = 1000000 + random % window_ns};
        nanosleep(&time, NULL);
        kill(child, SIGKILL);
        killed += exit_status(child) == -1;
        if (expect_whole_entries("cache") == 0 && window_ns < MOST_NS) {
            window_ns += window_ns / 16;
        }
    }
    cr_expect_eq(killed, KILLS, "none ended by itself");
    cr_expect_geq(expect_whole_entries("cache"), 1, "they came so far as to write");

    const pid_t child = fork(); /* those who come later find nothing in their way */
    if (child == 0) {
        create_all(open_for(NULL), 0);
    }
    cr_assert_eq(exit_status(child), 0);
    cr_expect_eq(expect_whole_entries("cache"), LAYERS);
}

/* ----------------------------------------------------------------------------------------------- full disk --- */

static bool write_text(const char *path, const char *text) {
    const int file = open(path, O_WRONLY);
    const bool written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);
    close(file);
    return written;
}

/* A file system of 64 KiB at FOLDER/small, seen by this process only. False where that is not permitted. */
static bool mount_small_disk(void) {
    char map[64];
    char group_map[64];
    mkdir(below("small"), 0700);
    snprintf(map, sizeof map, "0 %u 1", (unsigned)geteuid());
    snprintf(group_map, sizeof group_map, "0 %u 1", (unsigned)getegid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) {
        write_text("/proc/self/setgroups", "deny");
        if (!write_text("/proc/self/uid_map", map) || !write_text("/proc/self/gid_map", group_map)) {
            return false;
        }
    } else if (unshare(CLONE_NEWNS) != 0) {
        return false;
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", below("small"), "tmpfs", 0, "size=64k") == 0;
}

enum { NOT_PERMITTED = 77 };

#define REQUIRE(condition)                                                             \
    do {                                                                               \
        if (!(condition)) {                                                            \
            (void)fprintf(stderr, "%s fails: %s\n", #condition, convjit_last_error()); \
            _exit(1);                                                                  \
        }                                                                              \
    } while (0)

/* In a process of its own, which sees the small disk. */
static void fill_small_disk(void) {
    if (!mount_small_disk()) {
        _exit(NOT_PERMITTED);
    }
    convjit_options options = CONVJIT_OPTIONS_INIT;
    convjit_context *context = NULL;
    options.target = "sm_90a";
    options.cache_directory = below("small/cache");
    options.cache_size = "0";
    REQUIRE(convjit_open(&options, &context) == CONVJIT_SUCCESS);
    for (int i = 0; i < LAYERS; i++) {
        convjit_layer *layer;
        REQUIRE(try_create(context, line_of(i), &layer) == CONVJIT_SUCCESS);
        convjit_layer_destroy(layer);
    }
    const convjit_counters full = convjit_get_counters(context);
    REQUIRE(full.compiles == LAYERS && full.store_failures > 0 && full.store_failures < LAYERS);
    cj_listing listing = list("small/cache");
    REQUIRE(listing.count == LAYERS - full.store_failures); /* no temporary is left */
    testing_folder_remove(below("small/cache"));            /* there is room again */
    for (int i = 0; i < 5; i++) {
        convjit_layer *layer;
        REQUIRE(try_create(context, line_of(i), &layer) == CONVJIT_SUCCESS);
        convjit_layer_destroy(layer);
    }
    REQUIRE(convjit_get_counters(context).store_failures == full.store_failures);
    _exit(expect_whole_entries("small/cache") == 5 ? 0 : 1);
}

Test(cache_processes, full_disk_fails_no_create_and_leaves_no_rest) {
    const pid_t child = fork();
    if (child == 0) {
        fill_small_disk();
    }
    const int status = exit_status(child);
    if (status == NOT_PERMITTED) {
        cr_skip_test("mounting a small file system is not permitted here");
    }
    cr_expect_eq(status, 0);
}
