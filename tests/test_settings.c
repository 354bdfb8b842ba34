#include "settings.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

Test(settings, each_has_a_variable_of_its_own_and_a_meaning) {
    cr_expect_str_eq(cj_setting_variable(CJ_SETTING_CACHE_DIR), "CONVJIT_CACHE_DIR");
    for (int i = 0; i < CJ_SETTING_COUNT; ++i) {
        cr_expect_gt(strlen(cj_setting_variable((cj_setting)i)), 3);
        cr_expect_gt(strlen(cj_setting_meaning((cj_setting)i)), 10);
        for (int j = 0; j < i; ++j) {
            cr_expect_str_neq(cj_setting_variable((cj_setting)i), cj_setting_variable((cj_setting)j));
        }
    }
}

Test(settings, a_value_is_read_when_asked_for) {
    for (int i = 0; i < CJ_SETTING_COUNT; ++i) {
        const char *variable = cj_setting_variable((cj_setting)i);
        unsetenv(variable);
        cr_expect_null(cj_setting_get((cj_setting)i));
        setenv(variable, "value of it", 1);
        cr_assert_not_null(cj_setting_get((cj_setting)i));
        cr_expect_str_eq(cj_setting_get((cj_setting)i), "value of it");
    }
}

Test(settings, empty_counts_as_not_set) {
    for (int i = 0; i < CJ_SETTING_COUNT; ++i) {
        setenv(cj_setting_variable((cj_setting)i), "", 1);
        cr_expect_null(cj_setting_get((cj_setting)i));
    }
}
