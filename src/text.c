#include "text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for `more` bytes and the NUL. */
static bool reserve(cj_text *text, size_t more) {
    if (text->failed || more >= SIZE_MAX - text->size) {
        text->failed = true;
        return false;
    }
    const size_t needed = text->size + more + 1;
    if (needed <= text->capacity) {
        return true;
    }
    size_t capacity = text->capacity > 0 ? text->capacity : 256;
    while (capacity < needed) {
        capacity = capacity > SIZE_MAX / 2 ? needed : 2 * capacity;
    }
    char *data = realloc(text->data, capacity);
    if (data == NULL) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void cj_text_add(cj_text *text, const char *bytes, size_t size) {
    if (!reserve(text, size)) {
        return;
    }
    if (size > 0) {
        memcpy(text->data + text->size, bytes, size);
    }
    text->size += size;
    text->data[text->size] = '\0';
}

void cj_text_printf(cj_text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    const int length = vsnprintf(NULL, 0, format, arguments);
    if (length < 0) {
        text->failed = true;
    } else if (reserve(text, (size_t)length)) {
        vsnprintf(text->data + text->size, (size_t)length + 1, format, again);
        text->size += (size_t)length;
    }
    va_end(again);
    va_end(arguments);
}

void cj_text_free(cj_text *text) {
    free(text->data);
    *text = (cj_text){0};
}
