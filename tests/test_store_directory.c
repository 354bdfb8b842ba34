/* test_store_directory.c - which directory the cache takes, and with what rights. */
#include <criterion/criterion.h>
#include <sys/stat.h>

#include "cache_fixture.h"

TestSuite(store_directory, .init = enter, .fini = leave);

static void expect_mode(const char *path, mode_t mode) {
    struct stat info;
    cr_assert_eq(stat(path, &info), 0, "%s", path);
    cr_expect_eq(info.st_mode & 07777, mode, "%s has mode %o", path, info.st_mode & 07777);
}

static void expect_described(cj_store *store, const char *text) {
    cr_expect(strstr(cj_store_describe(store), text) != NULL, "\"%s\" lacks \"%s\"", cj_store_describe(store), text);
}

Test(store_directory, takes_the_callers_directory_before_all_settings) {
    setenv("CONVJIT_CACHE_DIR", below("setting"), 1);
    setenv("XDG_CACHE_HOME", below("xdg"), 1);
    cj_store *store = open_store(below("caller"));
    expect_described(store, below("caller (cache_directory)"));
    cj_store_close(store);
}

Test(store_directory, takes_the_setting_before_the_users_directories) {
    setenv("CONVJIT_CACHE_DIR", below("setting"), 1);
    setenv("XDG_CACHE_HOME", below("xdg"), 1);
    cj_store *store = open_store(NULL);
    expect_described(store, below("setting (CONVJIT_CACHE_DIR)"));
    cj_store_close(store);
}

Test(store_directory, takes_xdg_before_home_and_creates_both_private) {
    setenv("XDG_CACHE_HOME", below("xdg"), 1);
    const cj_entry entry = sample();
    umask(022);
    cj_store *store = open_store(NULL);
    expect_described(store, below("xdg/convjit (XDG_CACHE_HOME)"));
    write_ok(store, &entry);
    cj_store_close(store);
    unsetenv("XDG_CACHE_HOME");
    store = open_store(NULL);
    expect_described(store, below(".cache/convjit (HOME)"));
    write_ok(store, &entry);
    cj_store_close(store);
    expect_mode(below("xdg"), 0700);
    expect_mode(below("xdg/convjit"), 0700);
    expect_mode(below("xdg/convjit/ab"), 0700);
    expect_mode(entry_file(below("xdg/convjit"), &entry.key), 0600);
    expect_mode(below(".cache"), 0700);
}

Test(store_directory, creates_a_named_directory_as_the_umask_says) {
    const cj_entry entry = sample();
    umask(022);
    cj_store *store = open_store(below("a/b"));
    write_ok(store, &entry);
    cj_store_close(store);
    expect_mode(below("a"), 0755);
    expect_mode(below("a/b/ab"), 0755);
    expect_mode(entry_file(below("a/b"), &entry.key), 0644);
}

Test(store_directory, ignores_a_relative_or_empty_xdg_directory) {
    const char *values[] = {"relative", "./relative", ""};
    for (int i = 0; i < 3; i++) {
        setenv("XDG_CACHE_HOME", values[i], 1);
        cj_store *store = open_store(NULL);
        expect_described(store, below(".cache/convjit (HOME)"));
        cj_store_close(store);
    }
}

Test(store_directory, does_not_create_a_home_that_is_missing) {
    setenv("HOME", below("home"), 1);
    cj_store *store = open_store(NULL);
    const cj_entry entry = sample();
    expect_write_fails(store, &entry, "No such file or directory");
    cr_expect_eq(count_files(folder), 0);
    cj_store_close(store);
}

Test(store_directory, keeps_a_relative_directory_where_it_was_named) {
    cr_assert_eq(chdir(folder), 0);
    cj_store *store = open_store("cache");
    cr_assert_eq(chdir("/"), 0);
    const cj_entry entry = sample();
    write_ok(store, &entry);
    cr_expect_eq(access(entry_file(below("cache"), &entry.key), F_OK), 0);
    cj_store_close(store);
}

Test(store_directory, refuses_a_path_that_is_too_long) {
    char path[5000];
    memset(path, 'x', sizeof path - 1);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    cj_store *store = open_store(path);
    const cj_entry entry = sample();
    expect_absent(store, &entry);
    expect_write_fails(store, &entry, "longer than");
    cj_store_close(store);
}

static const char *temporary_root(void) {
    char name[64];
    snprintf(name, sizeof name, "convjit-%lu", (unsigned long)geteuid());
    return below(name);
}

Test(store_directory, without_home_uses_a_private_directory_among_the_temporary_ones) {
    const char *homes[] = {NULL, "", "relative"};
    const cj_entry entry = sample();
    for (int i = 0; i < 3; i++) {
        homes[i] != NULL ? setenv("HOME", homes[i], 1) : unsetenv("HOME");
        cj_store *store = open_store(NULL);
        expect_described(store, temporary_root());
        expect_described(store, "no absolute HOME");
        write_ok(store, &entry);
        expect_hit(store, &entry);
        expect_mode(temporary_root(), 0700);
        cj_store_close(store);
        testing_folder_remove(temporary_root());
    }
}

Test(store_directory, with_a_relative_tmpdir_falls_back_to_tmp) {
    unsetenv("HOME");
    setenv("TMPDIR", "relative", 1);
    cj_store *store = open_store(NULL);
    char expected[64];
    snprintf(expected, sizeof expected, "/tmp/convjit-%lu", (unsigned long)geteuid());
    expect_described(store, expected);
    cj_store_close(store);
}

static void expect_trap_refused(const char *reason) {
    cj_store *store = open_store(NULL);
    const cj_entry entry = sample();
    expect_described(store, "none: ");
    expect_described(store, reason);
    expect_absent(store, &entry);
    expect_write_fails(store, &entry, reason);
    cj_store_close(store);
}

Test(store_directory, refuses_a_link_planted_at_its_temporary_directory) {
    unsetenv("HOME");
    cr_assert_eq(mkdir(below("trap"), 0700), 0);
    cr_assert_eq(symlink(below("trap"), temporary_root()), 0);
    expect_trap_refused("it is not a directory");
    cr_expect_eq(count_files(below("trap")), 0);
}

Test(store_directory, refuses_a_temporary_directory_that_others_may_enter) {
    unsetenv("HOME");
    cr_assert_eq(mkdir(temporary_root(), 0700), 0);
    cr_assert_eq(chmod(temporary_root(), 0750), 0);
    expect_trap_refused("other users may enter it");
    cr_expect_eq(count_files(temporary_root()), 0);
}

Test(store_directory, refuses_a_temporary_directory_of_another_user) {
    unsetenv("HOME");
    cr_assert_eq(mkdir(temporary_root(), 0700), 0);
    if (chown(temporary_root(), 65534, 65534) != 0) {
        cr_skip_test("only user 0 can give a directory away");
    }
    expect_trap_refused("it belongs to another user");
}

Test(store_directory, refuses_a_link_planted_while_it_runs) {
    unsetenv("HOME");
    cj_store *store = open_store(NULL);
    const cj_entry entry = sample();
    write_ok(store, &entry);
    cr_assert_eq(rename(temporary_root(), below("moved")), 0);
    cr_assert_eq(symlink(below("moved"), temporary_root()), 0);
    expect_absent(store, &entry);
    expect_write_fails(store, &entry, "it is not a directory");
    cj_store_close(store);
}
