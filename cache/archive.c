/* archive.c - writes and reads files of many entries; the format stands in archive.h. */
#include "archive.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "directory.h"
#include "status.h"

static const char magic[8] = {'c', 'j', 'a', 'r', 'c', 'h', 'i', 'v'};

/* Written to disk: never reused. */
enum { FORMAT_VERSION = 1 };

enum { AT_VERSION = 8, HEAD_SIZE = 16, TAIL_SIZE = 32, AT_TAIL_COUNT = 0, AT_TAIL_SIZE = 8, AT_TAIL_CHECKSUM = 16 };

struct cj_archive {
    XXH3_state_t hash;
    FILE *file;
    uint64_t count;
    uint64_t size; /* bytes so far */
    char path[PATH_MAX];
    char temporary[PATH_MAX];
};

static void put(unsigned char *at, size_t bytes, uint64_t value) {
    for (size_t i = 0; i < bytes; i++) {
        at[i] = (unsigned char)(value >> (8 * i));
    }
}

static uint64_t get(const unsigned char *at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}

static void digest(const XXH3_state_t *hash, unsigned char out[sizeof(XXH128_canonical_t)]) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
    memcpy(out, canonical.digest, sizeof canonical.digest);
}

/* ------------------------------------------------------------------------------------------------------- write --- */

static convjit_status fail_writing(const cj_archive *archive) {
    return cj_fail(CONVJIT_FILE_FAILED, "cannot write %s: %s", archive->path, strerror(errno));
}

static convjit_status append(cj_archive *archive, const void *bytes, size_t size) {
    XXH3_128bits_update(&archive->hash, bytes, size);
    archive->size += size;
    return fwrite(bytes, 1, size, archive->file) == size ? CONVJIT_SUCCESS : fail_writing(archive);
}

convjit_status cj_archive_begin(const char *path, cj_archive **out) {
    unsigned char head[HEAD_SIZE] = {0};
    cj_archive *archive = malloc(sizeof *archive);
    CJ_RETURN_IF(archive == NULL, CONVJIT_OUT_OF_MEMORY, "no memory to write %s", path);
    archive->count = archive->size = 0;
    archive->file = NULL;
    XXH3_INITSTATE(&archive->hash);
    XXH3_128bits_reset(&archive->hash);
    snprintf(archive->path, sizeof archive->path, "%s", path);
    const int length = snprintf(archive->temporary, sizeof archive->temporary, "%s.%ld.tmp", path, (long)getpid());
    errno = ENAMETOOLONG;
    archive->file = length < PATH_MAX ? fopen(archive->temporary, "wbxe") : NULL; /* x: nobody else's file */
    convjit_status status = archive->file != NULL ? CONVJIT_SUCCESS : fail_writing(archive);
    memcpy(head, magic, sizeof magic);
    put(head + AT_VERSION, 4, FORMAT_VERSION);
    if (status == CONVJIT_SUCCESS) {
        status = append(archive, head, sizeof head);
    }
    if (status != CONVJIT_SUCCESS) {
        cj_archive_abandon(archive);
        return status;
    }
    *out = archive;
    return CONVJIT_SUCCESS;
}

convjit_status cj_archive_add(cj_archive *archive, const void *entry_bytes, size_t size) {
    archive->count++;
    return append(archive, entry_bytes, size);
}

convjit_status cj_archive_end(cj_archive *archive) {
    unsigned char tail[TAIL_SIZE];
    put(tail + AT_TAIL_COUNT, 8, archive->count);
    put(tail + AT_TAIL_SIZE, 8, archive->size + TAIL_SIZE);
    convjit_status status = append(archive, tail, AT_TAIL_CHECKSUM);
    digest(&archive->hash, tail + AT_TAIL_CHECKSUM);
    if (status == CONVJIT_SUCCESS) {
        status = append(archive, tail + AT_TAIL_CHECKSUM, TAIL_SIZE - AT_TAIL_CHECKSUM);
    }
    FILE *file = archive->file;
    archive->file = NULL;
    if (fclose(file) != 0 && status == CONVJIT_SUCCESS) {
        status = fail_writing(archive);
    }
    if (status == CONVJIT_SUCCESS && rename(archive->temporary, archive->path) != 0) {
        status = fail_writing(archive);
    }
    if (status != CONVJIT_SUCCESS) {
        cj_archive_abandon(archive);
        return status;
    }
    free(archive);
    return CONVJIT_SUCCESS;
}

/* A temporary that was never ours (its name was taken) is not removed. */
void cj_archive_abandon(cj_archive *archive) {
    if (archive == NULL) {
        return;
    }
    if (archive->file != NULL) {
        fclose(archive->file);
    }
    if (archive->size > 0) {
        unlink(archive->temporary);
    }
    free(archive);
}

/* -------------------------------------------------------------------------------------------------------- read --- */

#define RETURN_IF_DAMAGED(condition, reason) \
    CJ_RETURN_IF(condition, CONVJIT_FILE_FAILED, "%s is of no use: %s", path, reason)

