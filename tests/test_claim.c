/* test_claim.c - one build per key among processes. */
#include "cache/claim.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "cache_fixture.h"

TestSuite(claim, .init = enter, .fini = leave);

static cj_directory cache_directory(void) {
    cj_directory directory = {.directory_mode = 0700, .file_mode = 0600};
    snprintf(directory.path, sizeof directory.path, "%s", below("cache"));
    return directory;
}

Test(claim, of_a_key_keeps_others_from_it_and_not_from_other_keys) {
    const cj_directory directory = cache_directory();
    const cj_key key = make_entry(1, "", 0).key;
    const cj_key other = make_entry(2, "", 0).key;
    cj_claim claim, second, third;
    cr_assert_eq(cj_claim_take(&directory, &key, 0, &claim), CJ_CLAIM_OURS, "the directory is made");
    cr_expect_eq(cj_claim_take(&directory, &key, 20, &second), CJ_CLAIM_BUSY);
    cr_expect_eq(second.file, -1);
    cr_expect_eq(cj_claim_take(&directory, &other, 0, &third), CJ_CLAIM_OURS);
    cj_claim_release(&third);
    cr_expect_eq(cj_claim_take(&directory, &key, 0, &second), CJ_CLAIM_BUSY,
                 "closing another file of it frees nothing");
    cj_claim_release(&claim);
    cr_expect_eq(cj_claim_take(&directory, &key, 0, &second), CJ_CLAIM_OURS);
    cj_claim_release(&second);
    cj_claim_release(&second);
    cr_expect_eq(access(below("cache/build.lock"), F_OK), 0, "a lock's file stays");
}

Test(claim, ends_with_its_process) {
    const cj_directory directory = cache_directory();
    const cj_key key = make_entry(1, "", 0).key;
    cj_claim claim;
    int ready[2];
    char byte;
    cr_assert_eq(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        const char told = cj_claim_take(&directory, &key, 0, &claim) == CJ_CLAIM_OURS ? 'y' : 'n';
        _exit(write(ready[1], &told, 1) == 1 && pause() == 0);
    }
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    cr_assert_eq(byte, 'y');
    cr_expect_eq(cj_claim_take(&directory, &key, 0, &claim), CJ_CLAIM_BUSY);
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    cr_expect_eq(cj_claim_take(&directory, &key, 0, &claim), CJ_CLAIM_OURS);
    cj_claim_release(&claim);
}

static void *release_later(void *claim) {
    const struct timespec time = {.tv_nsec = 50000000};
    nanosleep(&time, NULL);
    cj_claim_release(claim);
    return NULL;
}

Test(claim, waits_for_others) {
    const cj_directory directory = cache_directory();
    const cj_key key = make_entry(1, "", 0).key;
    cj_claim claim, second;
    pthread_t thread;
    cr_assert_eq(cj_claim_take(&directory, &key, 0, &claim), CJ_CLAIM_OURS);
    pthread_create(&thread, NULL, release_later, &claim);
    cr_expect_eq(cj_claim_take(&directory, &key, 10000, &second), CJ_CLAIM_OURS);
    pthread_join(thread, NULL);
    cj_claim_release(&second);
}

Test(claim, cannot_be_had_where_nothing_can_be_written) {
    cj_directory directory = cache_directory();
    const cj_key key = make_entry(1, "", 0).key;
    cj_claim claim;
    write_file(below("cache"), "no directory");
    cr_expect_eq(cj_claim_take(&directory, &key, 1000, &claim), CJ_CLAIM_NONE);
    cr_expect_eq(claim.file, -1);
    cj_claim_release(&claim);
    cr_assert_eq(unlink(below("cache")), 0);
    cr_assert_eq(mkdir(below("target"), 0700), 0);
    cr_assert_eq(mkdir(below("cache"), 0700), 0);
    cr_assert_eq(symlink(below("target/planted"), below("cache/build.lock")), 0);
    cr_expect_eq(cj_claim_take(&directory, &key, 1000, &claim), CJ_CLAIM_NONE, "a planted link is not followed");
    cr_expect_eq(count_files(below("target")), 0);
}
