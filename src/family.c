#include "family.h"

#include <string.h>

#include "settings.h"
#include "status.h"

/* Best first; the last one applies to every layer it does not call too large. To add a family, add a line here and
 * write src/family_NAME.c and kernel_src/NAME.cu. */
static const cj_family *const families[] = {
    &cj_family_direct, &cj_family_tensor, /* tensor: by CONVJIT_FAMILY only, until it runs on the target cpu too */
};

convjit_status cj_family_choose(const cj_problem *problem, const cj_target *target, const cj_family **out) {
    const char *only = cj_setting_get(CJ_SETTING_FAMILY);
    cj_text reasons = {0};
    for (size_t i = 0; i < sizeof families / sizeof *families; ++i) {
        const bool passed_over = only && strcmp(only, families[i]->name) != 0;
        const char *reason = passed_over ? only : families[i]->refuses(problem, target);
        if (!reason) {
            *out = families[i];
            cj_text_free(&reasons);
            return CONVJIT_SUCCESS;
        }
        cj_text_printf(&reasons, "%s%s: %s%s", i ? "; " : "", families[i]->name,
                       passed_over ? "CONVJIT_FAMILY is " : "", reason);
    }
    const convjit_status status =
        cj_fail(CONVJIT_UNSUPPORTED, "no family computes this layer on %s: %s", target->name, reasons.data);
    cj_text_free(&reasons);
    return status;
}

double cj_family_predict_ms(const cj_problem *problem, const cj_plan *plan, int64_t batch) {
    return plan->family->predict_ms ? plan->family->predict_ms(problem, plan, batch) : 0.0;
}
