# test_cli runs the command-line tool and compares with tests/cli/.
target_compile_definitions(test_cli PRIVATE CLI_PROGRAM="$<TARGET_FILE:convjit_cli>")
target_link_libraries(test_cli PRIVATE fakes)
add_dependencies(test_cli convjit_cli)
