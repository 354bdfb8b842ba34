#include "family.h"

#include "status.h"

/* Best first; the last one applies to every layer it does not call too large. To add a family, add a line here and
 * write src/family_NAME.c and kernel_src/NAME.cu. */
static const cj_family *const families[] = {
    &cj_family_direct,
};

convjit_status cj_family_choose(const cj_problem *problem, const cj_target *target, const cj_family **out) {
    cj_text reasons = {0};
    for (size_t i = 0; i < sizeof families / sizeof *families; ++i) {
        const char *reason = families[i]->refuses(problem, target);
        if (!reason) {
            *out = families[i];
            cj_text_free(&reasons);
            return CONVJIT_SUCCESS;
        }
        cj_text_printf(&reasons, "%s%s: %s", i ? "; " : "", families[i]->name, reason);
    }
    const convjit_status status =
        cj_fail(CONVJIT_UNSUPPORTED, "no family computes this layer on %s: %s", target->name, reasons.data);
    cj_text_free(&reasons);
    return status;
}
