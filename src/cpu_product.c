/* cpu_product.c - products of a warpgroup on the target cpu.
 *
 * A product of a warpgroup is one record. Each of the 128 threads that issues it leaves its sum there: it is copied
 * into a matrix of the warpgroup, and the registers are set to POISON until no product in flight uses them, so who
 * reads them too early computes with NaN, and who writes them is found out. A and B are descriptors of shared memory.
 *
 * The tensor core may read shared memory at any time between issue and wait, so the first product of every second sum
 * is computed as soon as all threads have issued it, and the others as late as the wait allows, after every other
 * thread has had a turn: data that is not there yet, or no longer, gives wrong results. In the order of their issue all
 * the same: a sum's bits depend on it. The arithmetic is in cpu_tensor_core.c.
 *
 * Errors: threads of a warpgroup that miss a product or a wait or disagree on one; a descriptor that reaches past the
 * block's shared memory, or to what no fence has made visible; registers that are touched in flight; a first product,
 * or first one after a wait, without cj_product_fence (the device asks for it only if registers were touched); products
 * that a thread never waits for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernel_src/cpu/hopper.cuh"
#include "cpu_hopper.h"

/* ---------------------------------------------------------------------------------------------------------------------
 * Products in flight
 * ------------------------------------------------------------------------------------------------------------------ */

enum { WARPGROUP = CJ_WARPGROUP };
enum { ROWS = CJ_PRODUCT_ROWS, MOST_COLUMNS = CJ_MOST_COLUMNS };
enum { UNIT = 16 };                          /* bytes of a line (a row of A, a column of B) that lie together */
enum { MOST_PRODUCTS = 256, MOST_SUMS = 4 }; /* in flight */

static const uint32_t POISON = 0x7fc0dead; /* a NaN */

/* Sums that products in flight add to. */
typedef struct sums {
    uint32_t products; /* in flight; 0: not in use */
    float *registers[WARPGROUP];
    float value[ROWS][MOST_COLUMNS];
} sums;

typedef struct product {
    uint32_t a, b; /* descriptors */
    int columns;
    bool add;
    uint64_t group;
    sums *sum;
    uint32_t issued; /* by how many threads */
    bool early, done;
} product;

typedef struct member {
    uint64_t products, groups; /* issued; closed */
    bool fenced;
} member;

struct cj_warpgroup {
    member members[WARPGROUP];
    uint64_t first, end; /* products in flight, numbered from the block's start; number i is queue[i % MOST_PRODUCTS] */
    uint64_t groups;     /* waited for */
    uint64_t sums_begun;
    uint32_t waiting; /* threads */
    uint32_t index;
    sums sums[MOST_SUMS];
    product queue[MOST_PRODUCTS];
};
typedef struct cj_warpgroup warpgroup;

static warpgroup *get_warpgroup(cj_block *block) {
    const uint32_t index = block->current / WARPGROUP;
    cj_hopper *hopper = block->hopper;
    if (!hopper->warpgroups[index]) {
        hopper->warpgroups[index] = calloc(1, sizeof(warpgroup));
    }
    if (!hopper->warpgroups[index]) {
        cj_block_fail(block, "no memory for the products of a warpgroup");
    }
    if ((index + 1) * WARPGROUP > block->threads) {
        cj_block_fail(block, "warpgroup %u has only %u of 128 threads", index, block->threads - index * WARPGROUP);
    }
    hopper->warpgroups[index]->index = index;
    return hopper->warpgroups[index];
}

static product *get_product(warpgroup *group, uint64_t number) {
    return &group->queue[number % MOST_PRODUCTS];
}

