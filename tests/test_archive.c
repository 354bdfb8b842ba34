/* test_archive.c - many entries in one file: a cache goes out and comes back, and damage lets nothing in. */
#include "cache/archive.h"

#include <criterion/criterion.h>
#include <sys/stat.h>

#include "cache_fixture.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

TestSuite(archive, .init = enter, .fini = leave);

static convjit_options options_of(const char *cache) {
    convjit_options options = CONVJIT_OPTIONS_INIT;
    options.cache_directory = cache;
    return options;
}

static void expect_status(convjit_status got, convjit_status wanted, const char *part) {
    cr_expect_eq(got, wanted, "%s", convjit_last_error());
    cr_expect_not_null(strstr(convjit_last_error(), part), "\"%s\" is not in: %s", part, convjit_last_error());
}

static uint64_t export_to(const char *cache, const char *file) {
    const convjit_options options = options_of(cache);
    uint64_t entries = 99;
    cr_assert_eq(convjit_cache_export(&options, file, &entries), CONVJIT_SUCCESS, "%s", convjit_last_error());
    return entries;
}

static convjit_status import_from(const char *file, const char *cache, uint64_t *entries) {
    const convjit_options options = options_of(cache);
    return convjit_cache_import(&options, file, entries);
}

static size_t read_all(const char *path, unsigned char *bytes, size_t size) {
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file, "%s: %s", path, strerror(errno));
    const size_t count = fread(bytes, 1, size, file);
    fclose(file);
    return count;
}

static void write_all(const char *path, const unsigned char *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file, "%s: %s", path, strerror(errno));
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static void plant(const char *root, unsigned char seed, const char *binary) {
    cj_store *store = open_store(below(root));
    const cj_entry entry = make_entry(seed, binary, strlen(binary));
    write_ok(store, &entry);
    cj_store_close(store);
}

Test(archive, moves_a_cache_to_another_place) {
    plant("cache", 1, "one");
    plant("cache", 0xfe, "the other");
    cr_expect_eq(export_to(below("cache"), below("file")), 2);
    cr_assert_eq(rename(below("file"), below("moved")), 0);
    uint64_t entries = 0;
    cr_expect_eq(import_from(below("moved"), below("elsewhere"), &entries), CONVJIT_SUCCESS, "%s",
                 convjit_last_error());
    cr_expect_eq(entries, 2);
    cj_store *store = open_store(below("elsewhere"));
    const cj_entry one = make_entry(1, "one", 3);
    const cj_entry other = make_entry(0xfe, "the other", 9);
    expect_hit(store, &one);
    expect_hit(store, &other);
    cj_store_close(store);
    static unsigned char bytes[2][4096]; /* the same file: nothing of the place, the time or the writer is in it */
    export_to(below("elsewhere"), below("again"));
    const size_t size = read_all(below("moved"), bytes[0], sizeof bytes[0]);
    cr_expect_eq(read_all(below("again"), bytes[1], sizeof bytes[1]), size);
    cr_expect_arr_eq(bytes[0], bytes[1], size);
}

Test(archive, holds_the_first_sound_entry_of_each_key) {
    char path[4 * TESTING_PATH_MAX];
    const cj_entry one = make_entry(1, "own", 3);
    const cj_entry two = make_entry(2, "image", 5);
    plant("own", 1, "own");
    plant("own", 2, "spoiled");
    plant("image", 1, "shadowed");
    plant("image", 2, "image");
    cr_assert_eq(truncate(entry_file(below("own"), &two.key), 100), 0);
    snprintf(path, sizeof path, "%s:%s", below("own"), below("image"));
    cr_expect_eq(export_to(path, below("file")), 2);
    cr_expect_eq(import_from(below("file"), below("new"), NULL), CONVJIT_SUCCESS);
    cj_store *store = open_store(below("new"));
    expect_hit(store, &one);
    expect_hit(store, &two);
    cj_store_close(store);
}

Test(archive, of_an_empty_cache_is_a_file_too) {
    uint64_t entries = 99;
    cr_expect_eq(export_to(below("absent"), below("file")), 0);
    cr_expect_eq(import_from(below("file"), below("cache"), &entries), CONVJIT_SUCCESS);
    cr_expect_eq(entries, 0);
}

Test(archive, that_is_damaged_lets_nothing_in) {
    static unsigned char bytes[4096];
    plant("cache", 1, "one");
    plant("cache", 2, "two");
    export_to(below("cache"), below("file"));
    const size_t size = read_all(below("file"), bytes, sizeof bytes);
    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= (unsigned char)(1 << i % 8);
        write_all(below("file"), bytes, size);
        cr_expect_eq(import_from(below("file"), below("new"), NULL), CONVJIT_FILE_FAILED, "byte %zu", i);
        bytes[i] ^= (unsigned char)(1 << i % 8);
        write_all(below("file"), bytes, i);
        cr_expect_eq(import_from(below("file"), below("new"), NULL), CONVJIT_FILE_FAILED, "length %zu", i);
    }
    write_all(below("file"), bytes, size + 1);
    expect_status(import_from(below("file"), below("new"), NULL), CONVJIT_FILE_FAILED, "truncated");
    cr_expect_eq(access(below("new"), F_OK), -1);
    write_all(below("file"), bytes, size);
    cr_expect_eq(import_from(below("file"), below("new"), NULL), CONVJIT_SUCCESS);
}

