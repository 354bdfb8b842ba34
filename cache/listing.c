#include "listing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FOLDER_DIGITS = 2, FILE_DIGITS = 2 * CJ_KEY_BYTES - FOLDER_DIGITS };

static bool is_hexadecimal(const char *name, size_t digits) {
    return strspn(name, "0123456789abcdef") == digits;
}

static bool ends_with(const char *name, const char *suffix) {
    const size_t length = strlen(name);
    const size_t suffix_length = strlen(suffix);
    return length > suffix_length && strcmp(name + length - suffix_length, suffix) == 0;
}

/* Is a file of this name ours? */
static bool is_ours(const char *name, bool *temporary) {
    *temporary = ends_with(name, ".tmp");
    const char *suffix = name + FILE_DIGITS;
    return *temporary ||
           (is_hexadecimal(name, FILE_DIGITS) && (strcmp(suffix, ".entry") == 0 || strcmp(suffix, ".fields") == 0));
}

bool cj_file_is_entry(const cj_file *file) {
    return ends_with(file->name, ".entry");
}

static cj_file *append(cj_listing *list) {
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity > 0 ? 2 * list->capacity : 256;
        cj_file *grown = realloc(list->files, capacity * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        list->files = grown;
        list->capacity = capacity;
    }
    return &list->files[list->count++];
}

static int list_folder(DIR *folder, const char *folder_name, cj_listing *out) {
    for (const struct dirent *at; (at = readdir(folder)) != NULL;) {
        struct stat info;
        bool temporary;
        if (!is_ours(at->d_name, &temporary) || fstatat(dirfd(folder), at->d_name, &info, 0) != 0 ||
            !S_ISREG(info.st_mode) || strlen(at->d_name) + sizeof "ab/" > CJ_DIRECTORY_NAME_MAX) {
            continue;
        }
        cj_file *file = append(out);
        if (file == NULL) {
            return ENOMEM;
        }
        *file = (cj_file){.temporary = temporary, .size = (uint64_t)info.st_size, .used = info.st_mtime};
        snprintf(file->name, sizeof file->name, "%.2s/%.180s", folder_name, at->d_name);
    }
    return 0;
}

/* The folder's files. O_NOFOLLOW: a link leads out of the cache. */
static int list_folder_at(DIR *root, const char *name, cj_listing *out) {
    const int file = openat(dirfd(root), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = file >= 0 ? fdopendir(file) : NULL;
    if (folder == NULL) {
        if (file >= 0) {
            close(file);
        }
        return 0;
    }
    const int error = list_folder(folder, name, out);
    closedir(folder);
    return error;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const cj_file *)a)->name, ((const cj_file *)b)->name);
}

int cj_listing_make(const cj_directory *of, cj_listing *out) {
    *out = (cj_listing){0};
    bool exists;
    if (of->among_others && cj_directory_distrust(of->path, &exists) != NULL) {
        return 0;
    }
    DIR *root = opendir(of->path);
    if (root == NULL) {
        return errno == ENOENT || errno == ENOTDIR ? 0 : errno;
    }
    int error = 0;
    for (const struct dirent *at; error == 0 && (at = readdir(root)) != NULL;) {
        if (strlen(at->d_name) == FOLDER_DIGITS && is_hexadecimal(at->d_name, FOLDER_DIGITS)) {
            error = list_folder_at(root, at->d_name, out);
        }
    }
    closedir(root);
    if (out->count > 0) {
        qsort(out->files, out->count, sizeof *out->files, compare_names);
    }
    return error;
}

void cj_listing_free(cj_listing *listing) {
    free(listing->files);
    *listing = (cj_listing){0};
}
