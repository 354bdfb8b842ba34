#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "cache_fixture.h"

TestSuite(store, .init = enter, .fini = leave);

static void expect_bad(cj_store *store, const cj_entry *entry, const char *reason) {
    cj_read read;
    cr_expect_eq(read_store(store, entry, &read), CJ_READ_BAD, "%s", reason);
    cr_expect_eq(strncmp(read.reason, reason, strlen(reason)), 0, "%s", read.reason);
    cr_expect(read.bytes == NULL);
}

/* ---------------------------------------------------------------------------------------------- write and read --- */

Test(store, gives_back_what_was_written_also_to_a_later_store) {
    cj_store *store = open_store(below("cache"));
    const cj_entry entry = sample();
    expect_absent(store, &entry);
    write_ok(store, &entry);
    expect_hit(store, &entry);
    cj_store_close(store);
    store = open_store(below("cache"));
    expect_hit(store, &entry);
    cj_store_close(store);
}

Test(store, replaces_an_entry) {
    cj_store *store = open_store(below("cache"));
    const cj_entry first = make_entry(1, "first", 5);
    const cj_entry second = make_entry(1, "the second", 10);
    write_ok(store, &first);
    write_ok(store, &second);
    expect_hit(store, &second);
    cr_expect_eq(count_files(below("cache/01")), 1);
    cj_store_close(store);
}

Test(store, puts_the_first_byte_of_the_key_into_the_folder) {
    cj_store *store = open_store(below("cache"));
    const cj_entry entry = sample();
    write_ok(store, &entry);
    cr_expect_eq(access(below("cache/ab/ababababababababababababababab.entry"), F_OK), 0);
    cj_store_close(store);
}

Test(store, touches_no_disk_before_the_first_write) {
    cj_store *store = open_store(below("a/b"));
    const cj_entry entry = sample();
    expect_absent(store, &entry);
    cr_expect_eq(count_files(folder), 0);
    cj_store_close(store);
}

Test(store, moved_elsewhere_still_hits) {
    cj_store *store = open_store(below("here"));
    const cj_entry entry = sample();
    write_ok(store, &entry);
    cj_store_close(store);
    cr_assert_eq(rename(below("here"), below("there")), 0);
    store = open_store(below("there"));
    expect_hit(store, &entry);
    cj_store_close(store);
}

Test(store, tells_damaged_and_foreign_files_from_absent_ones) {
    cj_store *store = open_store(below("cache"));
    const cj_entry entry = sample();
    write_ok(store, &entry);
    char file[TESTING_PATH_MAX + 256];
    snprintf(file, sizeof file, "%s", entry_file(below("cache"), &entry.key));

    cr_assert_eq(truncate(file, 100), 0);
    expect_bad(store, &entry, "truncated");
    cr_assert_eq(truncate(file, 0), 0);
    expect_bad(store, &entry, "empty");
    write_file(file, "something else that is longer than the header of an entry, so that it is told from a short one "
                     "by its first bytes alone");
    expect_bad(store, &entry, "no entry");
    cr_assert_eq(truncate(file, (off_t)300 << 20), 0); /* sparse */
    expect_bad(store, &entry, "larger than 256 MiB");
    write_ok(store, &entry);
    expect_hit(store, &entry);
    cj_store_close(store);
}

Test(store, checks_key_and_target_of_what_it_reads) {
    cj_store *store = open_store(below("cache"));
    const cj_entry entry = make_entry(1, "one", 3);
    cj_entry other = make_entry(2, "two", 3);
    write_ok(store, &entry);
    write_ok(store, &other);
    char file[TESTING_PATH_MAX + 256];
    snprintf(file, sizeof file, "%s", entry_file(below("cache"), &other.key));
    cr_assert_eq(rename(entry_file(below("cache"), &entry.key), file), 0);
    expect_bad(store, &other, "another entry's key");
    write_ok(store, &entry);
    other = entry;
    other.target = "sm_80a";
    expect_bad(store, &other, "other target");
    expect_hit(store, &entry);
    cj_store_close(store);
}

