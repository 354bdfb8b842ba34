/* cache_fixture.h - a private folder, a store in it and entries for it: what the tests of the cache share. */
#ifndef CACHE_FIXTURE_H
#define CACHE_FIXTURE_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/store.h"
#include "testing.h"

static char folder[TESTING_PATH_MAX]; /* private to the test; removed at its end */

/* No setting and no directory of the user who runs the tests may reach them. */
static inline void enter(void) {
    cr_assert(testing_folder_make(folder));
    unsetenv("CONVJIT_CACHE_DIR");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", folder, 1);
    setenv("TMPDIR", folder, 1);
}

static inline void leave(void) {
    testing_folder_remove(folder);
}

/* FOLDER/NAME; the last four results stay valid. */
static inline const char *below(const char *name) {
    static char paths[4][TESTING_PATH_MAX + 128];
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

static inline cj_store *open_store(const char *directory) {
    cj_store *store = cj_store_open(directory);
    cr_assert(store != NULL);
    return store;
}

static inline void write_ok(cj_store *store, const cj_entry *entry) {
    char reason[160] = "";
    cr_assert(cj_store_write(store, entry, reason), "%s", reason);
}

static inline void expect_hit(cj_store *store, const cj_entry *entry) {
    cj_read read;
    const cj_read_result result = cj_store_read(store, &entry->key, entry->target, &read);
    cr_assert_eq(result, CJ_READ_HIT, "%d %s", result, read.reason);
    cr_expect_eq(read.entry.binary_size, entry->binary_size);
    cr_expect_arr_eq(read.entry.binary, entry->binary, entry->binary_size);
    free(read.bytes);
}

static inline void expect_absent(cj_store *store, const cj_entry *entry) {
    cj_read read;
    cr_expect_eq(cj_store_read(store, &entry->key, entry->target, &read), CJ_READ_ABSENT);
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

#endif