/* Hashes `size` bytes from here on. */
static bool hash_part(FILE *file, uint64_t size, XXH3_state_t *hash) {
    static _Thread_local unsigned char part[1 << 16];
    while (size > 0) {
        const size_t wanted = size < sizeof part ? (size_t)size : sizeof part;
        if (fread(part, 1, wanted, file) != wanted) {
            return false;
        }
        XXH3_128bits_update(hash, part, wanted);
        size -= wanted;
    }
    return true;
}

/* Is this a whole archive, as it was written? Nothing else in it is looked at before. */
static convjit_status check_whole(FILE *file, const char *path, uint64_t *count, uint64_t *size) {
    unsigned char head[HEAD_SIZE];
    unsigned char tail[TAIL_SIZE];
    unsigned char actual[TAIL_SIZE - AT_TAIL_CHECKSUM];
    XXH3_state_t hash;
    const off_t end = fseeko(file, 0, SEEK_END) == 0 ? ftello(file) : -1;
    rewind(file);
    RETURN_IF_DAMAGED(end < HEAD_SIZE || fread(head, 1, sizeof head, file) != sizeof head ||
                          memcmp(head, magic, sizeof magic) != 0,
                      "no archive of convjit");
    RETURN_IF_DAMAGED(get(head + AT_VERSION, 4) != FORMAT_VERSION, "another format version");
    RETURN_IF_DAMAGED(end < HEAD_SIZE + TAIL_SIZE || fseeko(file, -TAIL_SIZE, SEEK_END) != 0 ||
                          fread(tail, 1, sizeof tail, file) != sizeof tail ||
                          get(tail + AT_TAIL_SIZE, 8) != (uint64_t)end,
                      "truncated");
    XXH3_INITSTATE(&hash);
    XXH3_128bits_reset(&hash);
    rewind(file);
    RETURN_IF_DAMAGED(!hash_part(file, (uint64_t)end - sizeof actual, &hash), "it changes while it is read");
    digest(&hash, actual);
    RETURN_IF_DAMAGED(memcmp(actual, tail + AT_TAIL_CHECKSUM, sizeof actual) != 0, "checksum");
    *count = get(tail + AT_TAIL_COUNT, 8);
    *size = (uint64_t)end;
    return CONVJIT_SUCCESS;
}

/* The next entry, of at most `most` bytes, in malloc'ed bytes. */
static convjit_status read_entry(FILE *file, const char *path, uint64_t most, void **bytes, size_t *size) {
    unsigned char head[CJ_ENTRY_SIZE_AT + 8];
    RETURN_IF_DAMAGED(most < sizeof head || fread(head, 1, sizeof head, file) != sizeof head,
                      "it ends within an entry");
    const uint64_t stated = get(head + CJ_ENTRY_SIZE_AT, 8);
    RETURN_IF_DAMAGED(stated < sizeof head || stated > most || stated > CJ_FILE_SIZE_MAX,
                      "an entry is larger than it may be");
    *size = (size_t)stated;
    *bytes = malloc(*size);
    CJ_RETURN_IF(*bytes == NULL, CONVJIT_OUT_OF_MEMORY, "no memory for an entry of %s", path);
    memcpy(*bytes, head, sizeof head);
    const bool whole =
        fread((unsigned char *)*bytes + sizeof head, 1, *size - sizeof head, file) == *size - sizeof head;
    if (!whole) {
        free(*bytes);
    }
    RETURN_IF_DAMAGED(!whole, "it ends within an entry");
    return CONVJIT_SUCCESS;
}

static convjit_status take_entries(FILE *file, const char *path, cj_archive_fn take, void *user) {
    uint64_t count;
    uint64_t size;
    CJ_TRY(check_whole(file, path, &count, &size));
    uint64_t left = size - HEAD_SIZE - TAIL_SIZE;
    RETURN_IF_DAMAGED(fseeko(file, HEAD_SIZE, SEEK_SET) != 0, strerror(errno));
    for (uint64_t i = 0; i < count; i++) {
        void *bytes;
        size_t entry_size;
        cj_entry entry;
        CJ_TRY(read_entry(file, path, left, &bytes, &entry_size));
        left -= entry_size;
        const char *fault = cj_entry_decode(bytes, entry_size, &entry);
        const convjit_status status = fault == NULL ? take(user, &entry) : CONVJIT_FILE_FAILED;
        free(bytes);
        RETURN_IF_DAMAGED(fault != NULL, fault);
        CJ_TRY(status);
    }
    RETURN_IF_DAMAGED(left != 0, "it holds more than its entries");
    return CONVJIT_SUCCESS;
}

convjit_status cj_archive_read(const char *path, cj_archive_fn take, void *user) {
    FILE *file = fopen(path, "rbe");
    CJ_RETURN_IF(file == NULL, CONVJIT_FILE_FAILED, "cannot read %s: %s", path, strerror(errno));
    const convjit_status status = take_entries(file, path, take, user);
    fclose(file);
    return status;
}
