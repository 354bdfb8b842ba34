# What of tools/bench needs neither a GPU nor PyTorch. A library with sanitizers cannot be loaded into Python.
set(loadable $<TARGET_FILE:convjit>)
if(CONVJIT_SANITIZE)
  set(loadable "")
endif()
find_package(Python3 3.9 COMPONENTS Interpreter)
if(Python3_FOUND)
  add_test(NAME bench_selftest WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    COMMAND ${Python3_EXECUTABLE} -B tests/bench_selftest.py ${CMAKE_C_COMPILER} ${CMAKE_SOURCE_DIR}/include
      ${loadable})
  add_test(NAME bench_tables_selftest WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    COMMAND ${Python3_EXECUTABLE} -B tests/bench_tables_selftest.py)
else()
  message(STATUS "no Python 3.9: bench_selftest is not built")
endif()
