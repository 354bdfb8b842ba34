/* report.c - one list of cells, two ways to print it. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct cell {
    char *text;
    double number;
} cell;

struct report {
    const report_column *columns;
    size_t column_count;
    cell *cells; /* row by row */
    size_t count, capacity;
    bool failed;
};

report *report_create(const report_column *columns, size_t count) {
    report *of = calloc(1, sizeof *of);
    if (of != NULL) {
        of->columns = columns;
        of->column_count = count;
    }
    return of;
}

void report_free(report *of) {
    if (of == NULL) {
        return;
    }
    for (size_t i = 0; i < of->count; i++) {
        free(of->cells[i].text);
    }
    free(of->cells);
    free(of);
}

bool report_failed(const report *of) {
    return of->failed;
}

static void add(report *of, cell added) {
    if (of->count == of->capacity) {
        const size_t capacity = of->capacity > 0 ? 2 * of->capacity : 128;
        cell *grown = realloc(of->cells, capacity * sizeof *grown);
        if (grown == NULL) {
            of->failed = true;
            free(added.text);
            return;
        }
        of->cells = grown;
        of->capacity = capacity;
    }
    of->cells[of->count++] = added;
}

void report_text(report *of, const char *text) {
    cell added = {NULL, NAN};
    if (text != NULL) {
        added.text = strdup(text);
        of->failed = of->failed || added.text == NULL;
    }
    add(of, added);
}

void report_number(report *of, double number) {
    add(of, (cell){NULL, number});
}

/* A cell as the table shows it. */
static void show(const report_column *column, const cell *of, char *text, size_t size) {
    if (column->digits == REPORT_TEXT) {
        (void)snprintf(text, size, "%s", of->text != NULL ? of->text : "-");
    } else if (isnan(of->number)) {
        (void)snprintf(text, size, "-");
    } else if (column->digits == REPORT_POWER && of->number > 0.0 && isfinite(of->number)) {
        (void)snprintf(text, size, "2^%.1f", log2(of->number));
    } else {
        (void)snprintf(text, size, "%.*f", column->digits > 0 ? column->digits : 0, of->number);
    }
}

enum { CELL_MAX = 1024 };

/* Widest text of a column, its title included. */
static int width_of(const report *of, size_t column) {
    size_t widest = strlen(of->columns[column].title);
    for (size_t i = column; i < of->count; i += of->column_count) {
        char text[CELL_MAX];
        show(&of->columns[column], &of->cells[i], text, sizeof text);
        widest = strlen(text) > widest ? strlen(text) : widest;
    }
    return (int)widest;
}

/* Texts to the left, numbers to the right; the last column without trailing spaces. */
static void print_cell(const report *of, size_t column, int width, const char *text, FILE *out) {
    const bool left = of->columns[column].digits == REPORT_TEXT;
    const bool last = column + 1 == of->column_count;
    (void)fprintf(out, left ? "%-*s%s" : "%*s%s", last && left ? 0 : width, text, last ? "\n" : "  ");
}

void report_table(const report *of, FILE *out) {
    int widths[REPORT_COLUMNS_MAX] = {0};
    for (size_t column = 0; column < of->column_count; column++) {
        if (of->columns[column].title != NULL) {
            widths[column] = width_of(of, column);
            print_cell(of, column, widths[column], of->columns[column].title, out);
        }
    }
    for (size_t row = 0; row + of->column_count <= of->count; row += of->column_count) {
        for (size_t column = 0; column < of->column_count; column++) {
            char text[CELL_MAX];
            if (of->columns[column].title != NULL) {
                show(&of->columns[column], &of->cells[row + column], text, sizeof text);
                print_cell(of, column, widths[column], text, out);
            }
        }
    }
}

void report_json(const report *of, FILE *out) {
    (void)fputc('[', out);
    for (size_t row = 0; row + of->column_count <= of->count; row += of->column_count) {
        (void)fputs(row > 0 ? ",\n    {" : "\n    {", out);
        for (size_t column = 0; column < of->column_count; column++) {
            const cell *shown = &of->cells[row + column];
            (void)fprintf(out, "%s\"%s\": ", column > 0 ? ", " : "", of->columns[column].name);
            if (of->columns[column].digits == REPORT_TEXT) {
                json_text(out, shown->text);
            } else {
                json_number(out, shown->number);
            }
        }
        (void)fputc('}', out);
    }
    (void)fputs("\n  ]", out);
}

void json_text(FILE *out, const char *text) {
    if (text == NULL) {
        (void)fputs("null", out);
        return;
    }
    (void)fputc('"', out);
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            (void)fprintf(out, "\\%c", *c);
        } else if ((unsigned char)*c < 0x20) {
            (void)fprintf(out, "\\u%04x", (unsigned)(unsigned char)*c);
        } else {
            (void)fputc(*c, out);
        }
    }
    (void)fputc('"', out);
}

void json_number(FILE *out, double number) {
    if (isnan(number)) {
        (void)fputs("null", out);
    } else if (isinf(number)) {
        (void)fputs(number > 0.0 ? "1e999" : "-1e999", out);
    } else {
        (void)fprintf(out, "%.9g", number);
    }
}