/* Changes what the checksum covers, and the checksum with it: what is left is for the other checks to find. */
static void expect_refused(unsigned char *bytes, size_t size, size_t at, unsigned char value, const char *reason) {
    const unsigned char old = bytes[at];
    XXH128_canonical_t canonical;
    bytes[at] = value;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, size - 16));
    memcpy(bytes + size - 16, canonical.digest, 16);
    write_all(below("file"), bytes, size);
    expect_status(import_from(below("file"), below("new"), NULL), CONVJIT_FILE_FAILED, reason);
    bytes[at] = old;
}

Test(archive, made_by_hand_is_checked_all_the_same) {
    static unsigned char bytes[4096];
    plant("cache", 1, "one");
    export_to(below("cache"), below("file"));
    const size_t size = read_all(below("file"), bytes, sizeof bytes);
    expect_refused(bytes, size, 8, 2, "another format version");
    expect_refused(bytes, size, size - 32, 2, "it ends within an entry");
    expect_refused(bytes, size, size - 32, 0, "it holds more than its entries");
    expect_refused(bytes, size, 16 + 16, 23, "an entry is larger than it may be");
    expect_refused(bytes, size, 16 + 16 + 3, 1, "an entry is larger than it may be");
    expect_refused(bytes, size, 16, 'C', "no entry");
}

Test(archive, replaces_a_file_only_when_the_new_one_is_whole) {
    plant("cache", 1, "one");
    const convjit_options options = options_of(below("cache"));
    uint64_t entries = 99;
    expect_status(convjit_cache_export(&options, "/proc/self/nowhere/file", &entries), CONVJIT_FILE_FAILED,
                  "cache export failed: cannot write /proc/self/nowhere/file: ");
    cr_expect_eq(entries, 0);
    cr_assert_eq(mkdir(below("directory"), 0700), 0);
    expect_status(convjit_cache_export(&options, below("directory"), NULL), CONVJIT_FILE_FAILED, "Is a directory");
    cr_expect_eq(count_files(folder), 2, "no temporary is left");
    expect_status(import_from(below("absent"), below("new"), NULL), CONVJIT_FILE_FAILED, "No such file or directory");
    export_to(below("cache"), below("file"));
    expect_status(import_from(below("file"), "/proc/self/nowhere", NULL), CONVJIT_FILE_FAILED, "/proc/self/nowhere");
}

/* When this fails, no older archive can be read: intended only together with a new format version. */
Test(archive, is_written_and_read_as_in_the_golden_file) {
    static unsigned char bytes[2][4096];
    static unsigned char entry[4096];
    char name[64];
    const size_t entry_size = read_all("tests/golden/entry_v1.bin", entry, sizeof entry);
    cr_assert_eq(mkdir(below("cache"), 0700), 0);
    cr_assert_eq(mkdir(below("cache/00"), 0700), 0);
    snprintf(name, sizeof name, "cache/00/%s.entry", "112233445566778899aabbccddeeff");
    write_all(below(name), entry, entry_size);
    cr_expect_eq(export_to(below("cache"), below("file")), 1);
    const size_t size = read_all("tests/golden/archive_v1.bin", bytes[0], sizeof bytes[0]);
    cr_expect_eq(read_all(below("file"), bytes[1], sizeof bytes[1]), size);
    cr_expect_arr_eq(bytes[0], bytes[1], size);
    cr_expect_eq(import_from("tests/golden/archive_v1.bin", below("new"), NULL), CONVJIT_SUCCESS);
    snprintf(name, sizeof name, "new/00/%s.entry", "112233445566778899aabbccddeeff");
    cr_expect_eq(read_all(below(name), bytes[1], sizeof bytes[1]), entry_size);
    cr_expect_arr_eq(bytes[1], entry, entry_size);
}

/* ------------------------------------------------------------------------------------------------------- list --- */

typedef struct seen {
    int count, unsound;
    char last_path[512];
    char last_problem[64];
} seen;

