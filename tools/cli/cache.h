/* cache.h - what the files of convjit cache share. */
#ifndef CACHE_H
#define CACHE_H

#include "arguments.h"
#include "convjit.h"

convjit_options cache_options(const arguments *given);

/* The text of a call that failed, as a message; the exit status. */
int cache_fail(convjit_status status);

/* "2026-11-30 06:25", in local time. */
enum { CACHE_TIME_MAX = 32 };
void cache_write_time(int64_t seconds, char text[CACHE_TIME_MAX]);

/* Actions on entries (cache_entries.c). */
int cache_show(const arguments *given);
int cache_diff(const arguments *given);

#endif
