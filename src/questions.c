/* questions.c - what can be told of a descriptor without a context. */
#include <stdlib.h>
#include <string.h>

#include "family.h"
#include "status.h"

convjit_status convjit_supported(const convjit_desc *desc, const char *target_name) {
    cj_problem problem;
    cj_target target;
    CJ_TRY(cj_problem_make(desc, &problem));
    CJ_TRY(cj_target_parse(target_name, &target));
    return cj_family_supports(&problem, &target);
}

convjit_status convjit_candidates(const convjit_desc *desc, const char *target_name, size_t most,
                                  convjit_candidate_fn visit, void *user) {
    cj_problem problem;
    cj_target target;
    CJ_RETURN_IF(!visit, CONVJIT_INVALID_ARGUMENT, "candidates failed: visit is NULL");
    CJ_TRY(cj_problem_make(desc, &problem));
    CJ_TRY(cj_target_parse(target_name, &target));
    CJ_TRY(cj_family_supports(&problem, &target));
    cj_way *ways = calloc(CJ_WAYS_MAX, sizeof *ways);
    CJ_RETURN_IF(!ways, CONVJIT_OUT_OF_MEMORY, "candidates failed: no memory for them");
    const size_t count = cj_family_ways(&problem, &target, ways);
    for (size_t i = 0; i < count && i < most; ++i) {
        visit(user, ways[i].family, ways[i].config, ways[i].ms);
    }
    free(ways);
    return CONVJIT_SUCCESS;
}

convjit_status convjit_explain(const convjit_desc *desc, int64_t batch, const char *target_name, convjit_log_fn write,
                               void *user) {
    cj_problem problem;
    cj_target target;
    cj_text text = {0};
    CJ_RETURN_IF(!write, CONVJIT_INVALID_ARGUMENT, "explain failed: write is NULL");
    CJ_RETURN_IF(batch < 0, CONVJIT_INVALID_ARGUMENT, "explain failed: batch %lld, must be at least 0",
                 (long long)batch);
    CJ_TRY(cj_problem_make(desc, &problem));
    CJ_TRY(cj_target_parse(target_name, &target));
    const convjit_status status = cj_family_explain(&problem, &target, batch, &text);
    if (text.failed) {
        cj_text_free(&text);
        return cj_fail(CONVJIT_OUT_OF_MEMORY, "explain failed: no memory for the text");
    }
    char *rest = text.data;
    for (char *line = strsep(&rest, "\n"); rest; line = strsep(&rest, "\n")) {
        write(user, line);
    }
    cj_text_free(&text);
    return status;
}
