/* test_cli_tune.c - convjit tune on the target cpu: what it measures, writes and refuses. */
#include "cli_fixture.h"

TestSuite(cli_tune, .init = set_up, .fini = tear_down);

#define LAYER "'a: conv2d n2 c4 k8 in12x12 f3x3 p1 relu'"

Test(cli_tune, measures_checks_and_writes_a_plan_that_is_followed) {
    char *text = expect_exit(0, "convjit tune --target cpu --candidates 2 --plans $FOLDER/plans " LAYER);
    expect_part(text, "layers: 1, passed: 1, failed: 0\n");
    free(text);
    /* What was not the fastest here is planned by hand, so that following the file shows. */
    text = expect_exit(
        0, "sed -n 's/ | .* | direct | .* ms, predicted first .* ms, best of 2 on the host$//p' $FOLDER/plans;"
           "convjit run --target cpu --why 'conv2d c4 k8 in12x12 f3x3 p1 relu' |"
           "sed -nE 's/^    +[0-9.]+ ms  (tile .* row .*)/\\1/p' | head -n 1 >$FOLDER/second;"
           "echo \"cpu | conv2d c4 k8 in12x12 f3x3 p1 relu | direct | $(cat $FOLDER/second)\""
           " >>$FOLDER/plans; cat $FOLDER/second; echo;"
           "convjit run --target cpu --plans $FOLDER/plans " LAYER " | tr -s ' '");
    expect_part(text, "cpu\ntile ");
    char *config = strstr(text, "tile "), *end = strchr(config, '\n');
    cr_assert_not_null(end);
    *end = '\0';
    expect_part(end + 1, config);
    expect_part(end + 1, "layers: 1, passed: 1, failed: 0;");
    free(text);
}

Test(cli_tune, says_what_failed_and_goes_on) {
    char *text = expect_exit(1, "CONVJIT_FAMILY=depthwise convjit tune --target cpu --candidates 1 --json "
                                "--plans $FOLDER/plans " LAYER
                                " 'b: conv1d c4 k4 g4 in9 f3'; status=$?; cat $FOLDER/plans; (exit $status)");
    expect_part(text, "a: create failed for conv2d c4 k8 in12x12 f3x3 s1 p1 f32 nchw fp32 relu: no family computes "
                      "this layer on cpu: ");
    expect_part(text, "\"summary\": {\"layers\": 2, \"passed\": 1, \"failed\": 1}");
    expect_part(text, "cpu | conv1d c4 k4 g4 in9 f3 s1 p0 f32 nchw fp32 | depthwise | ");
    free(text);
}

Test(cli_tune, a_file_that_cannot_be_written_fails_the_layer) {
    char *text = expect_exit(1, "convjit tune --target cpu --candidates 1 --plans $FOLDER/no/plans " LAYER);
    expect_part(text, "a: ");
    expect_part(text, "/no/plans cannot be written: No such file or directory\n");
    free(text);
}

Test(cli_tune, refuses_bad_words) {
    static const struct {
        const char *command, *part;
    } bad[] = {
        {"convjit tune --target cpu " LAYER, "--plans must be given"},
        {"convjit tune --target cpu --plans $FOLDER/plans", "no layer given"},
        {"convjit tune --target cpu --plans $FOLDER/plans --candidates 37 " LAYER,
         "is not a whole number from 0 to 36"},
        {"convjit tune --target sm_90a --plans $FOLDER/plans " LAYER, "cannot run here"},
        {"convjit run --target cpu --plans $FOLDER/absent " LAYER, "absent cannot be read: No such file"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char *text = expect_exit(2, bad[i].command);
        expect_part(text, bad[i].part);
        free(text);
    }
}
