/* test_cli_cache.c - convjit cache, on entries that the fake NVRTC made. */
#include "cli_fixture.h"

static void set_up_entries(void) {
    set_up();
    setenv("CONVJIT_NVRTC", FAKE_NVRTC_PATH, 1);
    free(expect_exit(0, "convjit warm --target sm_80 'conv2d c2 k8 in5x6 f3x3' 'conv2d c2 k8 in5x7 f3x3'"));
}

TestSuite(cli_cache, .init = set_up_entries, .fini = tear_down);

/* Commands that set A and B to the two keys. */
#define KEYS "set -- $(convjit cache list | grep -o '^[0-9a-f]\\{32\\}'); A=$1 B=$2; "

Test(cli_cache, path_is_the_directory_that_is_written) {
    char *text = expect_exit(0, "test \"$(convjit cache path)\" = $FOLDER/cache && convjit cache path --cache /a:/b");
    cr_expect_str_eq(text, "/a\n");
    free(text);
    text = expect_exit(1, "convjit cache path --cache /$(printf '%05000d' 1)");
    expect_part(text, "convjit: cache directory failed: ");
    free(text);
}

Test(cli_cache, list_has_a_line_for_each_entry) {
    char *text = expect_exit(0, "convjit cache list");
    expect_part(text, "conv2d c2 k8 in5x6 f3x3 s1 p0 f32 nchw fp32");
    expect_part(text, "conv2d c2 k8 in5x7 f3x3 s1 p0 f32 nchw fp32");
    expect_part(text, "  sm_80 ");
    expect_part(text, "\nentries: 2, damaged: 0, KiB: ");
    free(text);
    text = expect_exit(0, "convjit cache list --json");
    expect_part(text, "{\n  \"entries\": [\n    {\"path\": \"");
    expect_part(text, "\"compiler\": \"nvrtc 13.0.88\"");
    expect_part(text, "\"summary\": {\"entries\": 2, \"damaged\": 0, \"bytes\": ");
    free(text);
    text = expect_exit(0, "convjit cache list --cache $FOLDER/absent");
    cr_expect_str_eq(text, "entries: 0, damaged: 0, KiB: 0.0\n");
    free(text);
}

Test(cli_cache, verify_names_what_is_damaged) {
    char *text = expect_exit(0, "convjit cache verify");
    expect_part(text, "entries: 2, damaged: 0, ");
    free(text);
    text = expect_exit(1, KEYS "truncate -s 100 \"$(convjit cache show $A | sed -n 's/^path *//p')\"; "
                               "convjit cache verify; status=$?; convjit cache show $A; exit $status");
    expect_part(text, "truncated\n");
    expect_part(text, "entries: 2, damaged: 1, ");
    expect_part(text, "problem       truncated\n");
    free(text);
    free(expect_exit(1, KEYS "convjit cache show $A"));
}

Test(cli_cache, show_takes_a_key_its_beginning_or_a_path) {
    char *text =
        expect_exit(0, KEYS "convjit cache show $A >$FOLDER/a; convjit cache show ${A%???????????????????} "
                            ">$FOLDER/b; convjit cache show \"$(sed -n 's/^path *//p' $FOLDER/a)\" >$FOLDER/c; "
                            "cmp $FOLDER/a $FOLDER/b && cmp $FOLDER/a $FOLDER/c && cat $FOLDER/a");
    expect_part(text, "layer         conv2d c2 k8 in5x");
    expect_part(text, "compiler      nvrtc 13.0.88\nversion       0.1.0\nbinary_bytes  72\n");
    free(text);
    text = expect_exit(1, "convjit cache show 00000000000000000000000000000000");
    expect_part(text, "no entry of the cache has the key or path 0000");
    free(text);
    text = expect_exit(2, "convjit cache show ''");
    expect_part(text, "convjit: cache: '' is the beginning of 2 keys; give more of one\n");
    free(text);
    text = expect_exit(0, KEYS "convjit cache show $B --json");
    expect_part(text, "\"target\": \"sm_80\",\n");
    free(text);
}

