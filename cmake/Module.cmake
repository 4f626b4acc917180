# motley_module([ABOUT sentence] [NEEDS module...] [LIBRARIES lib...] [TORCH] [COLD] [OF_PROGRAM] [SOURCES file...])
#
# Declares the module of the current folder of src/motley: a static library motley_<path>, with _ for /, of all .cpp
# files in it (or of SOURCES) and in those of its folders that are no modules of their own. A module may include only
# itself and the modules that it NEEDS (named by their paths, such as planning/cost), directly or through them; any
# other "motley/..." include stops the configuration with a message that names the file and what it may include. TORCH
# marks modules that include libtorch; without libtorch they are checked and not built. NO_TORCH_HEADERS: it needs a module
# of libtorch and includes none of its headers, so that these are not loaded for each of its files. COLD: none of its code
# runs in a step or in a planner's search; it is optimised at -O1, which compiles in two thirds of the time, and for
# sanitizers not at all: a third. ABOUT says in the table of docs/architecture.md what lives there. OF_PROGRAM: only the
# program motley uses it; it is not installed.
function(motley_module)
  cmake_parse_arguments(MODULE "TORCH;NO_TORCH_HEADERS;COLD;OF_PROGRAM" "ABOUT" "NEEDS;LIBRARIES;SOURCES" ${ARGN})
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${CMAKE_SOURCE_DIR}/src/motley" OUTPUT_VARIABLE path)
  string(REPLACE "/" "_" name "${path}")

  motley_closure(allowed ${MODULE_NEEDS})
  set_property(GLOBAL PROPERTY MOTLEY_MODULE_${path} ${path} ${allowed})
  motley_describe_module(${path} "${MODULE_ABOUT}" "${MODULE_NEEDS}" ${MODULE_TORCH})

  # Files of this folder and below, but not of modules within it.
  file(GLOB_RECURSE files CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.h" "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  file(GLOB_RECURSE within "${CMAKE_CURRENT_SOURCE_DIR}/*/CMakeLists.txt")
  foreach(list IN LISTS within)
    cmake_path(GET list PARENT_PATH folder)
    foreach(file IN LISTS files)
      cmake_path(IS_PREFIX folder "${file}" is_within)
      if(is_within)
        list(REMOVE_ITEM files "${file}")
      endif()
    endforeach()
  endforeach()
  motley_check_includes("module '${path}'" "${path};${allowed}" ${files})
  if(MODULE_TORCH AND NOT MOTLEY_WITH_TORCH)
    return()
  endif()

  set(sources ${MODULE_SOURCES})
  if(NOT sources)
    set(sources ${files})
    list(FILTER sources INCLUDE REGEX "\\.cpp$")
  endif()
  if(MOTLEY_COMBINE)
    motley_combine(sources ${name} ${sources})
  endif()
  add_library(motley_${name} STATIC ${sources})
  motley_targets(needs ${MODULE_NEEDS})
  target_link_libraries(motley_${name} PUBLIC motley_flags ${needs} ${MODULE_LIBRARIES})
  if(MODULE_COLD AND MOTLEY_SANITIZE)
    target_compile_options(motley_${name} PRIVATE -O0)
  elseif(MODULE_COLD)
    target_compile_options(motley_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(NOT MODULE_OF_PROGRAM)
    motley_install_library(${name})
  endif()
  if(MODULE_TORCH)
    target_link_libraries(motley_${name} PUBLIC motley::torch)
    if(NOT MODULE_NO_TORCH_HEADERS)
      motley_precompile(motley_${name})
    endif()
  endif()
endfunction()

# motley_combine(OUT NAME file...): instead of these sources, files that include up to eight of them each, so that what they
# all include is read once: half of the time of a whole build. Sources with options or definitions of their own stay as they
# are. The files are the same in every clone, so that the compiler cache answers for them, too.
function(motley_combine out name)
  set(left)
  set(result)
  foreach(source IN LISTS ARGN)
    get_source_file_property(options "${source}" COMPILE_OPTIONS)
    get_source_file_property(definitions "${source}" COMPILE_DEFINITIONS)
    if(options OR definitions)
      list(APPEND result "${source}")
    else()
      cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE path)
      cmake_path(RELATIVE_PATH path BASE_DIRECTORY "${CMAKE_SOURCE_DIR}/src")
      list(APPEND left "#include \"${path}\"\n")
    endif()
  endforeach()
  list(LENGTH left count)
  math(EXPR files "(${count} + 7) / 8")
  set(file 0)
  while(file LESS files)
    math(EXPR begin "${count} * ${file} / ${files}")
    math(EXPR size "${count} * (${file} + 1) / ${files} - ${begin}")
    list(SUBLIST left ${begin} ${size} part)
    list(JOIN part "" text)
    set(path "${CMAKE_CURRENT_BINARY_DIR}/${name}_${file}.cpp")
    file(CONFIGURE OUTPUT "${path}" CONTENT "${text}" @ONLY)
    list(APPEND result "${path}")
    math(EXPR file "${file} + 1")
  endwhile()
  set(${out} ${result} PARENT_SCOPE)
endfunction()

# motley_closure(OUT module...): these modules and all that they need, each once.
function(motley_closure out)
  set(all)
  foreach(module IN LISTS ARGN)
    get_property(through GLOBAL PROPERTY MOTLEY_MODULE_${module})
    if(NOT through)
      message(FATAL_ERROR "${CMAKE_CURRENT_SOURCE_DIR} needs the module '${module}', which is not declared before it (a "
                          "module needs only those below it)")
    endif()
    list(APPEND all ${through})
  endforeach()
  list(REMOVE_DUPLICATES all)
  set(${out} ${all} PARENT_SCOPE)
endfunction()

# motley_check_includes(WHO ALLOWED file...): stops at the first "motley/..." include of a module that is not ALLOWED, also
# in the headers of tests/ and bench/ that these files include.
function(motley_check_includes who allowed)
  set(files ${ARGN})
  set(seen)
  while(files)
    list(POP_FRONT files file)
    list(APPEND seen "${file}")
    file(STRINGS "${file}" includes REGEX "^#include \"(motley|tests|bench)/")
    foreach(include IN LISTS includes)
      string(REGEX REPLACE "^#include \"(.*)\"" "\\1" include "${include}")
      if(NOT include MATCHES "^motley/")
        set(header "${CMAKE_SOURCE_DIR}/${include}")
        if(EXISTS "${header}" AND NOT header IN_LIST seen AND NOT header IN_LIST files)
          list(APPEND files "${header}")
        endif()
        continue()
      endif()
      string(REGEX REPLACE "^motley/" "" path "${include}")
      motley_find_module(module "${path}")
      if(NOT module IN_LIST allowed)
        message(FATAL_ERROR "${file}: ${who} may not include '${include}'; it may include: ${allowed}")
      endif()
    endforeach()
  endwhile()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${seen})