/* Where register i of a thread's sum lies in the 64 x N matrix. */
static float *sum_element(sums *sum, uint32_t thread, int i) {
    return &sum->value[thread / 32 * 16 + thread % 32 / 4 + (uint32_t)i % 4 / 2 * 8]
                      [(uint32_t)i / 4 * 8 + thread % 4 * 2 + (uint32_t)i % 2];
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Operands
 * ------------------------------------------------------------------------------------------------------------------ */

/* Fields of a descriptor, in bytes. Core matrices follow each other along M or N. */
static size_t start_of(uint32_t descriptor) {
    return (size_t)(descriptor & 0x3fff) * UNIT;
}
static size_t k_stride_of(uint32_t descriptor) {
    return (size_t)(descriptor >> 16 & 0x3fff) * UNIT;
}

/* The lines of an operand: two units along k each, core matrices one after the other. */
static void read_lines(const cj_block *block, uint32_t descriptor, int lines, cj_line *to) {
    const char *start = (const char *)block->shared + start_of(descriptor);
    for (size_t line = 0; line < (size_t)lines; ++line) {
        memcpy(to[line].half, start + line * UNIT, UNIT);
        memcpy(&to[line].half[CJ_PRODUCT_DEPTH / 2], start + k_stride_of(descriptor) + line * UNIT, UNIT);
    }
}

static void compute(const cj_block *block, product *p) {
    cj_line a[ROWS], b[MOST_COLUMNS];
    read_lines(block, p->a, ROWS, a);
    read_lines(block, p->b, p->columns, b);
    cj_tensor_core(p->sum->value, a, b, p->columns);
    p->done = true;
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Issue
 * ------------------------------------------------------------------------------------------------------------------ */

uint32_t cj_product_descriptor(void *launch, const void *start, unsigned k_stride) {
    const uint32_t offset = cj_block_shared_offset(launch, start, 0, "cj_descriptor");
    if (offset % UNIT != 0 || k_stride % UNIT != 0 || k_stride / UNIT > 0x3fff) {
        cj_block_fail(
            launch,
            "cj_descriptor at byte %u of shared memory with a distance of %u bytes along k: must be multiples "
            "of 16, and the distance at most 262128",
            offset, k_stride);
    }
    return offset / UNIT | k_stride / UNIT << 16;
}

static void check_operand(cj_block *block, const char *name, uint32_t descriptor, int lines) {
    if (descriptor & ~0x3fff3fffU) {
        cj_block_fail(
            block, "product with descriptor 0x%08x of %s, which has bits set beside its start and its distance along k",
            descriptor, name);
    }
    const size_t start = start_of(descriptor), k = k_stride_of(descriptor), end = start + k + (size_t)lines * UNIT;
    if (end > block->shared_bytes) {
        cj_block_fail(block,
                      "product reads %s of %d lines from bytes %zu to %zu of shared memory, of which the block has %u: "
                      "descriptor with start %zu, distance %zu along k",
                      name, lines, start, end - 1, block->shared_bytes, start, k);
    }
    cj_hopper_expect_seen(block, start, (size_t)lines * UNIT, "product");
    cj_hopper_expect_seen(block, start + k, (size_t)lines * UNIT, "product");
}

static void check_operands(cj_block *block, const struct cj_cpu_product *given) {
    if (given->columns < 8 || given->columns > MOST_COLUMNS || given->columns % 8 != 0) {
        cj_block_fail(block, "product of %d columns, must be a multiple of 8 up to 256", given->columns);
    }
    check_operand(block, "A", given->a, ROWS);
    check_operand(block, "B", given->b, given->columns);
}

/* The sums in flight that own these registers of this thread, or NULL. */
static sums *find_sums(warpgroup *group, uint32_t thread, const float *registers) {
    for (int i = 0; i < MOST_SUMS; ++i) {
        if (group->sums[i].products > 0 && group->sums[i].registers[thread] == registers) {
            return &group->sums[i];
        }
    }
    return NULL;
}

static sums *free_sums(cj_block *block, warpgroup *group) {
    for (int i = 0; i < MOST_SUMS; ++i) {
        if (group->sums[i].products == 0) {
            return &group->sums[i];
        }
    }
    cj_block_fail(block, "products into more than %d different sums in flight: MOST_SUMS in src/cpu_product.c",
                  MOST_SUMS);
}

/* The first thread that issues a product makes its record. */
static void begin_product(cj_block *block, warpgroup *group, uint32_t thread, const struct cj_cpu_product *given) {
    check_operands(block, given);
    if (group->end - group->first == MOST_PRODUCTS) {
        cj_block_fail(block, "more than %d products in flight: MOST_PRODUCTS in src/cpu_product.c", MOST_PRODUCTS);
    }
    sums *sum = find_sums(group, thread, given->sum);
    const bool first = !sum;
    if (first) {
        sum = free_sums(block, group);
        ++group->sums_begun;
    }
    for (uint64_t i = group->first; i < group->end && !given->add; ++i) { /* what they add is overwritten */
        get_product(group, i)->done |= get_product(group, i)->sum == sum;
    }
    product *p = get_product(group, group->end);
    *p = (product){.a = given->a,
                   .b = given->b,
                   .columns = given->columns,
                   .add = given->add,
                   .group = group->members[thread].groups,
                   .sum = sum,
                   .early = first && group->sums_begun % 2 == 1};
    ++sum->products;
    ++group->end;
}

/* Takes over a thread's sum registers. */
static void take_sum(product *p, uint32_t thread, float *registers) {
    const bool taken = p->sum->registers[thread] != NULL;
    p->sum->registers[thread] = registers;
    for (int i = 0; i < p->columns / 2 && !(taken && p->add); ++i) {
        float *element = sum_element(p->sum, thread, i);
        if (!taken) {
            *element = registers[i];
            memcpy(&registers[i], &POISON, sizeof(POISON));
        }
        if (!p->add) {
            *element = 0.0F;
        }
    }
}

void cj_product_issue(void *launch, const struct cj_cpu_product *given) {
    cj_block *block = launch;
    warpgroup *group = get_warpgroup(block);
    const uint32_t thread = block->current % WARPGROUP;
    member *self = &group->members[thread];
    if (!self->fenced) {
        cj_block_fail(block, "product without cj_product_fence since the last cj_product_wait");
    }
    if (self->products == group->end) {
        begin_product(block, group, thread, given);
    }
    product *p = get_product(group, self->products);
    const sums *owner = find_sums(group, thread, given->sum);
    if (p->a != given->a || p->b != given->b || p->columns != given->columns || p->add != (given->add != 0) ||
        p->group != self->groups) {
        cj_block_fail(block,
                      "product %llu of its warpgroup with descriptors 0x%08x and 0x%08x, %d columns, add %d, in "
                      "group %llu; another thread's has 0x%08x and 0x%08x, %d columns, add %d, group %llu",
                      (unsigned long long)self->products, given->a, given->b, given->columns, given->add != 0,
                      (unsigned long long)self->groups, p->a, p->b, p->columns, p->add, (unsigned long long)p->group);
    }
    if (owner ? owner != p->sum : p->sum->registers[thread] != NULL) {
        cj_block_fail(block, "product %llu of its warpgroup adds to another sum than other threads' products do",
                      (unsigned long long)self->products);
    }
    take_sum(p, thread, given->sum);
    ++self->products;
    if (++p->issued == WARPGROUP && p->early && !p->done) {
        compute(block, p);
    }
}

void cj_product_fence(void *launch) {
    get_warpgroup(launch)->members[((cj_block *)launch)->current % WARPGROUP].fenced = true;
}

void cj_product_commit(void *launch) {
    ++get_warpgroup(launch)->members[((cj_block *)launch)->current % WARPGROUP].groups;
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Wait
 * ------------------------------------------------------------------------------------------------------------------ */

/* Gives the sums back to the registers. */
static void give_sums_back(cj_block *block, warpgroup *group, product *p) {
    for (uint32_t thread = 0; thread < WARPGROUP; ++thread) {
        float *registers = p->sum->registers[thread];
        for (int i = 0; i < p->columns / 2; ++i) {
            uint32_t bits;
            memcpy(&bits, &registers[i], sizeof(bits));
            if (bits != POISON) {
                block->current = group->index * WARPGROUP + thread;
                cj_block_fail(block, "register %d of a sum was written before its product was waited for", i);
            }
            registers[i] = *sum_element(p->sum, thread, i);
        }
        p->sum->registers[thread] = NULL;
    }
}

static void finish_product(cj_block *block, warpgroup *group, product *p) {
    if (!p->done) {
        compute(block, p);
    }
    if (--p->sum->products == 0) {
        give_sums_back(block, group, p);
    }
}

/* All threads of the warpgroup wait: have they done the same? */
static void check_members(cj_block *block, const warpgroup *group) {
    const member *one = &group->members[0];
    for (uint32_t thread = 1; thread < WARPGROUP; ++thread) {
        const member *other = &group->members[thread];
        if (other->products != one->products || other->groups != one->groups) {
            block->current = group->index * WARPGROUP + thread;
            cj_block_fail(block, "waits for %llu products in %llu groups, thread %u for %llu products in %llu groups",
                          (unsigned long long)other->products, (unsigned long long)other->groups,
                          group->index * WARPGROUP, (unsigned long long)one->products, (unsigned long long)one->groups);
        }
    }
}

static bool groups_ended(const cj_block *block, const cj_wait *wait) {
    (void)block;
    const warpgroup *group = wait->at;
    return group->groups >= wait->number;
}

static void describe_groups(const cj_block *block, const cj_wait *wait, char *text, size_t size) {
    const warpgroup *group = wait->at;
    const cj_thread *threads = &block->thread[(size_t)group->index * WARPGROUP];
    uint32_t missing = 0;
    while (missing < WARPGROUP - 1 && threads[missing].state == CJ_AT_WAIT && threads[missing].wait->at == group) {
        ++missing;
    }
    snprintf(text, size, "for product group %llu of warpgroup %u, reached by %u of 128 threads; thread %u %s",
             (unsigned long long)wait->number - 1, group->index, group->waiting, group->index * WARPGROUP + missing,
             threads[missing].state == CJ_ENDED ? "has ended" : "waits for something else");
}

void cj_product_wait(void *launch) {
    cj_block *block = launch;
    warpgroup *group = get_warpgroup(block);
    member *self = &group->members[block->current % WARPGROUP];
    self->fenced = false;
    if (self->groups == group->groups) {
        return;
    }
    if (++group->waiting < WARPGROUP) {
        cj_block_wait(
            block, &(cj_wait){.ready = groups_ended, .describe = describe_groups, .at = group, .number = self->groups});
        return;
    }
    cj_block_yield(block);
    const uint32_t current = block->current; /* an error names whom it is about */
    check_members(block, group);
    while (group->first < group->end && get_product(group, group->first)->group < self->groups) {
        finish_product(block, group, get_product(group, group->first));
        ++group->first;
    }
    block->current = current;
    group->groups = self->groups;
    group->waiting = 0;
}

/* ---------------------------------------------------------------------------------------------------------------------
 * End of a thread and of a block
 * ------------------------------------------------------------------------------------------------------------------ */

void cj_product_thread_ends(cj_block *block) {
    const warpgroup *group = block->hopper->warpgroups[block->current / WARPGROUP];
    const uint64_t issued = group ? group->members[block->current % WARPGROUP].products : 0;
    if (group && issued > group->first) {
        cj_block_fail(block, "ended with %llu products in flight", (unsigned long long)(issued - group->first));
    }
}

/* No product is in flight, so no sums are in use. */
void cj_product_block_ends(cj_block *block) {
    for (int i = 0; i < CJ_WARPGROUPS; ++i) {
        if (block->hopper->warpgroups[i]) {
            memset(block->hopper->warpgroups[i], 0, offsetof(warpgroup, sums));
        }
    }
}