static void see(void *user, const convjit_cache_entry *entry) {
    seen *all = user;
    all->count++;
    snprintf(all->last_path, sizeof all->last_path, "%s", entry->path);
    if (entry->problem != NULL) {
        all->unsound++;
        snprintf(all->last_problem, sizeof all->last_problem, "%s", entry->problem);
        cr_expect(entry->target == NULL && entry->line == NULL && entry->binary == NULL && entry->binary_bytes == 0);
    } else {
        cr_expect_str_eq(entry->target, "sm_80");
        cr_expect_str_eq(entry->compiler, "nvrtc 1");
        cr_expect_str_eq(entry->family, "direct");
        cr_expect_str_eq(entry->line, "conv2d");
        cr_expect_eq(entry->threads, 64);
        cr_expect_eq(entry->shared_bytes, 1024);
        cr_expect_eq(memcmp(entry->binary, "one", 3), 0);
        cr_expect_eq(entry->binary_bytes, 3);
        cr_expect_gt(entry->used, 1000000000);
        cr_expect_eq(strlen(entry->key), 32);
    }
}

Test(archive, list_reads_every_entry_of_every_directory) {
    char path[4 * TESTING_PATH_MAX];
    seen all = {0};
    snprintf(path, sizeof path, "%s:%s", below("own"), below("image"));
    const convjit_options options = options_of(path);
    cr_expect_eq(convjit_cache_list(&options, see, &all), CONVJIT_SUCCESS);
    cr_expect_eq(all.count, 0);
    plant("own", 1, "one");
    plant("own", 3, "one");
    plant("image", 1, "one");
    const cj_entry spoiled = make_entry(1, "one", 3);
    cr_assert_eq(truncate(entry_file(below("image"), &spoiled.key), 100), 0);
    cr_expect_eq(convjit_cache_list(&options, see, &all), CONVJIT_SUCCESS);
    cr_expect_eq(all.count, 3);
    cr_expect_eq(all.unsound, 1);
    cr_expect_str_eq(all.last_problem, "truncated");
    cr_expect_str_eq(all.last_path, entry_file(below("image"), &spoiled.key));
}

Test(archive, calls_refuse_what_is_none) {
    convjit_options options = CONVJIT_OPTIONS_INIT;
    convjit_cache_totals totals;
    expect_status(convjit_cache_list(&options, NULL, NULL), CONVJIT_INVALID_ARGUMENT, "visit is NULL");
    expect_status(convjit_cache_trim(&options, 0, NULL, NULL, NULL), CONVJIT_INVALID_ARGUMENT, "totals is NULL");
    expect_status(convjit_cache_export(&options, NULL, NULL), CONVJIT_INVALID_ARGUMENT, "file is NULL");
    expect_status(convjit_cache_import(&options, NULL, NULL), CONVJIT_INVALID_ARGUMENT, "file is NULL");
    options.cache_size = "many";
    expect_status(convjit_cache_trim(&options, 0, NULL, NULL, &totals), CONVJIT_INVALID_ARGUMENT,
                  "cache trim failed: cache_size is \"many\", must be a number of bytes");
    options.struct_size = 3;
    expect_status(convjit_cache_list(&options, see, NULL), CONVJIT_INVALID_ARGUMENT, "struct_size 3, must be ");
}

Test(archive, directory_is_the_one_that_is_written) {
    char path[TESTING_PATH_MAX];
    char list[2 * TESTING_PATH_MAX];
    snprintf(list, sizeof list, "%s:/image", below("own"));
    const convjit_options options = options_of(list);
    cr_expect_eq(convjit_cache_directory(&options, path, sizeof path), CONVJIT_SUCCESS);
    cr_expect_str_eq(path, below("own"));
    expect_status(convjit_cache_directory(&options, path, 4), CONVJIT_FILE_FAILED, "longer than 4 bytes");
    unsetenv("HOME");
    char trap[64];
    snprintf(trap, sizeof trap, "trap/convjit-%lu", (unsigned long)geteuid());
    cr_assert_eq(mkdir(below("trap"), 0700), 0);
    setenv("TMPDIR", below("trap"), 1);
    write_file(below(trap), "no directory");
    expect_status(convjit_cache_directory(NULL, path, sizeof path), CONVJIT_FILE_FAILED, "it is not a directory");
}

static void count_removed(void *user, const convjit_cache_entry *entry) {
    cr_expect_eq(entry->bytes > 0, true);
    ++*(int *)user;
}

Test(archive, trim_works_on_the_written_directory) {
    convjit_options options = options_of(below("cache"));
    convjit_cache_totals totals;
    int removed = 0;
    plant("cache", 1, "one");
    plant("cache", 2, "two");
    options.cache_size = "1";
    cr_expect_eq(convjit_cache_trim(&options, 1, count_removed, &removed, &totals), CONVJIT_SUCCESS);
    cr_expect_eq(totals.files, 2);
    cr_expect_eq(totals.removed, 2);
    cr_expect_eq(removed, 2);
    cr_expect_eq(convjit_cache_trim(&options, 0, NULL, NULL, &totals), CONVJIT_SUCCESS);
    cr_expect_eq(totals.removed, 2);
    cr_expect_eq(convjit_cache_trim(&options, 0, NULL, NULL, &totals), CONVJIT_SUCCESS);
    cr_expect_eq(totals.files, 0);
}
