/* status.c - status names and this thread's error text.
 *
 * A text shorter than SHORT_TEXT lies in thread-local memory, so that it needs no allocation (it may be the report of a
 * failed one). Only longer texts, which are compiler logs, lie on the heap. A pthread key owns those: its destructor
 * frees the text of a thread that ends, and tells a later caller in that thread (another key's destructor) that the
 * text is gone. */
#include "status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_TEXT = 1024 }; /* holds a prefix, a layer line and a reason */

static _Thread_local char short_text[SHORT_TEXT];

static pthread_once_t long_text_once = PTHREAD_ONCE_INIT;
static pthread_key_t long_text_key; /* the heap text; NULL: the text is short_text */
static bool long_text_usable;

static void make_long_text_key(void) {
    long_text_usable = pthread_key_create(&long_text_key, free) == 0;
}

/* A library that is unloaded must not leave a destructor behind that points into it. */
__attribute__((destructor)) static void delete_long_text_key(void) {
    pthread_once(&long_text_once, make_long_text_key);
    if (long_text_usable) {
        free(pthread_getspecific(long_text_key));
        pthread_key_delete(long_text_key);
        long_text_usable = false;
    }
}

static char *get_long_text(void) {
    pthread_once(&long_text_once, make_long_text_key);
    return long_text_usable ? pthread_getspecific(long_text_key) : NULL;
}

/* Takes ownership of `text` (NULL: back to the short text). The old one is freed last: `text` was made from it. */
static bool set_long_text(char *text) {
    char *old = get_long_text();
    if (text == NULL && old == NULL) {
        return true;
    }
    if (!long_text_usable || pthread_setspecific(long_text_key, text) != 0) {
        return false;
    }
    free(old);
    return true;
}

/* Writes the end of a text that was cut, so that a reader sees it. */
static void mark_cut(char text[SHORT_TEXT]) {
    memcpy(text + SHORT_TEXT - sizeof "...", "...", sizeof "...");
}

static char *format_long(size_t length, const char *format, va_list arguments) {
    char *text = malloc(length + 1);
    if (text != NULL) {
        vsnprintf(text, length + 1, format, arguments);
    }
    return text;
}

/* The arguments may point into the current text, so the new one is whole before the current one is touched. */
static void set_text(const char *format, va_list arguments) {
    char text[SHORT_TEXT];
    va_list again;
    va_copy(again, arguments);
    const int length = vsnprintf(text, sizeof text, format, arguments);
    if (length < 0) { /* an argument longer than INT_MAX, or one that the C library cannot print */
        snprintf(text, sizeof text, "%s", format);
    }
    bool done = false;
    if (length >= SHORT_TEXT) {
        char *long_text = format_long((size_t)length, format, again);
        done = long_text != NULL && set_long_text(long_text);
        if (!done) {
            free(long_text);
            mark_cut(text);
        }
    }
    va_end(again);
    if (!done) {
        set_long_text(NULL);
        memcpy(short_text, text, strlen(text) + 1);
    }
}

convjit_status cj_fail(convjit_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    set_text(format, arguments);
    va_end(arguments);
    return status;
}

convjit_status cj_fail_prefix(convjit_status status, const char *format, ...) {
    char prefix[SHORT_TEXT];
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(prefix, sizeof prefix, format, arguments) >= SHORT_TEXT) {
        mark_cut(prefix);
    }
    va_end(arguments);
    return cj_fail(status, "%s: %s", prefix, convjit_last_error());
}

const char *convjit_last_error(void) {
    const char *text = get_long_text();
    return text != NULL ? text : short_text;
}

typedef struct status_words {
    const char *name;
    const char *text;
} status_words;

static status_words words_of(convjit_status status) {
    static const status_words words[] = {
#define STATUS_WORDS(name, text) {"CONVJIT_" #name, text},
        CONVJIT_STATUS_LIST(STATUS_WORDS)
#undef STATUS_WORDS
    };
    static const status_words none = {"no convjit_status", "this number is no status of convjit"};
    const size_t index = (size_t)status; /* a negative number becomes a large one */
    return index < sizeof words / sizeof words[0] ? words[index] : none;
}

const char *convjit_status_name(convjit_status status) {
    return words_of(status).name;
}

const char *convjit_status_text(convjit_status status) {
    return words_of(status).text;
}

const char *convjit_version(void) {
    return CONVJIT_VERSION;
}