Test(store, does_not_hang_on_a_fifo_or_trip_over_a_directory) {
    cj_store *store = open_store(below("cache"));
    const cj_entry entry = sample();
    write_ok(store, &entry);
    const char *file = entry_file(below("cache"), &entry.key);
    cr_assert_eq(unlink(file), 0);
    cr_assert_eq(mkfifo(file, 0600), 0);
    expect_bad(store, &entry, "not a regular file");
    write_ok(store, &entry); /* the rename replaces it */
    expect_hit(store, &entry);
    cr_assert_eq(unlink(file), 0);
    cr_assert_eq(mkdir(file, 0700), 0);
    expect_bad(store, &entry, "not a regular file");
    expect_write_fails(store, &entry, "Is a directory");
    cr_expect_eq(count_files(below("cache/ab")), 1, "no temporary is left");
    cj_store_close(store);
}

Test(store, follows_a_link_to_read_and_replaces_it_to_write) {
    cj_store *store = open_store(below("cache"));
    const cj_entry entry = sample();
    write_ok(store, &entry);
    char file[TESTING_PATH_MAX + 256];
    snprintf(file, sizeof file, "%s", entry_file(below("cache"), &entry.key));
    cr_assert_eq(rename(file, below("linked")), 0);
    cr_assert_eq(symlink(below("linked"), file), 0);
    expect_hit(store, &entry);
    write_file(below("linked"), "x");
    write_ok(store, &entry);
    struct stat info;
    cr_assert_eq(lstat(file, &info), 0);
    cr_expect(S_ISREG(info.st_mode));
    cr_assert_eq(stat(below("linked"), &info), 0);
    cr_expect_eq(info.st_size, 1, "nothing was written through the link");
    cj_store_close(store);
}

/* --------------------------------------------------------------------------------------------------- publishing --- */

enum { PUBLISHERS = 4, ROUNDS = 100, LARGE = 100000 };
static atomic_bool stop;
static cj_store *shared;

/* Writes entries whose bytes all equal the low byte of `round`. */
static void *publish(void *unused) {
    (void)unused;
    unsigned char *binary = malloc(LARGE);
    for (int round = 0; round < ROUNDS; round++) {
        memset(binary, round, LARGE);
        const cj_entry entry = make_entry(7, binary, LARGE - (size_t)round);
        char reason[160];
        cr_assert(cj_store_write(shared, &entry, reason), "%s", reason);
    }
    free(binary);
    return NULL;
}

static void *watch(void *hits) {
    const cj_entry wanted = make_entry(7, "", 0);
    while (!atomic_load(&stop)) {
        cj_read read;
        const cj_read_result result = read_store(shared, &wanted, &read);
        cr_assert_neq(result, CJ_READ_BAD, "%s", read.reason);
        if (result == CJ_READ_HIT) {
            const unsigned char *binary = read.entry.binary;
            cr_assert_eq(binary[0], binary[read.entry.binary_size - 1]);
            cr_assert_eq(read.entry.binary_size, (size_t)LARGE - binary[0]);
            ++*(int *)hits;
        }
        free(read.bytes);
    }
    return NULL;
}

Test(store, shows_readers_whole_entries_only_while_others_publish_the_same_key) {
    shared = open_store(below("cache"));
    pthread_t publishers[PUBLISHERS];
    pthread_t watcher;
    int hits = 0;
    pthread_create(&watcher, NULL, watch, &hits);
    for (int i = 0; i < PUBLISHERS; i++) {
        pthread_create(&publishers[i], NULL, publish, NULL);
    }
    for (int i = 0; i < PUBLISHERS; i++) {
        pthread_join(publishers[i], NULL);
    }
    atomic_store(&stop, true);
    pthread_join(watcher, NULL);
    cr_expect_gt(hits, 0);
    cr_expect_eq(count_files(below("cache/07")), 1, "no temporary is left");
    cj_store_close(shared);
}

