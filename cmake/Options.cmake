# Build options and the flags that every target shares.
option(MOTLEY_BUILD_TESTS "Build the tests" ON)
option(MOTLEY_WITH_TORCH "Build the modules that need libtorch (off for sanitizers, fuzzing and tidy)" ON)
option(MOTLEY_COMBINE "Compile up to eight sources of a module as one: a whole build takes half as long, that of a change longer" OFF)
option(MOTLEY_FUZZ "Build the fuzz targets, too (needs the tests, clang and no libtorch)" OFF)
set(MOTLEY_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=, such as address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# The compiler cache is shared by all clones: it sees paths within the source folder relative to the build folder, and
# does not ask which build folder that is. No option holds a path of this clone, unless it is one file's own.
find_program(MOTLEY_CCACHE ccache)
if(MOTLEY_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${MOTLEY_CCACHE})
endif()

add_library(motley_flags INTERFACE)
set(motley_warnings -Wall -Wextra -Werror -Wno-missing-field-initializers)
target_compile_options(motley_flags INTERFACE "$<BUILD_INTERFACE:${motley_warnings}>" -ffp-contract=off)
# Programs and the Python package are linked of the same objects, so that nothing is compiled twice.
target_compile_options(motley_flags INTERFACE -fPIC -fno-semantic-interposition)
target_include_directories(motley_flags INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src> $<INSTALL_INTERFACE:include>)
target_compile_features(motley_flags INTERFACE cxx_std_20)
# clang 19 deprecates std::get_temporary_buffer, which the stable_sort of GCC 12's library uses.
target_compile_options(motley_flags INTERFACE $<BUILD_INTERFACE:$<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>>)
find_package(Threads REQUIRED)
target_link_libraries(motley_flags INTERFACE Threads::Threads)
if(MOTLEY_SANITIZE)
  target_compile_options(motley_flags INTERFACE -fsanitize=${MOTLEY_SANITIZE} -fno-omit-frame-pointer)
  # GCC 12 takes its own instrumentation of std::function and std::regex for reads of what was never set.
  target_compile_options(motley_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(motley_flags INTERFACE -fsanitize=${MOTLEY_SANITIZE})
endif()
if(MOTLEY_FUZZ)
  target_compile_options(motley_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
