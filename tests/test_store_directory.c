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

static const char *temporary_root(void) {
    char name[64];
    snprintf(name, sizeof name, "convjit-%lu", (unsigned long)geteuid());
    return below(name);
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

/* --------------------------------------------------------------------------------------------- search path --- */

/* "FOLDER/A:FOLDER/B:..."; "" for an empty part. */
static const char *path_of(const char *const *names, size_t count) {
    static char path[4 * TESTING_PATH_MAX];
    path[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        strcat(path, i > 0 ? ":" : "");
        strcat(path, names[i][0] != '\0' ? below(names[i]) : "");
    }
    return path;
}

Test(store_directory, search_path_is_read_in_order_and_written_in_front) {
    const char *const names[] = {"own", "absent", "image", "", "share"};
    const char *path = path_of(names, 5);
    const cj_entry in_image = make_entry(1, "image", 5);
    const cj_entry in_share = make_entry(1, "the share", 9);
    const cj_entry only_in_share = make_entry(2, "only there", 10);
    const cj_entry entry = sample();
    cj_store *image = open_store(below("image"));
    cj_store *share = open_store(below("share"));
    write_ok(image, &in_image);
    write_ok(share, &in_share);
    write_ok(share, &only_in_share);
    cj_store *store = open_store(path);
    expect_hit(store, &in_image);
    expect_hit(store, &only_in_share);
    expect_absent(store, &entry);
    write_ok(store, &entry);
    expect_hit(store, &entry);
    cr_expect_eq(access(entry_file(below("own"), &entry.key), F_OK), 0);
    expect_absent(image, &entry);
    expect_absent(share, &entry);
    cr_expect_eq(access(below("absent"), F_OK), -1);
    expect_described(store, below("own (cache_directory); read only: "));
    expect_described(store, below("share"));
    cj_store_close(store);
    cj_store_close(share);
    cj_store_close(image);
}

Test(store_directory, search_path_with_an_empty_front_writes_to_the_users_directory) {
    const char *const names[] = {"", "image"};
    setenv("CONVJIT_CACHE_DIR", path_of(names, 2), 1);
    cj_store *store = open_store(NULL);
    const cj_entry entry = sample();
    write_ok(store, &entry);
    cr_expect_eq(access(entry_file(below(".cache/convjit"), &entry.key), F_OK), 0);
    expect_described(store, below(".cache/convjit (HOME); read only: "));
    cj_store_close(store);
}

Test(store_directory, search_path_of_more_than_8_directories_is_refused) {
    convjit_options options = CONVJIT_OPTIONS_INIT;
    cj_store *store;
    options.cache_directory = "/a:/b:/c:/d:/e:/f:/g:/h";
    cr_assert_eq(cj_store_open(&options, &store), CONVJIT_SUCCESS);
    cj_store_close(store);
    options.cache_directory = "/a:/b:/c:/d:/e:/f:/g:/h:/i";
    cr_expect_eq(cj_store_open(&options, &store), CONVJIT_INVALID_ARGUMENT);
    cr_expect_str_eq(convjit_last_error(), "cache_directory names more than 8 directories");
}

static void spoil(const char *root, const cj_entry *entry) {
    cr_assert_eq(truncate(entry_file(root, &entry->key), 100), 0);
}

Test(store_directory, search_path_goes_on_behind_an_entry_that_is_of_no_use) {
    const char *const names[] = {"own", "image"};
    const cj_entry entry = sample();
    const char *path = path_of(names, 2);
    cj_store *own = open_store(below("own"));
    cj_store *image = open_store(below("image"));
    cj_store *store = open_store(path);
    cj_read read;
    write_ok(own, &entry);
    write_ok(image, &entry);
    spoil(below("own"), &entry);
    cr_assert_eq(read_store(store, &entry, &read), CJ_READ_HIT);
    cr_expect_not_null(strstr(read.reason, "truncated (in "), "%s", read.reason);
    free(read.bytes);
    spoil(below("image"), &entry);
    cr_expect_eq(read_store(store, &entry, &read), CJ_READ_BAD);
    cr_expect_not_null(strstr(read.reason, "/own)"), "the first one is named: %s", read.reason);

    cj_entry other = entry; /* of another compiler in front, of the wanted one behind */
    other.compiler = "nvrtc 2";
    write_ok(own, &other);
    write_ok(image, &entry);
    const cj_wanted wanted = {entry.key, entry.target, "nvrtc 1", entry.threads, entry.shared_bytes};
    cr_assert_eq(cj_store_read(store, &wanted, &read), CJ_READ_HIT);
    cr_expect_str_eq(read.entry.compiler, "nvrtc 1");
    free(read.bytes);
    cj_store_close(store);
    cj_store_close(image);
    cj_store_close(own);
}

/* ------------------------------------------------------------------------------------- temporary directories --- */

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

/* As in a container whose root is read-only, or where HOME is another user's. */
Test(store_directory, a_home_that_cannot_be_written_is_read_behind_the_temporary_directory) {
    if (!become_ordinary()) {
        cr_skip_test("user 0 ignores permissions, and cannot become another user here");
    }
    const cj_entry old = make_entry(1, "in HOME", 7);
    const cj_entry entry = sample();
    cj_store *store = open_store(NULL);
    write_ok(store, &old);
    cj_store_close(store);
    chmod(below(".cache/convjit"), 0500);
    store = open_store(NULL);
    expect_described(store, temporary_root());
    expect_described(store, "(TMPDIR; HOME cannot be written: Permission denied); read only: ");
    expect_described(store, below(".cache/convjit (HOME)"));
    expect_hit(store, &old);
    write_ok(store, &entry);
    expect_hit(store, &entry);
    cr_expect_eq(access(entry_file(temporary_root(), &entry.key), F_OK), 0);
    cj_store_close(store);
    chmod(below(".cache/convjit"), 0700);
    become_oneself();
}

Test(store_directory, without_the_home_it_names_uses_the_temporary_directory) {
    setenv("HOME", below("home"), 1);
    cj_store *store = open_store(NULL);
    const cj_entry entry = sample();
    expect_described(store, temporary_root());
    expect_described(store, "HOME cannot be written: No such file or directory");
    write_ok(store, &entry);
    expect_hit(store, &entry);
    cr_expect_eq(access(below("home"), F_OK), -1, "a home is not ours to create");
    cj_store_close(store);
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

/* ------------------------------------------------------------------------------------------------- the tag --- */

Test(store_directory, is_tagged_as_a_cache_unless_it_holds_other_things) {
    const cj_entry entry = sample();
    const char *roots[] = {"new", "empty", "used"};
    cr_assert_eq(mkdir(below("empty"), 0700), 0);
    cr_assert_eq(mkdir(below("used"), 0700), 0);
    write_file(below("used/thesis.txt"), "not to be left out of backups");
    for (int i = 0; i < 3; i++) {
        cj_store *store = open_store(below(roots[i]));
        write_ok(store, &entry);
        cj_store_close(store);
    }
    cr_expect_eq(access(below("used/CACHEDIR.TAG"), F_OK), -1);
    for (int i = 0; i < 2; i++) {
        char path[64];
        char head[44] = "";
        snprintf(path, sizeof path, "%s/CACHEDIR.TAG", roots[i]);
        FILE *file = fopen(below(path), "r");
        cr_assert_not_null(file, "%s", path);
        cr_expect_not_null(fgets(head, sizeof head, file));
        cr_expect_str_eq(head, "Signature: 8a477f597d28d172789f06886806bc55");
        fclose(file);
    }
}
