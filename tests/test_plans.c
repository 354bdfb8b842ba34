/* test_plans.c - ways to compute a layer: which there are, how one is asked for, and the plan file. */
#include "layer_fixture.h"

#include "family.h"

TestSuite(plans, .init = enter_layer, .fini = leave);

static const char standard[] = "conv2d c32 k64 in56x56 hint=8 f3x3 s1 p1 f32 nchw fp32"; /* as format writes it */
static const char other[] = "conv2d c32 k64 in28x28 f3x3 p1";
static const char *const kinds[] = {
    standard,
    "conv2d c96 k96 g96 in56x56 hint=32 f7x7 p3",
    "conv2d c64 k64 g64 in56x56 f3x3 s2 p1 nhwc f16",
    "conv1d c64 k128 in5242 hint=64 f3 s3 d4 tf32", /* runs overlap or do not */
    "convt3d c32 k64 in16x32x32 hint=16 f3x3x3 s2 p1 d2 fp32_block",
    "conv3d c3 k8 f3x3x3",
};
enum { KINDS = sizeof kinds / sizeof kinds[0], WAYS = 64 };

typedef struct ways {
    char family[WAYS][32], config[WAYS][CJ_CONFIG_MAX];
    double ms[WAYS];
    size_t count;
} ways;

static void keep_way(void *user, const char *family, const char *config, double predicted_ms) {
    ways *to = user;
    cr_assert_lt(to->count, WAYS);
    snprintf(to->family[to->count], sizeof to->family[0], "%s", family);
    snprintf(to->config[to->count], sizeof to->config[0], "%s", config);
    to->ms[to->count++] = predicted_ms;
}

static ways ways_of(const char *line, size_t most) {
    ways found = {.count = 0};
    const convjit_desc desc = desc_of(line);
    ASSERT_OK(convjit_candidates(&desc, "sm_90a", most, keep_way, &found));
    return found;
}

/* Creates the layer and tells its way. */
static void expect_way(convjit_context *context, const char *line, const char *family, const char *config) {
    convjit_layer *layer;
    ASSERT_OK(try_create(context, line, &layer));
    cr_expect_str_eq(convjit_layer_get_info(layer).family, family, "%s", line);
    cr_expect_str_eq(convjit_layer_get_info(layer).config, config, "%s", line);
    convjit_layer_destroy(layer);
}

static const char *write_plans(const char *text) {
    const char *const path = below("plans");
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    (void)fputs(text, file);
    (void)fclose(file);
    return path;
}

static convjit_context *open_planned(const char *target, const char *file) {
    convjit_options options = options_for(target);
    convjit_context *context = NULL;
    options.plan_file = file;
    ASSERT_OK(convjit_open(&options, &context));
    return context;
}

/* ---------------------------------------------------------------- which there are */

Test(plans, the_first_candidate_is_what_create_takes_and_none_after_it_is_predicted_to_be_faster) {
    convjit_context *context = open_for("sm_90a");
    for (size_t i = 0; i < KINDS; i++) {
        const ways found = ways_of(kinds[i], WAYS);
        cr_assert_gt(found.count, 1, "%s", kinds[i]);
        expect_way(context, kinds[i], found.family[0], found.config[0]);
        for (size_t j = 1; j < found.count; j++) {
            cr_expect(found.ms[j] >= found.ms[j - 1], "%s: %s", kinds[i], found.config[j]);
            for (size_t k = 0; k < j; k++) {
                cr_expect(strcmp(found.config[j], found.config[k]) != 0, "%s: %s twice", kinds[i], found.config[j]);
            }
        }
        cr_expect_eq(ways_of(kinds[i], 1).count, 1);
        cr_expect_eq(ways_of(kinds[i], 0).count, 0);
    }
    convjit_close(context);
}