Test(store, leaves_no_temporary_when_the_disk_is_full) {
    cj_store *store = open_store(below("cache"));
    static unsigned char large[1 << 16];
    const cj_entry entry = make_entry(3, large, sizeof large);
    const struct rlimit full = {1 << 12, 1 << 12};
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &full), 0);
    expect_write_fails(store, &entry, "File too large");
    cr_expect_eq(count_files(below("cache/03")), 0);
    const cj_entry small = sample();
    write_ok(store, &small); /* and the store is as good as before */
    cj_store_close(store);
}

static bool predictable;

/* Stands for the system's: an attacker who guesses what cannot be guessed. */
ssize_t getrandom(void *bytes, size_t size, unsigned flags) {
    if (predictable) {
        memset(bytes, 0x5a, size);
        return (ssize_t)size;
    }
    return syscall(SYS_getrandom, bytes, size, flags);
}

Test(store, writes_through_no_link_planted_under_the_name_of_its_temporary) {
    cj_store *store = open_store(below("cache"));
    const cj_entry entry = sample();
    write_ok(store, &entry);
    char host[64] = "", name[200], word[16] = "";
    cr_assert_eq(gethostname(host, sizeof host - 1), 0);
    snprintf(name, sizeof name, "cache/ab/%s-%ld-5a5a5a5a5a5a5a5a.tmp", host, (long)getpid());
    FILE *victim = fopen(below("victim"), "w+");
    cr_assert(victim != NULL && fputs("untouched", victim) >= 0 && fflush(victim) == 0);
    cr_assert_eq(symlink(below("victim"), below(name)), 0);
    predictable = true;
    expect_write_fails(store, &entry, "File exists");
    predictable = false;
    rewind(victim);
    cr_expect(fgets(word, sizeof word, victim) != NULL && strcmp(word, "untouched") == 0, "%s", word);
    fclose(victim);
    expect_hit(store, &entry);
    write_ok(store, &entry); /* under another name */
    cj_store_close(store);
}

Test(store, creates_its_directory_again_when_it_is_deleted_while_running) {
    cj_store *store = open_store(NULL);
    const cj_entry entry = sample();
    write_ok(store, &entry);
    testing_folder_remove(below(".cache/convjit"));
    expect_absent(store, &entry);
    write_ok(store, &entry);
    testing_folder_remove(below(".cache/convjit/ab"));
    write_ok(store, &entry);
    testing_folder_remove(below(".cache"));
    write_ok(store, &entry);
    expect_hit(store, &entry);
    cj_store_close(store);
}

static void *delete_again_and_again(void *unused) {
    (void)unused;
    while (!atomic_load(&stop)) {
        testing_folder_remove(below("cache"));
    }
    return NULL;
}

/* Losing the race three times in a row is possible, and a failed write then; what is not is a partial entry. */
Test(store, survives_a_deleter_that_never_rests) {
    cj_store *store = open_store(below("cache"));
    const cj_entry entry = sample();
    pthread_t deleter;
    pthread_create(&deleter, NULL, delete_again_and_again, NULL);
    int written = 0;
    for (int i = 0; i < 500; i++) {
        char reason[160];
        written += cj_store_write(store, &entry, reason);
        cj_read read;
        cr_expect_neq(read_store(store, &entry, &read), CJ_READ_BAD);
        free(read.bytes);
    }
    atomic_store(&stop, true);
    pthread_join(deleter, NULL);
    cr_expect_gt(written, 0);
    write_ok(store, &entry);
    expect_hit(store, &entry);
    cj_store_close(store);
}

/* ---------------------------------------------------------------------------------------- unusable directories --- */

Test(store, reports_a_file_in_place_of_its_directory_and_reads_nothing) {
    write_file(below("file"), "x");
    const cj_entry entry = sample();
    const char *roots[] = {below("file"), below("file/sub")};
    for (int i = 0; i < 2; i++) {
        cj_store *store = open_store(roots[i]);
        expect_absent(store, &entry);
        expect_write_fails(store, &entry, "Not a directory");
        cj_store_close(store);
    }
}

Test(store, reports_a_directory_that_cannot_be_created_and_reads_nothing) {
    cj_store *store = open_store("/proc/self/nowhere"); /* not even user 0 creates anything there */
    const cj_entry entry = sample();
    expect_absent(store, &entry);
    expect_write_fails(store, &entry, "/proc/self/nowhere");
    cj_store_close(store);
}

