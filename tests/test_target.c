#include "target.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "status.h"

Test(target, known_names_are_read) {
    const struct {
        const char *name;
        int capability;
        bool has_features;
    } cases[] = {{"sm_70", 70, false},    {"sm_75", 75, false},    {"sm_80", 80, false},    {"sm_86", 86, false},
                 {"sm_89", 89, false},    {"sm_90", 90, false},    {"sm_90a", 90, true},    {"sm_100", 100, false},
                 {"sm_100a", 100, true},  {"sm_100f", 100, false}, {"sm_103a", 103, true},  {"sm_110", 110, false},
                 {"sm_120", 120, false},  {"sm_120a", 120, true},  {"sm_120f", 120, false}, {"sm_121", 121, false},
                 {"sm_121f", 121, false}, {"sm_121a", 121, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        cj_target target;
        cr_assert_eq(cj_target_parse(cases[i].name, &target), CONVJIT_SUCCESS, "%s", cases[i].name);
        cr_expect_eq(target.kind, CJ_TARGET_CUDA);
        cr_expect_eq(target.capability, cases[i].capability, "%s", cases[i].name);
        cr_expect_eq(target.has_features, cases[i].has_features, "%s", cases[i].name);
        cr_expect_str_eq(target.name, cases[i].name);
        cr_expect_eq(cj_target_compiler(&target), &cj_nvrtc);
    }
}

Test(target, cpu_is_a_target_with_its_own_compiler) {
    cj_target target;
    cr_assert_eq(cj_target_parse("cpu", &target), CONVJIT_SUCCESS);
    cr_expect_eq(target.kind, CJ_TARGET_CPU);
    cr_expect_eq(target.capability, 0);
    cr_expect_not(target.has_features);
    cr_expect_str_eq(target.name, "cpu");
    cr_expect_eq(cj_target_compiler(&target), &cj_cpu_compiler);
}

/* Suffixes that a chip does not have, spellings of other tools, and near misses. */
Test(target, anything_else_is_refused_by_name) {
    const char *const names[] = {"",           "sm_",    "sm_90b",  "sm_80a", "sm_90f", "sm_90aa",
                                 "sm_91",      "sm_122", "sm_0090", "sm_90 ", " sm_90", "SM_90",
                                 "compute_90", "90",     "sm90",    "sm_-90", "sm_9.0", "sm_1000",
                                 "sm_12000",   "cpu0",   "CPU",     "native", "sm_0x5a"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        cj_target target;
        cr_expect_eq(cj_target_parse(names[i], &target), CONVJIT_INVALID_ARGUMENT, "%s", names[i]);
        char quoted[32];
        snprintf(quoted, sizeof quoted, "\"%s\"", names[i]);
        cr_expect_not_null(strstr(convjit_last_error(), quoted), "%s", convjit_last_error());
        cr_expect_not_null(strstr(convjit_last_error(), "sm_90a"), "the rule is missing: %s", convjit_last_error());
    }
}

Test(target, older_chips_are_told_the_limit) {
    const char *const names[] = {"sm_35", "sm_61", "sm_69", "sm_53", "sm_9"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        cj_target target;
        char text[64];
        cr_expect_eq(cj_target_parse(names[i], &target), CONVJIT_INVALID_ARGUMENT);
        snprintf(text, sizeof text, "target %s is older than sm_70", names[i]);
        cr_expect_not_null(strstr(convjit_last_error(), text), "%s", convjit_last_error());
    }
}

Test(target, null_is_refused) {
    cj_target target;
    cr_expect_eq(cj_target_parse(NULL, &target), CONVJIT_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(convjit_last_error(), "NULL"));
}
