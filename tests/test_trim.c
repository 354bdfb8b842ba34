/* test_trim.c - the size limit: what goes, what stays, and who cleans. */
#include "cache/trim.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/file.h>
#include <time.h>

#include "cache_fixture.h"

TestSuite(trim, .init = enter, .fini = leave);

enum { HOUR = 3600, DAY = 86400 };
static const unsigned char binary[10000];

static cj_directory cache_directory(void) {
    cj_directory directory = {.directory_mode = 0700, .file_mode = 0600};
    snprintf(directory.path, sizeof directory.path, "%s", below("cache"));
    return directory;
}

/* Changes the time of a file below the cache to `age` seconds ago. */
static void set_age(const char *path, long age) {
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) - age}};
    cr_assert_eq(utimensat(AT_FDCWD, path, times, 0), 0, "%s: %s", path, strerror(errno));
}

static long age_of(const char *path) {
    struct stat info;
    cr_assert_eq(stat(path, &info), 0, "%s: %s", path, strerror(errno));
    return (long)(time(NULL) - info.st_mtime);
}

/* An entry of about 10 KB under `root`, of that age. */
static cj_entry plant(const char *root, unsigned char seed, long age) {
    cj_store *store = open_store(below(root));
    const cj_entry entry = make_entry(seed, binary, sizeof binary);
    write_ok(store, &entry);
    cj_store_close(store);
    set_age(entry_file(below(root), &entry.key), age);
    return entry;
}

static bool is_there(const char *root, const cj_entry *entry) {
    return access(entry_file(below(root), &entry->key), F_OK) == 0;
}

static char told[16][CJ_DIRECTORY_NAME_MAX];
static int told_count;

static void tell(void *user, const cj_file *file) {
    (void)user;
    cr_assert_lt(told_count, 16);
    snprintf(told[told_count++], sizeof told[0], "%s", file->name);
}

static convjit_cache_totals trim(uint64_t limit, cj_trim_occasion occasion) {
    const cj_directory directory = cache_directory();
    convjit_cache_totals totals;
    told_count = 0;
    cr_assert_eq(cj_trim(&directory, limit, occasion, tell, NULL, &totals), 0);
    return totals;
}

/* ------------------------------------------------------------------------------------------------- what goes --- */

Test(trim, removes_what_was_not_used_for_the_longest_until_a_tenth_is_free) {
    cj_entry entries[8];
    for (unsigned char i = 0; i < 8; i++) {
        entries[i] = plant("cache", i, (i * 3 % 8 + 1) * HOUR); /* ages 1 4 7 2 5 8 3 6 hours */
    }
    const uint64_t each = trim(0, CJ_TRIM_DRY_RUN).bytes / 8;
    const convjit_cache_totals totals = trim(6 * each, CJ_TRIM_ASKED); /* 5.4 entries may stay */
    cr_expect_eq(totals.files, 8);
    cr_expect_eq(totals.removed, 3);
    cr_expect_eq(totals.removed_bytes, 3 * each);
    for (int i = 0; i < 8; i++) {
        cr_expect_eq(is_there("cache", &entries[i]), i * 3 % 8 + 1 < 6, "entry %d, %d hours old", i, i * 3 % 8 + 1);
    }
    cr_assert_eq(told_count, 3);
    cr_expect_eq(strncmp(told[0], "05/0505", 7), 0, "the oldest goes first: %s", told[0]);
    cr_expect_eq(trim(6 * each, CJ_TRIM_ASKED).removed, 0);
}

Test(trim, dry_run_tells_the_same_and_removes_nothing) {
    const cj_entry entry = plant("cache", 1, HOUR);
    write_file(below("cache/01/host-1-0123456789abcdef.tmp"), "left behind");
    set_age(below("cache/01/host-1-0123456789abcdef.tmp"), 2 * HOUR);
    const convjit_cache_totals totals = trim(1, CJ_TRIM_DRY_RUN);
    cr_expect_eq(totals.removed, 1);
    cr_expect_eq(totals.temporaries, 1);
    cr_expect_eq(told_count, 2);
    cr_expect(is_there("cache", &entry));
    cr_expect_eq(access(below("cache/01/host-1-0123456789abcdef.tmp"), F_OK), 0);
}

