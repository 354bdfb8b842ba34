# Writes OUTPUT, a C file that holds the files FILES (names relative to ROOT) as text: cj_embedded_files of src/embedded.h.
# Run as: cmake -DROOT=... -DFILES=a,b -DOUTPUT=... -P embed.cmake
string(REPLACE "," ";" FILES "${FILES}")
set(bodies "")
set(table "")
set(index 0)
foreach(name IN LISTS FILES)
  file(READ "${ROOT}/${name}" hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "((0x..,){24})" "\\1\n" bytes "${bytes}")
  string(APPEND bodies "static const char file_${index}[] = {\n${bytes}0};\n")
  string(APPEND table "    {\"${name}\", file_${index}, ${size}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUTPUT}.new" "/* Written by tools/embed.cmake. */\n#include \"embedded.h\"\n\n${bodies}
const cj_embedded_file cj_embedded_files[] = {\n${table}    {0, 0, 0},\n};\n")
file(RENAME "${OUTPUT}.new" "${OUTPUT}")
