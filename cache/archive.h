/* archive.h - many entries in one file, for a container layer or another machine.
 *
 * Format, version 1. Numbers are unsigned and little-endian.
 *
 *   offset  size  meaning
 *        0     8  magic, "cjarchiv"
 *        8     4  format version, 1
 *       12     4  0
 *       16        entries, one behind the other, each as in a file of its own (entry.h), which states its size
 *   end-32     8  number of entries
 *   end-24     8  size of the whole file
 *   end-16    16  checksum: XXH3, 128 bits, of everything before it, in its canonical byte order
 *
 * Nothing in it depends on where it was made. Whatever does not fit this table makes the whole file one that nothing is
 * taken from. */
#ifndef CJ_ARCHIVE_H
#define CJ_ARCHIVE_H

#include "convjit.h"
#include "entry.h"

/* Writing: all entries go into a temporary beside the file, and only the end gives it its name. FILE_FAILED,
 * OUT_OF_MEMORY; after a failure, and instead of the end, abandon. */
typedef struct cj_archive cj_archive;
convjit_status cj_archive_begin(const char *path, cj_archive **out);
convjit_status cj_archive_add(cj_archive *archive, const void *entry_bytes, size_t size);
convjit_status cj_archive_end(cj_archive *archive);
void cj_archive_abandon(cj_archive *archive); /* NULL is ignored */

/* Reading: checks the whole file, then calls `take` with each entry, in order, until one call fails. FILE_FAILED where
 * the file cannot be read or is damaged (then `take` was not called), or what `take` returned. */
typedef convjit_status (*cj_archive_fn)(void *user, const cj_entry *entry);
convjit_status cj_archive_read(const char *path, cj_archive_fn take, void *user);

#endif
