# Tests of the command-line tool run it; test_cli compares with tests/cli/.
foreach(name test_cli test_cli_cache test_cli_tune test_cli_warm)
  target_compile_definitions(${name} PRIVATE CLI_PROGRAM="$<TARGET_FILE:convjit_cli>")
  target_link_libraries(${name} PRIVATE fakes)
  add_dependencies(${name} convjit_cli)
endforeach()
