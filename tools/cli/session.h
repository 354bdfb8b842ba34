/* session.h - what run and warm share: a context, and how a cache answer is named. */
#ifndef SESSION_H
#define SESSION_H

#include "arguments.h"
#include "convjit.h"

/* Opens a context with the command line's cache and dump directory. False after a message. */
bool session_open(const arguments *given, const char *target, convjit_context **out);

/* "memory hit", "disk hit" or "miss" of a layer's origin; NULL for NULL. */
const char *session_cache_word(const char *origin);

/* ", \"memory_hits\": 0, ..." for the end of a JSON object; and as words. */
void session_counters_json(convjit_counters counters, FILE *out);
void session_counters_text(convjit_counters counters, FILE *out);

#endif