endfunction()

# motley_find_module(OUT PATH): the module of a file of src/motley, the nearest folder with a CMakeLists.txt.
function(motley_find_module out path)
  cmake_path(GET path PARENT_PATH module)
  while(module MATCHES "/" AND NOT EXISTS "${CMAKE_SOURCE_DIR}/src/motley/${module}/CMakeLists.txt")
    cmake_path(GET module PARENT_PATH module)
  endwhile()
  set(${out} ${module} PARENT_SCOPE)
endfunction()

# motley_describe_module(PATH ABOUT NEEDS TORCH): a line of the table of modules.
function(motley_describe_module path about needs torch)
  list(TRANSFORM needs REPLACE "(.+)" "`\\1`")
  list(JOIN needs ", " needs)
  if(torch)
    string(APPEND about " (libtorch)")
  endif()
  set_property(GLOBAL APPEND_STRING PROPERTY MOTLEY_MODULES "| `${path}` | ${about} | ${needs} |\n")
endfunction()

# motley_write_modules(): writes modules.md into the build folder, the table that tools/lint compares with that of
# docs/architecture.md.
function(motley_write_modules)
  get_property(lines GLOBAL PROPERTY MOTLEY_MODULES)
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/modules.md" @ONLY
       CONTENT "| module | what lives there | needs |\n|---|---|---|\n${lines}")
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

# motley_define_for(FILE definition...): definitions that only this source file sees; called before motley_module. Paths of this clone are given so:
# as options of a whole target they would keep the compiler cache from answering for the other files.
function(motley_define_for file)
  set_property(SOURCE ${file} APPEND PROPERTY COMPILE_DEFINITIONS ${ARGN})
endfunction()

