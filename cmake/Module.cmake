# motley_module([NEEDS module...] [LIBRARIES lib...] [TORCH] [SOURCES file...])
#
# Declares the module of the current folder of src/motley: a static library motley_<path, with _ for /> of all .cpp
# files in it (or of SOURCES) and in those of its folders that are no modules of their own. A module may include only
# itself and the modules that it NEEDS (named by their paths, such as planning/cost), directly or through them; any
# other "motley/..." include stops the configuration with a message that names the file and what it may include. TORCH
# marks modules that include libtorch.
function(motley_module)
  cmake_parse_arguments(MODULE "TORCH" "" "NEEDS;LIBRARIES;SOURCES" ${ARGN})
  if(MODULE_TORCH AND NOT MOTLEY_WITH_TORCH)
    return()
  endif()
  file(RELATIVE_PATH path "${CMAKE_SOURCE_DIR}/src/motley" "${CMAKE_CURRENT_SOURCE_DIR}")
  string(REPLACE "/" "_" name "${path}")

  set(allowed ${path})
  foreach(need IN LISTS MODULE_NEEDS)
    get_property(through GLOBAL PROPERTY MOTLEY_MODULE_${need})
    if(NOT through)
      message(FATAL_ERROR "module '${path}' needs '${need}', which is not declared before it (a module needs only those below it)")
    endif()
    list(APPEND allowed ${through})
  endforeach()
  list(REMOVE_DUPLICATES allowed)
  set_property(GLOBAL PROPERTY MOTLEY_MODULE_${path} "${allowed}")

  # Files of this folder and below, but not of modules within it.
  file(GLOB_RECURSE files CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.h" "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  file(GLOB_RECURSE within "${CMAKE_CURRENT_SOURCE_DIR}/*/CMakeLists.txt")
  foreach(list IN LISTS within)
    cmake_path(GET list PARENT_PATH folder)
    list(FILTER files EXCLUDE REGEX "^${folder}/")
  endforeach()
  motley_check_includes("module '${path}'" "${allowed}" ${files})

  set(sources ${MODULE_SOURCES})
  if(NOT sources)
    set(sources ${files})
    list(FILTER sources INCLUDE REGEX "\\.cpp$")
  endif()
  add_library(motley_${name} STATIC ${sources})
  motley_targets(needs ${MODULE_NEEDS})
  target_link_libraries(motley_${name} PUBLIC motley_flags ${needs} ${MODULE_LIBRARIES})
  motley_install_library(${name})
  if(MODULE_TORCH)
    target_link_libraries(motley_${name} PUBLIC motley::torch)
    motley_precompile(motley_${name})
  endif()
endfunction()

# motley_check_includes(WHO ALLOWED file...): stops at the first "motley/..." include of a module that is not ALLOWED. The
# module of an include is the nearest folder with a CMakeLists.txt.
function(motley_check_includes who allowed)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  foreach(file IN LISTS ARGN)
    file(STRINGS "${file}" includes REGEX "^#include \"motley/")
    foreach(include IN LISTS includes)
      string(REGEX REPLACE "^#include \"motley/(.*)/[^/]*$" "\\1" module "${include}")
      while(NOT module IN_LIST allowed)
        if(EXISTS "${CMAKE_SOURCE_DIR}/src/motley/${module}/CMakeLists.txt" OR NOT module MATCHES "/")
          message(FATAL_ERROR "${file}: ${who} may not include '${include}'; it may include: ${allowed}")
        endif()
        string(REGEX REPLACE "/[^/]*$" "" module "${module}")
      endwhile()
    endforeach()
  endforeach()
endfunction()

# motley_targets(OUT module...): the libraries of modules named by their paths.
function(motley_targets out)
  set(targets ${ARGN})
  list(TRANSFORM targets REPLACE "/" "_")
  list(TRANSFORM targets PREPEND motley_)
  set(${out} ${targets} PARENT_SCOPE)
endfunction()

# motley_precompile(TARGET): gives it the precompiled header of libtorch, which the first target that asks for it makes.
# Parsing that header costs most of the compile time of the modules that include it.
function(motley_precompile target)
  get_property(maker GLOBAL PROPERTY MOTLEY_PRECOMPILED_BY)
  if(maker)
    target_precompile_headers(${target} REUSE_FROM ${maker})
  else()
    target_precompile_headers(${target} PRIVATE <torch/torch.h>)
    set_property(GLOBAL PROPERTY MOTLEY_PRECOMPILED_BY ${target})
  endif()
endfunction()

# motley_define_for(FILE definition...): definitions that only this source file sees. Paths of this clone are given so:
# as options of a whole target they would keep the compiler cache from answering for the other files.
function(motley_define_for file)
  set_property(SOURCE ${file} APPEND PROPERTY COMPILE_DEFINITIONS ${ARGN})
endfunction()

# motley_test(NAME SOURCES file... MODULES module... [LIBRARIES lib...] [LABELS label...] [TIMEOUT seconds])
#
# Declares one GoogleTest program and registers it with ctest as one test, so that what it links is loaded once. LABELS:
# quick (the default) or slow; tests/CMakeLists.txt adds the sanitizers that a change must pass.
function(motley_test name)
  cmake_parse_arguments(TEST "" "TIMEOUT" "SOURCES;MODULES;LIBRARIES;LABELS" ${ARGN})
  motley_targets(modules ${TEST_MODULES})
  foreach(module IN LISTS modules)
    if(NOT TARGET ${module})
      return()
    endif()
  endforeach()
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${modules} ${TEST_LIBRARIES} GTest::gmock GTest::gtest GTest::gtest_main)
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1 "--gtest_output=xml:${MOTLEY_TEST_RESULTS}/${name}.xml")
  motley_register_test(${name} TARGET ${name} LABELS ${TEST_LABELS} TIMEOUT ${TEST_TIMEOUT})
