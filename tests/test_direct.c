/* test_direct.c - numerics of the family direct on the target cpu, over the grid. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "numerics.h"
#include "placed.h"

static void choose_direct(void) {
    cr_assert_eq(setenv("CONVJIT_FAMILY", "direct", 1), 0);
}

/* Criterion runs parameters in processes of their own, side by side; each takes every SHARDS-th case. */
enum { SHARDS = 16 };

ParameterizedTestParameters(direct, keeps_its_promise_on_every_case_of_the_grid) {
    static int shards[SHARDS];
    for (int i = 0; i < SHARDS; ++i) {
        shards[i] = i;
    }
    return cr_make_param_array(int, shards, SHARDS);
}

ParameterizedTest(int *shard, direct, keeps_its_promise_on_every_case_of_the_grid, .init = choose_direct) {
    numerics on;
    char text[4096], line[GRID_TEXT_MAX];
    size_t count = 0;
    grid_case *cases = grid_make(&count);
    cr_assert_not_null(cases);
    cr_assert(numerics_open("cpu", &on, text, sizeof text), "%s", text);
    const size_t stride = testing_stride();
    for (size_t i = (size_t)*shard * stride; i < count; i += SHARDS * stride) {
        grid_describe(&cases[i], line, sizeof line);
        cr_expect(numerics_run_case(&on, &cases[i], text, sizeof text), "%s: %s", line, text);
    }
    numerics_close(&on);
    free(cases);
}

static int by_text(const void *a, const void *b) {
    return strcmp(a, b);
}

Test(direct, grid_has_at_least_400_different_layers_and_all_are_legal) {
    typedef char line[CONVJIT_LAYER_LINE_MAX];
    size_t count = 0, different = 0;
    grid_case *cases = grid_make(&count);
    cr_assert_not_null(cases);
    line *lines = calloc(count, sizeof *lines);
    cr_assert_not_null(lines);
    for (size_t i = 0; i < count; ++i) {
        int64_t out_size[3];
        convjit_layer_line_format(&cases[i].desc, -1, lines[i], sizeof lines[i]);
        cr_expect_eq(convjit_output_size(&cases[i].desc, cases[i].in_size, out_size), CONVJIT_SUCCESS, "%s: %s",
                     lines[i], convjit_last_error());
    }
    qsort(lines, count, sizeof *lines, by_text);
    for (size_t i = 0; i < count; ++i) {
        different += i == 0 || strcmp(lines[i], lines[i - 1]) != 0;
    }
    cr_expect_geq(different, 400);
    free(lines);
    free(cases);
}

/* A check that passes whatever it is given would hide every bug. */
Test(direct, a_wrong_output_is_noticed) {
    numerics on;
    char text[4096] = "";
    grid_case grid = {.desc = CONVJIT_DESC_INIT, .batch = 1, .in_size = {4, 5}};
    grid.desc.in_channels = grid.desc.out_channels = 2;
    grid.desc.in_size[0] = 4, grid.desc.in_size[1] = 5;
    grid.desc.beta = 1;
    numerics_job job = {.place = grid};
    float x[40], w[4] = {1, 2, 3, 4}, z[40], y[40];
    cr_assert_eq(reference_layer_make(&grid.desc, 1, NULL, &job.layer), CONVJIT_SUCCESS);
    reference_fill(x, CONVJIT_F32, 40, 1, REFERENCE_NORMAL);
    reference_fill(z, CONVJIT_F32, 40, 2, REFERENCE_NORMAL);
    job.x = x, job.w = w, job.z = z, job.y = y;
    cr_assert(numerics_open("cpu", &on, text, sizeof text), "%s", text);
    cr_expect(numerics_run(&on, &job, text, sizeof text), "%s", text);
    job.place.residual = GRID_Z_IS_X; /* the layer now adds x, the reference z */
    cr_expect_not(numerics_run(&on, &job, text, sizeof text));
    cr_expect_not_null(strstr(text, "outputs are off"), "%s", text);
    numerics_close(&on);
}

Test(direct, a_write_beside_a_tensor_is_noticed_wherever_it_is) {
    memory *host = memory_open_host();
    const int64_t shape[3] = {2, 3, 4};
    for (int last = 0; last < 2; ++last) {
        float dense[24] = {0};
        placed tensor;
        cr_assert(placed_make(host, CONVJIT_F32, last != 0, shape, (placement){.slice = true, .guard = true}, &tensor));
        placed_fill(&tensor, dense);
        int64_t inside = 0;
        for (int64_t i = 0; i < tensor.total; ++i) {
            cr_assert(placed_send(host, &tensor));
            ((float *)tensor.buffer)[i] = 7;
            const int64_t touched = placed_receive(host, &tensor, dense);
            inside += touched == -1;
            cr_expect(touched == -1 || touched == i);
        }
        cr_expect_eq(inside, 24);
        placed_free(host, &tensor);
    }
    memory_close(host);
}