Test(trim, removes_temporaries_after_an_hour) {
    plant("cache", 1, 0);
    write_file(below("cache/01/old.tmp"), "its writer was killed");
    write_file(below("cache/01/new.tmp"), "being written");
    write_file(below("cache/01/future.tmp"), "written where the clock is ahead");
    set_age(below("cache/01/old.tmp"), HOUR + 60);
    set_age(below("cache/01/new.tmp"), HOUR - 60);
    set_age(below("cache/01/future.tmp"), -DAY);
    cr_expect_eq(trim(0, CJ_TRIM_ASKED).temporaries, 1);
    cr_expect_eq(access(below("cache/01/old.tmp"), F_OK), -1);
    cr_expect_eq(access(below("cache/01/new.tmp"), F_OK), 0);
    cr_expect_eq(access(below("cache/01/future.tmp"), F_OK), 0);
}

Test(trim, leaves_alone_what_is_not_ours) {
    static const char *const files[] = {"cache/notes.txt",         "cache/CACHEDIR.TAG", "cache/01/notes.txt",
                                        "cache/01/01.entry",       "cache/ZZ/x.tmp",     "cache/012/x.tmp",
                                        "cache/01/0101.entry.bak", "elsewhere/x.tmp"};
    plant("cache", 1, HOUR);
    cr_assert_eq(mkdir(below("cache/ZZ"), 0700), 0);
    cr_assert_eq(mkdir(below("cache/012"), 0700), 0);
    cr_assert_eq(mkdir(below("elsewhere"), 0700), 0);
    cr_assert_eq(symlink(below("elsewhere"), below("cache/ee")), 0); /* looks like a folder of ours */
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        write_file(below(files[i]), "not ours");
        set_age(below(files[i]), DAY);
    }
    cr_expect_eq(trim(1, CJ_TRIM_ASKED).removed, 1);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        cr_expect_eq(access(below(files[i]), F_OK), 0, "%s", files[i]);
    }
}

Test(trim, a_time_in_the_future_keeps_nothing_for_ever) {
    const cj_entry odd = plant("cache", 1, -DAY);
    cj_store *store = open_store(below("cache"));
    expect_hit(store, &odd);
    cr_expect_leq(labs(age_of(entry_file(below("cache"), &odd.key))), 60, "a hit mends it");
    cj_store_close(store);
    set_age(entry_file(below("cache"), &odd.key), -DAY);
    cr_expect_eq(trim(100, CJ_TRIM_ASKED).removed, 1);
}

Test(trim, of_a_directory_that_is_not_there_does_nothing) {
    const convjit_cache_totals totals = trim(1, CJ_TRIM_ASKED);
    cr_expect_eq(totals.files, 0);
    cr_expect_eq(count_files(folder), 0);
}

/* --------------------------------------------------------------------------------------------------- when --- */

Test(trim, is_done_by_one_process_at_a_time_unless_a_person_asks) {
    plant("cache", 1, HOUR);
    const int lock = open(below("cache/trim.lock"), O_RDWR | O_CREAT, 0600);
    cr_assert_geq(lock, 0);
    cr_assert_eq(flock(lock, LOCK_EX), 0);
    cr_expect_eq(trim(1, CJ_TRIM_GROWN).files, 0);
    cr_expect_eq(trim(1, CJ_TRIM_ASKED).removed, 1);
    plant("cache", 1, HOUR);
    close(lock);
    cr_expect_eq(trim(1, CJ_TRIM_GROWN).removed, 1);
    cr_expect_eq(access(below("cache/trim.lock"), F_OK), 0, "a lock's file stays");
}

Test(trim, after_a_first_write_is_done_every_ten_minutes) {
    plant("cache", 1, HOUR); /* the store's first write trims, with a limit far away */
    cr_expect_eq(trim(1, CJ_TRIM_WRITTEN).files, 0, "just done");
    set_age(below("cache/trim.lock"), 500);
    cr_expect_eq(trim(1, CJ_TRIM_WRITTEN).files, 0);
    set_age(below("cache/trim.lock"), 700);
    cr_expect_eq(trim(1, CJ_TRIM_WRITTEN).removed, 1);
    plant("cache", 1, HOUR);
    set_age(below("cache/trim.lock"), -DAY); /* a clock was wrong */
    cr_expect_eq(trim(1, CJ_TRIM_WRITTEN).removed, 1);
}