Test(plans, of_a_layer_that_none_computes_there_are_no_candidates) {
    ways found = {.count = 0};
    convjit_desc desc = desc_of(standard);
    setenv("CONVJIT_FAMILY", "depthwise", 1);
    EXPECT_FAILS(convjit_candidates(&desc, "sm_90a", WAYS, keep_way, &found), CONVJIT_UNSUPPORTED,
                 "more than one input channel a group");
    unsetenv("CONVJIT_FAMILY");
    EXPECT_FAILS(convjit_candidates(&desc, "sm_90a", WAYS, NULL, NULL), CONVJIT_INVALID_ARGUMENT, "visit is NULL");
    EXPECT_FAILS(convjit_candidates(&desc, "sm_1", WAYS, keep_way, &found), CONVJIT_INVALID_ARGUMENT, "sm_1");
    desc.groups = 0;
    EXPECT_FAILS(convjit_candidates(&desc, "sm_90a", WAYS, keep_way, &found), CONVJIT_INVALID_LAYER, "groups");
    cr_expect_eq(found.count, 0);
}

/* ---------------------------------------------------------------- asked for */

Test(plans, a_layer_is_computed_in_the_way_that_is_asked_for) {
    convjit_context *context = open_for("sm_90a");
    for (size_t i = 0; i < KINDS; i++) {
        const ways found = ways_of(kinds[i], WAYS);
        const convjit_desc desc = desc_of(kinds[i]);
        for (size_t j = 0; j < found.count; j++) {
            convjit_layer *layer;
            line_count = 0;
            ASSERT_OK(convjit_layer_create_as(context, &desc, found.family[j], found.config[j], &layer));
            cr_expect_str_eq(convjit_layer_get_info(layer).config, found.config[j], "%s", kinds[i]);
            cr_expect_str_eq(convjit_layer_get_info(layer).family, found.family[j], "%s", kinds[i]);
            cr_expect_float_eq(convjit_layer_predict_ms(layer, desc.batch_hint > 0 ? desc.batch_hint : 8), found.ms[j],
                               desc.batch_hint > 0 ? 1e-9 : found.ms[j], "%s: %s", kinds[i], found.config[j]);
            convjit_layer_destroy(layer);
        }
    }
    convjit_close(context);
}

/* The second way's binary is that of a layer that was planned so, and what is planned stays what it was. */
Test(plans, asking_changes_nothing_for_those_who_do_not) {
    const ways found = ways_of(standard, WAYS);
    const convjit_desc desc = desc_of(standard);
    convjit_context *context = open_for(NULL);
    convjit_layer *first, *second, *again;
    ASSERT_OK(convjit_layer_create_as(context, &desc, found.family[1], found.config[1], &second));
    ASSERT_OK(convjit_layer_create(context, &desc, &first));
    cr_expect_str_eq(convjit_layer_get_info(first).config, found.config[0]);
    ASSERT_OK(convjit_layer_create_as(context, &desc, found.family[1], found.config[1], &again));
    cr_expect_str_eq(convjit_layer_get_info(again).config, found.config[1]);
    cr_expect_str_eq(convjit_layer_get_info(again).key, convjit_layer_get_info(second).key);
    cr_expect(strcmp(convjit_layer_get_info(first).key, convjit_layer_get_info(second).key) != 0);
    convjit_layer_destroy(first);
    convjit_layer_destroy(second);
    convjit_layer_destroy(again);
    convjit_close(context);
}

