/* record.h - the record file: the layer line of every layer that was asked for, to be warmed elsewhere. */
#ifndef CJ_RECORD_H
#define CJ_RECORD_H

#include "log.h"

typedef struct cj_record cj_record;

/* Opens the file to append to; NULL takes that of the setting, and without one nothing is recorded. A file that cannot
 * be opened is only logged. NULL where memory is used up. */
cj_record *cj_record_open(const char *path, const cj_log *log);
void cj_record_close(cj_record *record); /* NULL is ignored */

/* Appends a line, unless it did so before. Several threads and processes may append to one file. */
void cj_record_add(cj_record *record, const char *line, const cj_log *log);

#endif
