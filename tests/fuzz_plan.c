/* fuzz_plan.c - libFuzzer: every family plans any layer that it does not refuse.
 *
 * What is checked is that the plan is one, within what a block may have, that its launch has work, and that nothing
 * overflows on the way. */
#include "family.h"
#include "fuzz.h"

static void check_family(const cj_family *family, const cj_problem *problem, const cj_target *target) {
    enum { MOST_THREADS = 1024, MOST_SHARED = 227 * 1024 };
    cj_plan plan = {.family = family};
    cj_text constants = {0};
    cj_forward_args args = {.batch = 1};
    uint32_t blocks = 0;
    if (family->refuses(problem, target)) {
        return;
    }
    family->plan(problem, target, &plan);
    CHECK(plan.threads > 0 && plan.threads <= MOST_THREADS && plan.shared_bytes <= MOST_SHARED);
    CHECK(plan.pack_work > 0 && plan.packed_bytes > 0 && plan.config[0] != '\0');
    CHECK(cj_family_predict_ms(problem, &plan, problem->desc.batch_hint) >= 0.0);
    family->constants(problem, &plan, &constants);
    cj_text_free(&constants);
    for (int d = 0; d < CJ_DIMS; ++d) {
        args.in_size[d] = problem->dynamic ? 1 : problem->in_size[d];
        args.out_size[d] = problem->dynamic ? 1 : problem->out_size[d];
    }
    if (args.out_size[CJ_Z] > 0 && args.out_size[CJ_Y] > 0 && args.out_size[CJ_X] > 0) {
        family->launch(problem, &plan, &args, &blocks);
        CHECK(args.tiles > 0 && blocks > 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const cj_family *const families[] = {&cj_family_depthwise, &cj_family_tensor, &cj_family_direct};
    fuzz_bytes bytes = {data, size};
    convjit_desc desc = fuzz_fields(&bytes);
    const int64_t least = desc.in_channels < desc.out_channels ? desc.in_channels : desc.out_channels;
    const int64_t most = desc.in_channels > desc.out_channels ? desc.in_channels : desc.out_channels;
    if (least > 0 && most < INT64_C(1) << 40 && desc.groups > 0 && desc.groups < 1 << 20) {
        desc.in_channels *= desc.groups, desc.out_channels *= desc.groups; /* or few would be multiples */
    }
    desc.layout = (convjit_layout)(fuzz_next(&bytes) % 2), desc.math = (convjit_math)(fuzz_next(&bytes) % 3);
    desc.data_type = desc.weight_type = (convjit_type)(fuzz_next(&bytes) % 3);
    desc.beta = (float)(fuzz_next(&bytes) % 2);
    cj_problem problem;
    cj_target target;
    CHECK(cj_target_parse("sm_90a", &target) == CONVJIT_SUCCESS);
    if (cj_problem_make(&desc, &problem) == CONVJIT_SUCCESS) {
        for (size_t i = 0; i < sizeof families / sizeof families[0]; ++i) {
            check_family(families[i], &problem, &target);
        }
    }
    return 0;
}
