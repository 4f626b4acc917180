# Turns files into C++ byte arrays at build time. Included, it gives motley_embed(TARGET NAMESPACE name=file ...): each
# file becomes `extern const std::string_view <name>` of the namespace. Run with -P, it writes the one source file.
if(CMAKE_SCRIPT_MODE_FILE)
  set(text "#include <string_view>\n\nnamespace ${NAMESPACE} {\n")
  foreach(pair IN LISTS PAIRS)
    string(REGEX MATCH "^([a-z_]+)=(.*)$" _ "${pair}")
    set(name "${CMAKE_MATCH_1}")
    file(READ "${CMAKE_MATCH_2}" bytes HEX)
    string(REGEX REPLACE "(................................................................)" "\\1\n" bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
    string(APPEND text "static constexpr char ${name}_bytes[] = {\n${bytes}'\\0'};\n"
                       "extern const std::string_view ${name};\n"
                       "const std::string_view ${name}(${name}_bytes, sizeof ${name}_bytes - 1);\n")
  endforeach()
  file(WRITE "${OUTPUT}" "${text}}  // namespace ${NAMESPACE}\n")
  return()
endif()

set(MOTLEY_EMBED_SCRIPT "${CMAKE_CURRENT_LIST_FILE}")
function(motley_embed target namespace)
  set(output "${CMAKE_CURRENT_BINARY_DIR}/${target}_embedded.cpp")
  string(REGEX REPLACE "[a-z_]+=" "" files "${ARGN}")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${output}" "-DNAMESPACE=${namespace}" "-DPAIRS=${ARGN}" -P "${MOTLEY_EMBED_SCRIPT}"
    DEPENDS ${files} "${MOTLEY_EMBED_SCRIPT}" VERBATIM)
  target_sources(${target} PRIVATE "${output}")
endfunction()
