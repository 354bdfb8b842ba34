/* cpu_hopper.c - Hopper's asynchronous words on the target cpu: barriers in shared memory, bulk copies, and (in
 * cpu_product.c) warpgroup products.
 *
 * A copy may be done at any time between its issue and the end of its barrier's phase, so every second one is done at
 * once and the others when no thread can go on without it: who reads too early, or writes too late, gets wrong results.
 * A store may read shared memory at any time until its thread has waited for its group, so every second one is done at
 * once and the others at the end of that wait: who overwrites shared memory too early, or reads what is stored,
 * likewise.
 * Stores and products do not see what threads have stored to shared memory before cj_async_fence. One thread is enough
 * here: that all which have stored come to it is not checked.
 *
 * Errors, where the device hangs, faults or computes something else: a barrier that was not initialised; a wait that
 * can never end; a copy to, or a store from, outside the block's shared memory; a store of what no fence has made
 * visible; a copy still on its way when the block ends; a store that its thread never closes a group with or waits for.
 */
#include "cpu_hopper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernel_src/cpu/hopper.cuh"

/* ---------------------------------------------------------------------------------------------------------------------
 * Fences between ordinary stores and what reads them asynchronously
 * ------------------------------------------------------------------------------------------------------------------ */

/* As a block begins. */
static void see_nothing(const cj_block *block) {
    memset(block->hopper->seen, CJ_BLOCK_POISON, block->shared_bytes);
    block->hopper->fenced = false;
}

static void async_fence(void *launch) {
    const cj_block *block = launch;
    block->hopper->fenced = true;
}

/* When a phase of a barrier ends, and when shared memory is read: what a warp's own lanes store has no barrier. */
static void see(const cj_block *block) {
    cj_hopper *hopper = block->hopper;
    if (hopper->fenced) {
        memcpy(hopper->seen, block->shared, block->shared_bytes);
        hopper->fenced = false;
    }
}