# motley_program(NAME SOURCES file... MODULES module... [LIBRARIES lib...])
#
# Declares a program of tests or benchmarks, whose files may include these modules and what those need. Where one of the
# modules is not built, neither is the program.
function(motley_program name)
  cmake_parse_arguments(PROGRAM "" "" "SOURCES;MODULES;LIBRARIES" ${ARGN})
  motley_closure(allowed ${PROGRAM_MODULES})
  set(files)
  foreach(source IN LISTS PROGRAM_SOURCES)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" OUTPUT_VARIABLE file)
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${CMAKE_SOURCE_DIR}/src/motley" OUTPUT_VARIABLE path)
    if(path MATCHES "^\\.\\.")
      list(APPEND files "${file}")
    else() # of a module that is not built here; it is checked there
      motley_find_module(module "${path}")
      list(APPEND allowed ${module})
    endif()
  endforeach()
  motley_check_includes("${name}" "${allowed}" ${files})
  motley_targets(modules ${PROGRAM_MODULES})
  foreach(module IN LISTS modules)
    if(NOT TARGET ${module})
      return()
    endif()
  endforeach()
  set(sources ${PROGRAM_SOURCES})
  if(MOTLEY_COMBINE)
    motley_combine(sources ${name} ${sources})
  endif()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${modules} ${PROGRAM_LIBRARIES})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
endfunction()

# motley_test(NAME SOURCES file... MODULES module... [LIBRARIES lib...] [LABELS label...] [TIMEOUT seconds] [TORCH_HEADERS] [OPTIMISED])
#
# Declares one GoogleTest program and registers it with ctest as one test, so that what it links is loaded once. LABELS:
# quick (the default) or slow; tests/CMakeLists.txt adds the sanitizers that a change must pass. TORCH_HEADERS: its files
# include libtorch's headers. The tests' own code is optimised at -O1, which compiles in two thirds of the time, and for
# sanitizers, whose checks take the optimiser most of its time, not at all: a third. OPTIMISED: there, too, as what it
# computes itself takes long.
function(motley_test name)
  cmake_parse_arguments(TEST "TORCH_HEADERS;OPTIMISED" "TIMEOUT" "SOURCES;MODULES;LIBRARIES;LABELS" ${ARGN})
  motley_program(${name} SOURCES ${TEST_SOURCES} MODULES ${TEST_MODULES}
                 LIBRARIES ${TEST_LIBRARIES} GTest::gmock GTest::gtest GTest::gtest_main)
  if(NOT TARGET ${name})
    return()
  endif()
  if(TEST_TORCH_HEADERS)
    motley_precompile(${name})
  elseif(MOTLEY_SANITIZE AND NOT TEST_OPTIMISED)
    target_compile_options(${name} PRIVATE -O0)
  else()
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1 "--gtest_output=xml:${MOTLEY_TEST_RESULTS}/${name}.xml")
  motley_register_test(${name} TARGET ${name} LABELS ${TEST_LABELS} TIMEOUT ${TEST_TIMEOUT})
endfunction()

# motley_unittests(NAME FILES file... [ENVIRONMENT variable=value...] [LABELS label...] [TIMEOUT seconds])
#
# Registers each class of Python's unittest in these files of the current folder with ctest, as NAME_CLASS, or a file that says
# `together = "why"` as NAME_FILE. A class that says `alone = "why"` is not run beside another one that does.
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
        if(label STREQUAL tsan AND MOTLEY_SANITIZE STREQUAL thread)
          target_sources(${TEST_TARGET} PRIVATE "${CMAKE_SOURCE_DIR}/tests/thread_sanitizer.cpp")
        endif()
      endif()
    endforeach()
  endforeach()
  set_tests_properties(${name} PROPERTIES LABELS "${TEST_LABELS}" TIMEOUT ${TEST_TIMEOUT})
endfunction()

# motley_fuzz(NAME SOURCES file... MODULES module... [LIBRARIES lib...])
#
# Declares one libFuzzer program, where MOTLEY_FUZZ is on. ctest replays its seeds, the files of tests/fuzz/corpus/<name>/;
# tools/fuzz looks for new inputs. A target whose modules are not built is left out.
function(motley_fuzz name)
  if(NOT MOTLEY_FUZZ)
    return()
  endif()
  motley_program(${name} ${ARGN})
  if(NOT TARGET ${name})
    return()
  endif()
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzz_targets ${name})
  add_test(NAME ${name} COMMAND ${name} -runs=0 -timeout=10 -rss_limit_mb=2048 "${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name}")
  motley_register_test(${name} TARGET ${name})
endfunction()