endfunction()

# motley_unittests(NAME FILES file... [ENVIRONMENT variable=value...] [LABELS label...] [TIMEOUT seconds])
#
# Registers each class of Python's unittest in these files of the current folder with ctest, as NAME_CLASS. A class that
# says `alone = "why"` is not run beside another one that does.
function(motley_unittests name)
  cmake_parse_arguments(TEST "" "TIMEOUT" "FILES;ENVIRONMENT;LABELS" ${ARGN})
  set(runner "${CMAKE_SOURCE_DIR}/tests/unittests.py")
  execute_process(
    COMMAND "${MOTLEY_PYTHON}" "${runner}" list ${TEST_FILES} WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
    OUTPUT_VARIABLE classes OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${TEST_FILES} "${runner}")
  string(REPLACE "\n" ";" classes "${classes}")
  foreach(line IN LISTS classes)
    string(REPLACE " " ";" words "${line}")
    list(POP_FRONT words class)
    string(REGEX REPLACE ".*\\." "" short "${class}")
    set(test ${name}_${short})
    add_test(NAME ${test} WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
             COMMAND "${MOTLEY_PYTHON}" "${runner}" run ${class} "${MOTLEY_TEST_RESULTS}/${test}.xml")
    motley_register_test(${test} LABELS ${TEST_LABELS} TIMEOUT ${TEST_TIMEOUT})
    set_property(TEST ${test} PROPERTY ENVIRONMENT ${TEST_ENVIRONMENT} PYTHONDONTWRITEBYTECODE=1)
    if("alone" IN_LIST words)
      set_property(TEST ${test} PROPERTY RESOURCE_LOCK processors)
    endif()
  endforeach()
endfunction()

# motley_register_test(NAME [TARGET target] [LABELS label...] [TIMEOUT seconds]): labels and a time limit. A test of a
# folder of MOTLEY_ASAN_FOLDERS or MOTLEY_TSAN_FOLDERS has that sanitizer's label, and the target asan_tests or
# tsan_tests builds it.
function(motley_register_test name)
  cmake_parse_arguments(TEST "" "TARGET;TIMEOUT" "LABELS" ${ARGN})
  if(NOT TEST_LABELS)
    set(TEST_LABELS quick)
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 600)
  endif()
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${CMAKE_SOURCE_DIR}/tests" OUTPUT_VARIABLE folder)
  foreach(sanitizer ASAN TSAN)
    foreach(wanted IN LISTS MOTLEY_${sanitizer}_FOLDERS)
      if("${folder}/" MATCHES "^${wanted}/" AND TEST_TARGET)
        string(TOLOWER ${sanitizer} label)
        list(APPEND TEST_LABELS ${label})
        add_dependencies(${label}_tests ${TEST_TARGET})
      endif()
    endforeach()
  endforeach()
  set_tests_properties(${name} PROPERTIES LABELS "${TEST_LABELS}" TIMEOUT ${TEST_TIMEOUT})
endfunction()

# motley_fuzz(NAME SOURCES file... MODULES module...)
#
# Declares one libFuzzer program, where MOTLEY_FUZZ is on. ctest replays its seeds, the files of tests/fuzz/corpus/<name>/;
# tools/fuzz looks for new inputs. A target whose modules are not built is left out.
function(motley_fuzz name)
  cmake_parse_arguments(FUZZ "" "" "SOURCES;MODULES;LIBRARIES" ${ARGN})
  if(NOT MOTLEY_FUZZ)
    return()
  endif()
  motley_targets(modules ${FUZZ_MODULES})
  foreach(module IN LISTS modules)
    if(NOT TARGET ${module})
      return()
    endif()
  endforeach()
  add_executable(${name} ${FUZZ_SOURCES})
  target_link_libraries(${name} PRIVATE ${modules} ${FUZZ_LIBRARIES})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzz_targets ${name})
  add_test(NAME ${name} COMMAND ${name} -runs=0 -timeout=10 -rss_limit_mb=2048 "${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name}")
  motley_register_test(${name} TARGET ${name})
endfunction()