Test(plans, what_is_no_way_is_refused) {
    const ways found = ways_of(standard, 1);
    const convjit_desc desc = desc_of(standard);
    convjit_context *context = open_for("sm_90a");
    convjit_layer *layer = NULL;
    char long_config[2 * CJ_CONFIG_MAX] = "";
    memset(long_config, 'x', sizeof long_config - 1);
    const struct {
        const char *family, *config, *part;
    } refused[] = {
        {NULL, "x", "create failed: family is NULL"},
        {"tensor", NULL, "create failed: config is NULL"},
        {"winograd", "x", "no family is called \"winograd\""},
        {"depthwise", "x", "more than one input channel a group"},
        {"tensor", "", "no configuration of this layer is \"\""},
        {"tensor", "tile 1x1", "no configuration of this layer is \"tile 1x1\""},
        {"direct", found.config[0], "no configuration of this layer is"},
        {"tensor", long_config, "a configuration of 319 characters, at most 159"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        EXPECT_FAILS(convjit_layer_create_as(context, &desc, refused[i].family, refused[i].config, &layer),
                     CONVJIT_INVALID_ARGUMENT, refused[i].part);
        cr_expect_null(layer);
    }
    convjit_close(context);
}

/* ---------------------------------------------------------------- the file */

Test(plans, a_file_says_how_its_layers_are_computed) {
    const ways found = ways_of(standard, WAYS), others = ways_of(other, 1);
    char text[4096];
    snprintf(text, sizeof text,
             "# measured\n\n"
             "sm_90a | %s | %s | %s | 0.1 ms, the last one counts\n"
             "sm_80 | %s | direct | as it is measured there\n"
             "sm_90a | conv2d n8 k64 c32 f3x3 hint=8 p1 in56x56 | %s | %s | 0.2 ms # the same layer\r\n",
             standard, found.family[2], found.config[2], standard, found.family[1], found.config[1]);
    const char *const path = write_plans(text);
    convjit_context *context = open_planned("sm_90a", path);
    expect_way(context, standard, found.family[1], found.config[1]);
    expect_way(context, other, others.family[0], others.config[0]);
    convjit_close(context);
    context = open_planned(NULL, path); /* on the device, the second time from memory */
    expect_way(context, standard, found.family[1], found.config[1]);
    expect_way(context, standard, found.family[1], found.config[1]);
    cr_expect_eq(convjit_get_counters(context).memory_hits, 1);
    convjit_close(context);
    setenv("CONVJIT_PLANS", path, 1);
    context = open_for("sm_90a");
    unsetenv("CONVJIT_PLANS");
    expect_way(context, standard, found.family[1], found.config[1]);
    convjit_close(context);
}

Test(plans, what_this_version_does_not_know_is_logged_and_planned_as_ever) {
    static const char *const rests[] = {"tensor | tile 1x1", "winograd | f4x4", "depthwise | x"};
    const ways found = ways_of(standard, 1);
    for (size_t i = 0; i < sizeof rests / sizeof rests[0]; i++) {
        char text[1024];
        snprintf(text, sizeof text, "sm_90a | %s | %s\n", standard, rests[i]);
        line_count = 0;
        convjit_context *context = open_planned("sm_90a", write_plans(text));
        expect_way(context, standard, found.family[0], found.config[0]);
        cr_expect_not_null(strstr(lines[0], "its plan is not used: "), "%s", lines[0]);
        convjit_close(context);
    }
}

Test(plans, a_file_that_is_none_fails_open_and_is_named_with_the_line) {
    char long_family[256], long_config[512];
    snprintf(long_family, sizeof long_family, "sm_90a | %s | %060d | x\n", standard, 0);
    snprintf(long_config, sizeof long_config, "sm_90a | %s | tensor | %0300d\n", standard, 0);
    const struct {
        const char *text, *part;
    } bad[] = {
        {"\nsm_90a\n", "plans, line 2: not TARGET | LAYER LINE | FAMILY | CONFIGURATION"},
        {"sm_90a | conv1d c1 k1 f1 | direct |\n", "line 1: not TARGET"},
        {"sm_90a | conv1d c1 k1 f1 | direct | ", "line 1: not TARGET"},
        {"sm_90a | conv1d c1 k1 f1\n", "line 1: not TARGET"},
        {"sm_90a | conv9d c1 | direct | x\n", "line 1: "},
        {long_family, "line 1: a family has at most 31 characters, a configuration 159"},
        {long_config, "line 1: a family has at most 31 characters, a configuration 159"},
    };
    convjit_options options = options_for("sm_90a");
    convjit_context *context = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        options.plan_file = write_plans(bad[i].text);
        EXPECT_FAILS(convjit_open(&options, &context), CONVJIT_FILE_FAILED, bad[i].part);
    }
    options.plan_file = below("absent");
    EXPECT_FAILS(convjit_open(&options, &context), CONVJIT_FILE_FAILED, "absent cannot be read: No such file");
    options.plan_file = below("");
    EXPECT_FAILS(convjit_open(&options, &context), CONVJIT_FILE_FAILED, " cannot be read: Is a directory");
    cr_expect_null(context);
}