Test(store, reads_what_it_may_and_reports_what_it_may_not_write) {
    char cache[TESTING_PATH_MAX + 128];
    snprintf(cache, sizeof cache, "%s", below("cache"));
    const cj_entry entry = sample();
    const cj_entry other = make_entry(0xcd, "other", 5);
    cj_store *store = open_store(cache);
    char reason[160];
    if (!become_ordinary() || !cj_store_write(store, &entry, reason)) {
        become_oneself();
        cj_store_close(store);
        cr_skip_test("user 0 ignores permissions, and cannot become another user here");
    }
    chmod(cache, 0500);
    expect_hit(store, &entry);
    expect_write_fails(store, &other, "Permission denied");
    chmod(cache, 0);
    expect_absent(store, &entry);
    chmod(cache, 0700);
    chmod(entry_file(cache, &entry.key), 0);
    expect_absent(store, &entry);
    write_ok(store, &entry);
    expect_hit(store, &entry);
    become_oneself();
    cj_store_close(store);
}

/* -------------------------------------------------------------------------------------------------------- modes --- */

Test(store, mode_says_what_is_read_and_written) {
    const cj_entry old = make_entry(1, "old", 3);
    cj_store *normal = open_store(below("cache"));
    write_ok(normal, &old);
    static const struct {
        convjit_cache_mode mode;
        bool reads, writes;
    } modes[] = {{CONVJIT_CACHE_NORMAL, true, true},
                 {CONVJIT_CACHE_ONLY, true, true},
                 {CONVJIT_CACHE_REFRESH, false, true},
                 {CONVJIT_CACHE_OFF, false, false}};
    for (unsigned char i = 0; i < 4; i++) {
        cj_store *store = open_store_in(below("cache"), modes[i].mode);
        const cj_entry entry = make_entry((unsigned char)(10 + i), "new", 3);
        modes[i].reads ? expect_hit(store, &old) : expect_absent(store, &old);
        write_ok(store, &entry); /* nothing to do is no failure */
        modes[i].writes ? expect_hit(normal, &entry) : expect_absent(normal, &entry);
        cr_expect_eq(cj_store_mode(store), modes[i].mode);
        cj_store_close(store);
    }
    cj_store_close(normal);
}

Test(store, mode_comes_from_the_caller_then_the_setting) {
    static const struct {
        const char *word;
        convjit_cache_mode mode;
    } words[] = {{"normal", CONVJIT_CACHE_NORMAL},
                 {"cache-only", CONVJIT_CACHE_ONLY},
                 {"refresh", CONVJIT_CACHE_REFRESH},
                 {"off", CONVJIT_CACHE_OFF},
                 {"", CONVJIT_CACHE_NORMAL}};
    for (int i = 0; i < 5; i++) {
        setenv("CONVJIT_CACHE_MODE", words[i].word, 1);
        cj_store *store = open_store(below("cache"));
        cr_expect_eq(cj_store_mode(store), words[i].mode, "%s", words[i].word);
        cj_store_close(store);
        store = open_store_in(below("cache"), CONVJIT_CACHE_REFRESH);
        cr_expect_eq(cj_store_mode(store), CONVJIT_CACHE_REFRESH);
        cj_store_close(store);
    }
}

static void expect_refused(const convjit_options *options, const char *text) {
    cj_store *store = NULL;
    cr_expect_eq(cj_store_open(options, &store), CONVJIT_INVALID_ARGUMENT);
    cr_expect_str_eq(convjit_last_error(), text);
}

Test(store, refuses_a_mode_that_is_none) {
    convjit_options options = CONVJIT_OPTIONS_INIT;
    setenv("CONVJIT_CACHE_MODE", "cacheonly", 1);
    expect_refused(&options, "CONVJIT_CACHE_MODE is \"cacheonly\", must be normal, cache-only, refresh or off");
    options.cache_mode = (convjit_cache_mode)5;
    expect_refused(&options, "cache_mode 5, must be a convjit_cache_mode");
}
