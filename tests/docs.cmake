# Tests of the documentation (docs.sh), one a check, and the C example of README as a program.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/README.md)
file(READ ${CMAKE_SOURCE_DIR}/README.md readme)
string(REGEX MATCH "```c\n([^`]*)```" matched "${readme}")
if(NOT matched)
  message(FATAL_ERROR "README.md has no C example")
endif()
file(CONFIGURE OUTPUT readme_example.c CONTENT "${CMAKE_MATCH_1}" @ONLY)
add_executable(readme_example ${CMAKE_CURRENT_BINARY_DIR}/readme_example.c)
target_link_libraries(readme_example PRIVATE convjit)

# A program of others' is not sanitized, and so cannot load a library that is.
if(NOT CONVJIT_SANITIZE)
  add_test(NAME installed COMMAND bash tests/installed.sh ${CMAKE_BINARY_DIR} ${CMAKE_CURRENT_BINARY_DIR}/readme_example.c
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
endif()

function(add_docs_test check)
  add_test(NAME docs_${check} COMMAND bash tests/docs.sh ${check} ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
endfunction()
add_docs_test(settings)
add_docs_test(paths)
add_docs_test(identifiers)
add_docs_test(order $<TARGET_FILE:convjit_static>)
add_docs_test(example $<TARGET_FILE:readme_example>)
if(TARGET convjit_cli)
  add_docs_test(help $<TARGET_FILE:convjit_cli>)
  add_docs_test(warm $<TARGET_FILE:convjit_cli> $<TARGET_FILE:fake_nvrtc>)
endif()