/* ------------------------------------------------------------------------------------------------- the store --- */

static cj_store *open_limited(const char *path, const char *size) {
    convjit_options options = CONVJIT_OPTIONS_INIT;
    options.cache_directory = path;
    options.cache_size = size;
    cj_store *store = NULL;
    cr_assert_eq(cj_store_open(&options, &store), CONVJIT_SUCCESS, "%s", convjit_last_error());
    return store;
}

Test(trim, store_stays_within_its_limit_and_keeps_what_is_used) {
    cj_store *store = open_limited(below("cache"), "256K");
    const cj_entry used = make_entry(200, binary, sizeof binary);
    write_ok(store, &used);
    for (unsigned char i = 0; i < 100; i++) {
        const cj_entry entry = make_entry(i, binary, sizeof binary);
        write_ok(store, &entry);
        set_age(entry_file(below("cache"), &entry.key), (100 - i) * 60 + HOUR);
        set_age(entry_file(below("cache"), &used.key), 10 * DAY);
        expect_hit(store, &used); /* makes it young */
        expect_hit(store, &entry);
        set_age(entry_file(below("cache"), &entry.key), (100 - i) * 60 + HOUR);
        cr_expect_leq(trim(0, CJ_TRIM_DRY_RUN).bytes, (256 << 10) + (16 << 10) + sizeof binary, "after %d", i);
    }
    cr_expect(is_there("cache", &used));
    cr_expect_geq(trim(0, CJ_TRIM_DRY_RUN).files, 20);
    cj_store_close(store);
}

Test(trim, a_hit_makes_an_entry_young_once_an_hour_and_only_where_we_write) {
    char path[4 * TESTING_PATH_MAX];
    snprintf(path, sizeof path, "%s:%s", below("cache"), below("image"));
    const cj_entry own = plant("cache", 1, HOUR / 2);
    const cj_entry in_image = plant("image", 2, DAY);
    cj_store *store = open_limited(path, "1"); /* any write trims */
    expect_hit(store, &own);
    cr_expect_geq(age_of(entry_file(below("cache"), &own.key)), HOUR / 2);
    set_age(entry_file(below("cache"), &own.key), HOUR + 60);
    expect_hit(store, &own);
    cr_expect_leq(age_of(entry_file(below("cache"), &own.key)), 60);
    expect_hit(store, &in_image);
    const cj_entry entry = sample();
    write_ok(store, &entry);
    cr_expect(!is_there("cache", &own));
    cr_expect_geq(age_of(entry_file(below("image"), &in_image.key)), DAY);
    cj_store_close(store);
}

Test(trim, store_size_is_a_number_with_a_unit) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"0", 0},
                 {"1", 1},
                 {"3K", 3 << 10},
                 {"512M", 512U << 20},
                 {"4G", (uint64_t)4 << 30},
                 {"2T", (uint64_t)2 << 40}};
    static const char *const wrong[] = {"", "-1", "4g", "4GB", "K", "1.5G", " 1", "99999999999999999999", "99999999T"};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cj_store *store = open_limited(below("cache"), sizes[i].text);
        cr_expect_eq(cj_store_size_limit(store), sizes[i].bytes, "%s", sizes[i].text);
        cj_store_close(store);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        convjit_options options = CONVJIT_OPTIONS_INIT;
        cj_store *store = NULL;
        options.cache_size = wrong[i];
        cr_expect_eq(cj_store_open(&options, &store), CONVJIT_INVALID_ARGUMENT, "\"%s\"", wrong[i]);
        cr_expect_not_null(strstr(convjit_last_error(), "cache_size is \""), "%s", convjit_last_error());
    }
    setenv("CONVJIT_CACHE_SIZE", "many", 1);
    convjit_options options = CONVJIT_OPTIONS_INIT;
    cj_store *store = NULL;
    cr_expect_eq(cj_store_open(&options, &store), CONVJIT_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(convjit_last_error(), "CONVJIT_CACHE_SIZE is \"many\", must be a number of bytes"), "%s",
                       convjit_last_error());
}
