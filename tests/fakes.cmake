# The fakes of NVRTC and the CUDA driver: shared objects that tests open by path. A test that links "fakes" finds them as
#   FAKE_NVRTC_PATH, FAKE_DRIVER_PATH   complete
#   INCOMPLETE_NVRTC_FOLDER             libnvrtc.so.13, libnvrtc.so.12, libnvrtc.so: without nvrtcGetCUBIN
#   INCOMPLETE_DRIVER_PATH              without cuLaunchKernel
add_library(fakes INTERFACE)

function(add_fake name source)
  add_library(${name} MODULE ${source} ${ARGN})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CONVJIT_CUDA_HEADERS} ${CONVJIT_NVRTC_HEADERS})
  set_target_properties(${name} PROPERTIES C_VISIBILITY_PRESET default)
  target_link_libraries(${name} PRIVATE Threads::Threads)
  add_dependencies(fakes ${name})
endfunction()

add_fake(fake_nvrtc fake_nvrtc.c)
add_fake(fake_driver fake_driver.c)
add_fake(incomplete_driver fake_driver.c)
target_compile_definitions(incomplete_driver PRIVATE FAKE_DRIVER_INCOMPLETE)

# Once loaded, each answers to its soname wherever the loader is asked for that name.
set(incomplete_folder ${CMAKE_CURRENT_BINARY_DIR}/incomplete)
foreach(file libnvrtc.so.13 libnvrtc.so.12 libnvrtc.so)
  add_fake(incomplete_${file} fake_nvrtc.c)
  target_compile_definitions(incomplete_${file} PRIVATE FAKE_NVRTC_INCOMPLETE)
  target_link_options(incomplete_${file} PRIVATE -Wl,-soname,${file})
  set_target_properties(incomplete_${file} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${incomplete_folder}
    PREFIX "" OUTPUT_NAME ${file} SUFFIX "")
endforeach()

target_compile_definitions(fakes INTERFACE
  FAKE_NVRTC_PATH="$<TARGET_FILE:fake_nvrtc>" FAKE_DRIVER_PATH="$<TARGET_FILE:fake_driver>"
  INCOMPLETE_NVRTC_FOLDER="${incomplete_folder}" INCOMPLETE_DRIVER_PATH="$<TARGET_FILE:incomplete_driver>")
