/* cache_fixture.h - a private folder, a store in it and entries for it: what the tests of the cache share. */
#ifndef CACHE_FIXTURE_H
#define CACHE_FIXTURE_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/store.h"
#include "testing.h"

static char folder[TESTING_PATH_MAX]; /* private to the test; removed at its end */

/* No setting and no directory of the user who runs the tests may reach them. */
static inline void enter(void) {
    cr_assert(testing_folder_make(folder));
    unsetenv("CONVJIT_CACHE_DIR");
    unsetenv("CONVJIT_CACHE_MODE");
    unsetenv("CONVJIT_CACHE_FIELDS");
    unsetenv("CONVJIT_CACHE_SIZE");
    unsetenv("CONVJIT_RECORD");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", folder, 1);
    setenv("TMPDIR", folder, 1);
}

static inline void leave(void) {
    testing_folder_remove(folder);
}

/* FOLDER/NAME; the last four results stay valid. */
static inline const char *below(const char *name) {
    static char paths[4][TESTING_PATH_MAX + 512];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline cj_entry make_entry(unsigned char seed, const void *binary, size_t size) {
    cj_entry entry = {.target = "sm_80",
                      .compiler = "nvrtc 1",
                      .version = "0",
                      .family = "direct",
                      .line = "conv2d",
                      .threads = 64,
                      .shared_bytes = 1024,
                      .binary = binary,
                      .binary_size = size};
    memset(entry.key.bytes, seed, CJ_KEY_BYTES);
    cj_key_spell(&entry.key);
    return entry;
}

static inline cj_entry sample(void) {
    return make_entry(0xab, "the binary", 10);
}

/* Where the entry of a key lies below a root. */
static inline const char *entry_file(const char *root, const cj_key *key) {
    static char path[TESTING_PATH_MAX + 256];
    snprintf(path, sizeof path, "%s/%.2s/%s.entry", root, key->hex, key->hex + 2);
    return path;
}

static inline cj_store *open_store_in(const char *directory, convjit_cache_mode mode) {
    convjit_options options = CONVJIT_OPTIONS_INIT;
    options.cache_directory = directory;
    options.cache_mode = mode;
    cj_store *store;
    cr_assert_eq(cj_store_open(&options, &store), CONVJIT_SUCCESS, "%s", convjit_last_error());
    return store;
}

static inline cj_store *open_store(const char *directory) {
    return open_store_in(directory, CONVJIT_CACHE_DEFAULT);
}

/* Asks for this very entry. */
static inline cj_read_result read_store(cj_store *store, const cj_entry *entry, cj_read *out) {
    const cj_wanted wanted = {
        .key = entry->key, .target = entry->target, .threads = entry->threads, .shared_bytes = entry->shared_bytes};
    return cj_store_read(store, &wanted, out);
}

/* The entry of a key, of whatever launch and compiler; false where there is no sound one. */
static inline bool read_file_of(const char *root, const cj_key *key, cj_read *out) {
    FILE *file = fopen(entry_file(root, key), "rb");
    if (file == NULL) {
        return false;
    }
    out->bytes = malloc(1 << 20);
    const size_t size = fread(out->bytes, 1, 1 << 20, file);
    fclose(file);
    const char *fault = cj_entry_decode(out->bytes, size, &out->entry);
    if (fault != NULL) {
        free(out->bytes);
    }
    return fault == NULL;
}

static inline void write_ok(cj_store *store, const cj_entry *entry) {
    char reason[160] = "";
    cr_assert(cj_store_write(store, entry, reason), "%s", reason);
}

static inline void expect_hit(cj_store *store, const cj_entry *entry) {
    cj_read read;
    const cj_read_result result = read_store(store, entry, &read);
    cr_assert_eq(result, CJ_READ_HIT, "%d %s", result, read.reason);
    cr_expect_eq(read.entry.binary_size, entry->binary_size);
    cr_expect_arr_eq(read.entry.binary, entry->binary, entry->binary_size);
    free(read.bytes);
}

static inline void expect_absent(cj_store *store, const cj_entry *entry) {
    cj_read read;
    cr_expect_eq(read_store(store, entry, &read), CJ_READ_ABSENT);
    cr_expect(read.bytes == NULL);
}

static inline void expect_write_fails(cj_store *store, const cj_entry *entry, const char *part_of_reason) {
    char reason[160] = "";
    cr_expect(!cj_store_write(store, entry, reason));
    cr_expect(strstr(reason, part_of_reason) != NULL, "\"%s\" lacks \"%s\"", reason, part_of_reason);
}

static inline void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    cr_assert(file != NULL, "%s: %s", path, strerror(errno));
    fputs(text, file);
    fclose(file);
}

static inline int count_files(const char *path) {
    DIR *directory = opendir(path);
    int count = 0;
    while (directory != NULL && readdir(directory) != NULL) {
        count++;
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return count - 2; /* . and .. */
}

/* User 0 is bound by no permission: becomes another user for the test. */
static inline bool become_ordinary(void) {
    chmod(folder, 0777);
    return geteuid() != 0 || seteuid(65534) == 0;
}

static inline void become_oneself(void) {
    cr_assert_eq(seteuid(getuid()), 0);
    prctl(PR_SET_DUMPABLE, 1); /* LeakSanitizer has to attach to us */
}

#endif
