/* report.h - rows with named columns, printed as an aligned table or as JSON, so that both hold the same. */
#ifndef REPORT_H
#define REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct report_column {
    const char *name;  /* in JSON */
    const char *title; /* in the table; NULL: only in JSON */
    int digits;        /* behind the point, in the table; TEXT: not a number, REPORT_POWER: as a power of two */
} report_column;
enum { REPORT_COLUMNS_MAX = 24 };
enum { REPORT_TEXT = -1, REPORT_POWER = -2 };

typedef struct report report;

/* NULL when memory is used up. At most REPORT_COLUMNS_MAX columns, the last one with a title. A cell that finds no
 * memory later is lost, and report_failed() says so. */
report *report_create(const report_column *columns, size_t count);
void report_free(report *of);
bool report_failed(const report *of);

/* The next cell, from left to right; a new row begins by itself. NULL and NaN are absent: "-", null in JSON. */
void report_text(report *of, const char *text);
void report_number(report *of, double number);

void report_table(const report *of, FILE *out);
void report_json(const report *of, FILE *out); /* an array of objects */

/* A text in quotes, escaped; NULL as null. A number with all its digits; Inf as 1e999 (too large for a double, which
 * is how readers of JSON take it), NaN as null. */
void json_text(FILE *out, const char *text);
void json_number(FILE *out, double number);

#endif
