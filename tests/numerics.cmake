# The grid of layers and the ONNX cases forced onto a family, on the target cpu. For tensor every sixteenth layer, for time:
# other ones in each math.
foreach(math fp32 fp32_block tf32)
  add_test(NAME grid_tensor_${math} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    COMMAND convjit_numerics --target cpu --family tensor --math ${math} --every 16)
endforeach()
add_test(NAME grid_depthwise WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
  COMMAND convjit_numerics --target cpu --family depthwise)