Test(cli_cache, diff_tells_what_two_keys_hash_differently) {
    char *text = expect_exit(1, KEYS "convjit cache diff $A $B");
    expect_part(text, "layer\n  - conv2d c2 k8 in5x");
    expect_part(text, "CONVJIT_CACHE_FIELDS=1 leaves it at a miss\n");
    free(text);
    free(expect_exit(0, KEYS "convjit cache diff $A $A"));
    text = expect_exit(1, "export CONVJIT_CACHE_FIELDS=1 CONVJIT_CACHE_DIR=$FOLDER/new; "
                          "convjit warm --target sm_80,sm_90a 'conv2d c2 k8 in5x6 f3x3' >$FOLDER/out; " KEYS
                          "convjit cache diff $A $B");
    expect_part(text, "target: sm_90a\n");
    expect_part(text, "target: sm_80\n");
    expect_part(text, "--gpu-architecture=sm_80\n");
    free(text);
}

/* What cache-only mode lacks has no entry, but what its key hashes. */
Test(cli_cache, diff_explains_a_key_that_was_missed) {
    char *text = expect_exit(
        1, "export CONVJIT_CACHE_FIELDS=1 CONVJIT_CACHE_DIR=$FOLDER/new; "
           "convjit warm --target sm_80 'conv2d c2 k8 in5x6 f3x3' >$FOLDER/out; "
           "CONVJIT_CACHE_MODE=cache-only convjit warm --target sm_80 'conv2d c2 k8 in5x9 f3x3' >$FOLDER/out; "
           "B=$(cd $FOLDER/new; ls */*.fields | while read f; do test -e ${f%fields}entry || echo $f; done | "
           "tr -d / | cut -d. -f1); "
           "A=$(convjit cache list | grep -o '^[0-9a-f]\\{32\\}'); convjit cache diff $A $B");
    expect_part(text, "-#define CJ_IN_X 6 ");
    expect_part(text, "+#define CJ_IN_X 9 ");
    free(text);
    text = expect_exit(1, KEYS "convjit cache diff $A 00000000000000000000000000000000");
    expect_part(text, "nothing is known of the key or path 0000");
    free(text);
}

Test(cli_cache, trim_keeps_to_the_size_and_can_be_asked_first) {
    char *text = expect_exit(0, "convjit cache trim --size 300 --dry-run && convjit cache list");
    expect_part(text, "\nwould remove 1 of 2 files, 0.3 of 0.5 KiB, and 0 old temporaries\n");
    expect_part(text, "entries: 2, ");
    free(text);
    text = expect_exit(0, "convjit cache trim --size 300 --json && convjit cache list");
    expect_part(text, "{\"files\": 2, \"bytes\": 5");
    expect_part(text, ", \"removed\": 1, \"removed_bytes\": 2");
    expect_part(text, ", \"temporaries\": 0, \"dry_run\": false}\n");
    expect_part(text, "entries: 1, ");
    free(text);
    text = expect_exit(2, "convjit cache trim --size 1.5G");
    expect_part(text, "cache_size is \"1.5G\", must be a number of bytes");
    free(text);
    free(expect_exit(0,
                     "CONVJIT_CACHE_SIZE=1 convjit cache trim && test -z \"$(convjit cache list --json | grep key)\""));
}

Test(cli_cache, export_and_import_carry_the_entries_elsewhere) {
    char *text = expect_exit(0, "convjit cache export $FOLDER/kernels && "
                                "convjit cache import $FOLDER/kernels --cache $FOLDER/elsewhere --json && "
                                "CONVJIT_CACHE_MODE=cache-only convjit warm --cache $FOLDER/elsewhere --target sm_80 "
                                "'conv2d c2 k8 in5x6 f3x3' 'conv2d c2 k8 in5x7 f3x3' --json");
    expect_part(text, "entries: 2\n{\"entries\": 2}\n");
    expect_part(text, "\"disk_hits\": 2, \"misses\": 0, ");
    free(text);
    text = expect_exit(1, "truncate -s 100 $FOLDER/kernels; convjit cache import $FOLDER/kernels");
    expect_part(text, "kernels is of no use: truncated\n");
    free(text);
    text = expect_exit(1, "convjit cache export $FOLDER/absent/kernels");
    expect_part(text, "No such file or directory\n");
    free(text);
}

Test(cli_cache, actions_are_named_when_they_are_wrong) {
    char *text = expect_exit(2, "convjit cache");
    expect_part(text, "convjit: cache: no action given; ");
    free(text);
    text = expect_exit(2, "convjit cache clean");
    expect_part(text, "convjit: cache: unknown action 'clean'; ");
    free(text);
    text = expect_exit(2, "convjit cache export");
    expect_part(text, "convjit: cache: export takes 1 more words, not 0; ");
    free(text);
}