void cj_hopper_expect_seen(cj_block *block, size_t offset, size_t bytes, const char *what) {
    see(block);
    if (memcmp(block->hopper->seen + offset, (const char *)block->shared + offset, bytes) != 0) {
        cj_block_fail(block,
                      "%s reads bytes %zu to %zu of shared memory, to which a thread has stored without cj_async_fence",
                      what, offset, offset + bytes - 1);
    }
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Barriers
 * ------------------------------------------------------------------------------------------------------------------ */

/* What the 64 bits of a cj_barrier hold here. */
typedef struct barrier {
    uint8_t mark;
    uint8_t phase;           /* counts modulo 256; its parity is what a wait names */
    uint16_t count, pending; /* arrivals of a phase, and how many are missing */
    int16_t units;           /* of 16 bytes that are missing; negative if they come before they are expected */
} barrier;

enum { BARRIER_MARK = 0xba, MOST_ARRIVALS = UINT16_MAX, UNIT = 16, MOST_UNITS = INT16_MAX };

static barrier *to_barrier(cj_block *block, void *pointer, const char *word) {
    const uint32_t offset = cj_block_shared_offset(block, pointer, sizeof(barrier), word);
    if (offset % sizeof(barrier) != 0) {
        cj_block_fail(block, "%s at byte %u of shared memory, which is not a multiple of 8", word, offset);
    }
    return pointer;
}

static barrier *to_live_barrier(cj_block *block, void *pointer, const char *word) {
    barrier *result = to_barrier(block, pointer, word);
    if (result->mark != BARRIER_MARK) {
        cj_block_fail(block, "%s at byte %u of shared memory, where no barrier was initialised", word,
                      cj_block_shared_offset(block, pointer, 0, word));
    }
    return result;
}

static void barrier_init(void *launch, void *pointer, unsigned count) {
    barrier *self = to_barrier(launch, pointer, "cj_barrier_init");
    if (count == 0 || count > MOST_ARRIVALS) {
        cj_block_fail(launch, "cj_barrier_init with %u arrivals, must be 1 to %d", count, MOST_ARRIVALS);
    }
    *self = (barrier){.mark = BARRIER_MARK, .count = (uint16_t)count, .pending = (uint16_t)count};
}

static void end_phase_if_complete(const cj_block *block, barrier *self) {
    if (self->pending == 0 && self->units == 0) {
        see(block);
        self->pending = self->count;
        ++self->phase;
    }
}

static void arrive(cj_block *block, void *pointer, unsigned units, const char *word) {
    barrier *self = to_live_barrier(block, pointer, word);
    if (self->pending == 0) {
        cj_block_fail(block, "%s at byte %u of shared memory, where all %u have arrived and %d bytes are missing", word,
                      cj_block_shared_offset(block, pointer, 0, word), self->count, self->units * UNIT);
    }
    self->units = (int16_t)(self->units + (int)units);
    --self->pending;
    end_phase_if_complete(block, self);
}

static void barrier_arrive(void *launch, void *pointer) {
    arrive(launch, pointer, 0, "cj_barrier_arrive");
}

static void barrier_expect(void *launch, void *pointer, unsigned bytes) {
    if (bytes % UNIT != 0 || bytes / UNIT > MOST_UNITS) {
        cj_block_fail(launch, "cj_barrier_expect of %u bytes, must be a multiple of 16 up to %d", bytes,
                      MOST_UNITS * UNIT);
    }
    arrive(launch, pointer, bytes / UNIT, "cj_barrier_expect");
}

static bool phase_ended(const cj_block *block, const cj_wait *wait) {
    (void)block;
    const barrier *self = wait->at;
    return (self->phase & 1) != wait->number;
}

static void describe_barrier(const cj_block *block, const cj_wait *wait, char *text, size_t size) {
    const barrier *self = wait->at;
    const int used = snprintf(
        text, size, "for the end of phase %u of the barrier at byte %td of shared memory, %d of %d arrived",
        self->phase, (const char *)wait->at - (const char *)block->shared, self->count - self->pending, self->count);
    if (self->units != 0 && used > 0 && (size_t)used < size) {
        snprintf(text + used, size - (size_t)used, ", %d bytes missing", self->units * UNIT);
    }
}

static void barrier_wait(void *launch, void *pointer, unsigned parity) {
    const barrier *self = to_live_barrier(launch, pointer, "cj_barrier_wait");
    if (parity > 1) {
        cj_block_fail(launch, "cj_barrier_wait with parity %u, must be 0 or 1", parity);
    }
    cj_block_wait(launch, &(cj_wait){.ready = phase_ended, .describe = describe_barrier, .at = self, .number = parity});
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Bulk copies
 * ------------------------------------------------------------------------------------------------------------------ */

static void do_copy(const cj_block *block, const cj_copy *copy) {
    memcpy(copy->to, copy->from, copy->bytes);
    memcpy(block->hopper->seen + ((char *)copy->to - (char *)block->shared), copy->from, copy->bytes);
    barrier *self = copy->barrier;
    self->units = (int16_t)(self->units - (int)(copy->bytes / UNIT));
    end_phase_if_complete(block, self);
}

static void bulk_load(void *launch, void *to, const void *from, unsigned bytes, void *pointer) {
    cj_block *block = launch;
    cj_hopper *hopper = block->hopper;
    const uint32_t offset = cj_block_shared_offset(block, to, bytes, "cj_bulk_load");
    if (offset % UNIT != 0 || (uintptr_t)from % UNIT != 0 || bytes % UNIT != 0) {
        cj_block_fail(block, "cj_bulk_load of %u bytes from %p to byte %u of shared memory, must be multiples of 16",
                      bytes, from, offset);
    }
    const cj_copy copy = {to, from, bytes, to_live_barrier(block, pointer, "cj_bulk_load")};
    if (hopper->copies_issued++ % 2 == 0 || hopper->copies_late == CJ_LATE_COPIES) {
        do_copy(block, &copy);
    } else {
        hopper->copies[hopper->copies_late++] = copy;
    }
}

/* Nobody can go on: the last possible moment for the oldest copy. */
static bool do_late_copy(cj_block *block) {
    cj_hopper *hopper = block->hopper;
    if (hopper->copies_late == 0) {
        return false;
    }
    do_copy(block, &hopper->copies[0]);
    --hopper->copies_late;
    memmove(hopper->copies, hopper->copies + 1, hopper->copies_late * sizeof(*hopper->copies));
    return true;
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Bulk stores
 * ------------------------------------------------------------------------------------------------------------------ */

static void do_store(cj_store *store) {
    memcpy(store->to, store->from, store->bytes);
    store->done = true;
}

static void bulk_store(void *launch, void *to, const void *from, unsigned bytes) {
    cj_block *block = launch;
    cj_hopper *hopper = block->hopper;
    const uint32_t offset = cj_block_shared_offset(block, from, bytes, "cj_bulk_store");
    if (offset % UNIT != 0 || (uintptr_t)to % UNIT != 0 || bytes % UNIT != 0) {
        cj_block_fail(block, "cj_bulk_store of %u bytes from byte %u of shared memory to %p, must be multiples of 16",
                      bytes, offset, to);
    }
    cj_hopper_expect_seen(block, offset, bytes, "cj_bulk_store");
    cj_store store = {block->current, hopper->store_groups[block->current], to, from, bytes, false};
    const bool forgotten = hopper->stores_open == CJ_OPEN_STORES;
    if (hopper->stores_issued++ % 2 == 0 || forgotten) {
        do_store(&store);
    }
    if (!forgotten) {
        hopper->stores[hopper->stores_open++] = store;
    }
}

static void bulk_store_commit(void *launch) {
    const cj_block *block = launch;
    ++block->hopper->store_groups[block->current];
}

/* Is it this thread's, of a group that is closed and not one of the newest `pending`? */
static bool waited_for(const cj_block *block, const cj_store *store, unsigned pending) {
    return store->thread == block->current && store->group + pending < block->hopper->store_groups[block->current];
}

/* The last possible moment for these stores is after whatever the other threads can do meanwhile. */
static void bulk_store_wait(void *launch, unsigned pending) {
    cj_block *block = launch;
    cj_hopper *hopper = block->hopper;
    bool late = false;
    for (uint32_t i = 0; i < hopper->stores_open && !late; ++i) {
        late = !hopper->stores[i].done && waited_for(block, &hopper->stores[i], pending);
    }
    if (late) {
        cj_block_yield(block);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < hopper->stores_open; ++i) {
        if (!waited_for(block, &hopper->stores[i], pending)) {
            hopper->stores[kept++] = hopper->stores[i];
        } else if (!hopper->stores[i].done) {
            do_store(&hopper->stores[i]);
        }
    }
    hopper->stores_open = kept;
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Life
 * ------------------------------------------------------------------------------------------------------------------ */

static void store_thread_ends(cj_block *block) {
    uint32_t open = 0;
    for (uint32_t i = 0; i < block->hopper->stores_open; ++i) {
        open += block->hopper->stores[i].thread == block->current;
    }
    if (open > 0) {
        cj_block_fail(block, "ended with %u bulk stores on their way", open);
    }
}

/* The last thread leaves everything as for the next block's first. */
static void thread_ends(cj_block *block) {
    cj_product_thread_ends(block);
    store_thread_ends(block);
    if (block->ended + 1 == block->threads) {
        if (block->hopper->copies_late > 0) {
            cj_block_fail(block, "the block ends with %u bulk copies on their way", block->hopper->copies_late);
        }
        cj_product_block_ends(block);
        see_nothing(block);
    }
}

static const struct cj_cpu_hopper words = {.barrier_init = barrier_init,
                                           .barrier_arrive = barrier_arrive,
                                           .barrier_expect = barrier_expect,
                                           .barrier_wait = barrier_wait,
                                           .bulk_load = bulk_load,
                                           .bulk_store = bulk_store,
                                           .bulk_store_commit = bulk_store_commit,
                                           .bulk_store_wait = bulk_store_wait,
                                           .async_fence = async_fence,
                                           .descriptor = cj_product_descriptor,
                                           .product = cj_product_issue,
                                           .product_fence = cj_product_fence,
                                           .product_commit = cj_product_commit,
                                           .product_wait = cj_product_wait};

bool cj_hopper_open(cj_block *block) {
    block->hopper = calloc(1, sizeof(*block->hopper));
    block->host->hopper = &words;
    block->thread_ends = thread_ends;
    block->nobody_runs = do_late_copy;
    if (block->hopper) {
        block->hopper->seen = malloc(block->shared_bytes + 1U); /* + 1: 0 bytes may be NULL */
    }
    if (!block->hopper || !block->hopper->seen) {
        return false;
    }
    see_nothing(block);
    return true;
}

void cj_hopper_close(cj_block *block) {
    if (!block->hopper) {
        return;
    }
    for (int i = 0; i < CJ_WARPGROUPS; ++i) {
        free(block->hopper->warpgroups[i]);
    }
    free(block->hopper->seen);
    free(block->hopper);
}
