#include "family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "settings.h"
#include "status.h"

/* Best first: of equally fast ones the first is chosen. The last one applies to every layer it does not call too large.
 * To add a family, add a line here and write src/family_NAME.c and kernel_src/NAME.cu. */
typedef struct entry {
    const cj_family *family;
    bool slow_on_cpu; /* used on the target cpu only where CONVJIT_FAMILY names it, for tests */
} entry;

static const entry families[] = {
    {&cj_family_depthwise, .slow_on_cpu = false},
    {&cj_family_tensor, .slow_on_cpu = true},
    {&cj_family_direct, .slow_on_cpu = false},
};
enum { FAMILIES = sizeof families / sizeof *families };
_Static_assert(CJ_WAYS_MAX == FAMILIES * CJ_CANDIDATES_BEST, "a family more or less");

/* False, and says why, if the settings keep the family from being chosen. */
static bool allowed(const entry *e, const cj_target *target, cj_text *why) {
    const char *only = cj_setting_get(CJ_SETTING_FAMILY);
    if (only && strcmp(only, e->family->name) != 0) {
        cj_text_printf(why, "CONVJIT_FAMILY is %s", only);
        return false;
    }
    if (!only && e->slow_on_cpu && target->kind == CJ_TARGET_CPU) {
        cj_text_printf(why, "used on the target cpu only where CONVJIT_FAMILY is %s", e->family->name);
        return false;
    }
    return true;
}

static bool computes(const entry *e, const cj_problem *problem, const cj_target *target, cj_text *why) {
    if (!allowed(e, target, why)) {
        return false;
    }
    const char *reason = e->family->refuses(problem, target);
    cj_text_printf(why, "%s", reason ? reason : "");
    return !reason;
}

/* The same for the `i`-th family, as one of a list of reasons. */
static bool computes_nth(size_t i, const cj_problem *problem, const cj_target *target, cj_text *reasons) {
    cj_text_printf(reasons, "%s%s: ", i ? "; " : "", families[i].family->name);
    return computes(&families[i], problem, target, reasons);
}

static convjit_status unsupported(const cj_target *target, const cj_text *reasons) {
    return cj_fail(CONVJIT_UNSUPPORTED, "no family computes this layer on %s: %s", target->name,
                   reasons->failed ? "no memory for the reasons" : reasons->data);
}

convjit_status cj_family_supports(const cj_problem *problem, const cj_target *target) {
    cj_text reasons = {0};
    bool found = false;
    for (size_t i = 0; i < FAMILIES && !found; ++i) {
        found = computes_nth(i, problem, target, &reasons);
    }
    const convjit_status status = found ? CONVJIT_SUCCESS : unsupported(target, &reasons);
    cj_text_free(&reasons);
    return status;
}

static void make_plan(const cj_family *family, const cj_problem *problem, const cj_target *target, cj_plan *out) {
    *out = (cj_plan){.family = family};
    (void)family->plan(problem, target, out); /* which finds one, for the family does not refuse */
}

double cj_family_predict_ms(const cj_problem *problem, const cj_plan *plan, int64_t batch) {
    return plan->family->predict_ms ? plan->family->predict_ms(problem, plan, batch) : 0.0;
}

convjit_status cj_family_choose(const cj_problem *problem, const cj_target *target, cj_plan *out) {
    cj_text reasons = {0};
    bool found = false;
    double least = INFINITY;
    for (size_t i = 0; i < FAMILIES; ++i) {
        cj_plan plan;
        if (!computes_nth(i, problem, target, &reasons)) {
            continue;
        }
        make_plan(families[i].family, problem, target, &plan);
        const double known = cj_family_predict_ms(problem, &plan, problem->desc.batch_hint);
        const double ms = known > 0.0 ? known : INFINITY; /* without a model: the last resort */
        if (!found || ms < least) {
            *out = plan;
            least = ms;
            found = true;
        }
    }
    const convjit_status status = found ? CONVJIT_SUCCESS : unsupported(target, &reasons);
    cj_text_free(&reasons);
    return status;
}

/* ---- ways ---- */

bool cj_family_find(const cj_problem *problem, const cj_target *target, const cj_way *way, cj_plan *out, cj_text *why) {
    for (size_t i = 0; i < FAMILIES; ++i) {
        const cj_family *const family = families[i].family;
        if (strcmp(family->name, way->family) != 0) {
            continue;
        }
        if (!computes(&families[i], problem, target, why)) {
            return false;
        }
        *out = (cj_plan){.family = family};
        memcpy(out->config, way->config, sizeof out->config);
        if (out->config[0] != '\0' && family->plan(problem, target, out)) {
            return true;
        }
        cj_text_printf(why, "no configuration of this layer is \"%s\"", way->config);
        return false;
    }
    cj_text_printf(why, "no family is called \"%s\"", way->family);
    return false;
}

/* Puts a way among those that are there, behind the ones that are not slower. */
static void insert(cj_way *ways, size_t count, const char *family, double ms, const char *config) {
    size_t at = count;
    while (at > 0 && ms > 0.0 && (ms < ways[at - 1].ms || ways[at - 1].ms <= 0.0)) {
        --at;
    }
    memmove(&ways[at + 1], &ways[at], (count - at) * sizeof *ways);
    ways[at] = (cj_way){.family = family, .ms = ms};
    snprintf(ways[at].config, CJ_CONFIG_MAX, "%s", config);
}

size_t cj_family_ways(const cj_problem *problem, const cj_target *target, cj_way out[CJ_WAYS_MAX]) {
    size_t count = 0;
    cj_text reasons = {0};
    for (size_t i = 0; i < FAMILIES; ++i) {
        const cj_family *const family = families[i].family;
        if (!computes(&families[i], problem, target, &reasons)) {
            continue;
        }
        cj_candidates list = {0};
        if (family->explain && family->predict_ms) {
            family->explain(problem, target, &list);
        } else {
            cj_plan plan;
            make_plan(family, problem, target, &plan);
            cj_candidates_add(&list, cj_family_predict_ms(problem, &plan, problem->desc.batch_hint), plan.config);
        }
        for (size_t j = 0; j < list.kept; ++j) {
            insert(out, count++, family->name, list.best[j].ms, list.best[j].config);
        }
    }
    cj_text_free(&reasons);
    return count;
}

/* ---- explain ---- */

static void explain_times(const cj_problem *problem, const cj_plan *plan, int64_t batch, cj_text *out) {
    if (!plan->family->predict_ms) {
        cj_text_printf(out, "no cost model\n");
        return;
    }
    cj_text_printf(out, "%.4f ms", cj_family_predict_ms(problem, plan, problem->desc.batch_hint));
    if (batch > 0 && batch != problem->desc.batch_hint) {
        cj_text_printf(out, ", %.4f ms for a batch of %lld", cj_family_predict_ms(problem, plan, batch),
                       (long long)batch);
    }
    cj_text_printf(out, "\n");
}

/* `chosen`: NULL where no family computes the problem. */
static void explain_family(const entry *e, const cj_problem *problem, const cj_target *target, int64_t batch,
                           const cj_family *chosen, cj_text *out) {
    const char *refusal = e->family->refuses(problem, target);
    cj_candidates candidates = {0};
    cj_plan plan;
    cj_text_printf(out, "%s: ", e->family->name);
    if (refusal) {
        cj_text_printf(out, "refuses, %s\n", refusal);
        return;
    }
    if (e->family == chosen) {
        cj_text_printf(out, "chosen, ");
    } else if (allowed(e, target, out)) {
        cj_text_printf(out, "not the fastest, ");
    } else {
        cj_text_printf(out, ", ");
    }
    make_plan(e->family, problem, target, &plan);
    explain_times(problem, &plan, batch, out);
    if (e->family->explain) {
        e->family->explain(problem, target, &candidates);
        cj_candidates_print(&candidates, plan.config, out);
    } else {
        cj_text_printf(out, "  * %s\n", plan.config);
    }
}

convjit_status cj_family_explain(const cj_problem *problem, const cj_target *target, int64_t batch, cj_text *out) {
    cj_plan plan = {0};
    const convjit_status status = cj_family_choose(problem, target, &plan);
    cj_text_printf(out, "on %s; predicted times are those of an NVIDIA H200 and a batch of %s%.0f\n", target->name,
                   problem->desc.batch_hint > 0 ? "" : "about ", cj_known_batch(problem->desc.batch_hint));
    for (size_t i = 0; i < FAMILIES; ++i) {
        explain_family(&families[i], problem, target, batch, status == CONVJIT_SUCCESS ? plan.family : NULL, out);
    }
    return status;
}
