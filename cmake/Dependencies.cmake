# Finds the libraries that Motley stands on; tools/setup installs each of them. A project that uses an installed Motley
# includes this file, too, by find_package(motley).
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
set(missing) # Debian's packages of those that are not here
foreach(pair fmt=libfmt-dev spdlog=libspdlog-dev nlohmann_json=nlohmann-json3-dev yaml-cpp=libyaml-cpp-dev CLI11=libcli11-dev
             OpenSSL=libssl-dev ZLIB=zlib1g-dev PNG=libpng-dev SQLite3=libsqlite3-dev tl-expected=libexpected-dev)
  string(REPLACE "=" ";" pair ${pair})
  list(POP_FRONT pair name package)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    list(APPEND missing ${package})
  endif()
endforeach()
pkg_check_modules(ISAL QUIET IMPORTED_TARGET libisal) # checksums
pkg_check_modules(TURBOJPEG QUIET IMPORTED_TARGET libturbojpeg)
pkg_check_modules(HWLOC QUIET IMPORTED_TARGET hwloc)
pkg_check_modules(HTTPLIB QUIET IMPORTED_TARGET cpp-httplib) # its flags must be those that the library was built with
if(NOT ISAL_FOUND)
  list(APPEND missing libisal-dev)
endif()
if(NOT TURBOJPEG_FOUND)
  list(APPEND missing libturbojpeg0-dev)
endif()
if(NOT HTTPLIB_FOUND)
  list(APPEND missing libcpp-httplib-dev)
endif()
if(missing)
  list(JOIN missing " " missing)
  message(FATAL_ERROR "libraries are missing: apt-get install ${missing}; tools/setup installs all that Motley needs")
endif()
find_package(RocksDB CONFIG QUIET) # without it sparse tables live in memory only
if(MOTLEY_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

if(SKBUILD) # pip builds the package
  set(MOTLEY_PYTHON "${Python_EXECUTABLE}")
elseif(DEFINED ENV{MOTLEY_PYTHON})
  set(MOTLEY_PYTHON "$ENV{MOTLEY_PYTHON}")
elseif(NOT MOTLEY_PYTHON)
  set(MOTLEY_PYTHON "${CMAKE_SOURCE_DIR}/.venv/bin/python")
endif()

# HiGHS comes from there, too (PyPI's highsbox); without it, policies that solve programs say so.
execute_process(COMMAND "${MOTLEY_PYTHON}" -c "import highsbox; print(highsbox.highs_dist_dir())"
  OUTPUT_VARIABLE highs_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE highs_failed)
if(NOT highs_failed)
  add_library(motley::highs INTERFACE IMPORTED GLOBAL)
  target_include_directories(motley::highs SYSTEM INTERFACE "${highs_folder}/include/highs")
  target_link_libraries(motley::highs INTERFACE "${highs_folder}/lib/libhighs.so")
  if(NOT SKBUILD) # a package finds them beside itself, below
    target_link_options(motley::highs INTERFACE "-Wl,-rpath,${highs_folder}/lib")
  endif()
endif()

# libtorch comes from a Python environment: MOTLEY_PYTHON, else .venv. Paths are asked of torch itself, because
# find_package(Torch) fails on CUDA wheels where there is no CUDA toolkit.
if(MOTLEY_WITH_TORCH)
  execute_process(
    COMMAND "${MOTLEY_PYTHON}" -c "import os, sysconfig, torch
from torch.utils.cpp_extension import include_paths, library_paths
names = [n for n in ('torch', 'torch_cpu', 'c10', 'torch_cuda', 'c10_cuda') if os.path.exists(os.path.join(library_paths()[0], f'lib{n}.so'))]
print(';'.join(include_paths()), library_paths()[0], ';'.join(names), torch.__version__, int(torch._C._GLIBCXX_USE_CXX11_ABI),
      sysconfig.get_path('include'), sysconfig.get_config_var('EXT_SUFFIX'), sep='|')"
    OUTPUT_VARIABLE torch_answer OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_failed)
  if(torch_failed)
    message(FATAL_ERROR "no PyTorch in '${MOTLEY_PYTHON}': run tools/setup, or set MOTLEY_PYTHON to a Python with PyTorch 2.11 or newer")
  endif()
  string(REPLACE "|" ";" torch_fields "${torch_answer}")
  string(REGEX MATCH "^([^|]*)\\|([^|]*)\\|([^|]*)\\|([^|]*)\\|([^|]*)\\|([^|]*)\\|([^|]*)$" _ "${torch_answer}")
  set(torch_includes ${CMAKE_MATCH_1})
  set(torch_library_folder ${CMAKE_MATCH_2})
  set(torch_names ${CMAKE_MATCH_3})
  set(MOTLEY_TORCH_VERSION ${CMAKE_MATCH_4})
  if(MOTLEY_TORCH_VERSION VERSION_LESS 2.11)
    message(FATAL_ERROR "PyTorch ${MOTLEY_TORCH_VERSION} in '${MOTLEY_PYTHON}' is too old: 2.11 or newer is needed")
  endif()
  message(STATUS "PyTorch ${MOTLEY_TORCH_VERSION}: ${torch_library_folder}")
  add_library(motley::torch INTERFACE IMPORTED GLOBAL)
  # The wheel carries headers of another fmt, which would hide those of the fmt that we link: ours are found first.
  get_target_property(fmt_includes fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/fmt_first")
  file(CREATE_LINK "${fmt_includes}/fmt" "${CMAKE_BINARY_DIR}/fmt_first/fmt" SYMBOLIC)
  target_include_directories(motley::torch SYSTEM INTERFACE "${CMAKE_BINARY_DIR}/fmt_first" ${torch_includes})
  target_compile_definitions(motley::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${CMAKE_MATCH_5} MOTLEY_TORCH_VERSION="${MOTLEY_TORCH_VERSION}")
  foreach(library IN LISTS torch_names)
    target_link_libraries(motley::torch INTERFACE "${torch_library_folder}/lib${library}.so")
  endforeach()
  target_link_options(motley::torch INTERFACE "-Wl,--no-as-needed")
  if(NOT SKBUILD)
    target_link_options(motley::torch INTERFACE "-Wl,-rpath,${torch_library_folder}")
  endif()
  # What an extension module of Python needs besides; torch carries its own pybind11.
  set(MOTLEY_PYTHON_SUFFIX ${CMAKE_MATCH_7})
  add_library(motley::torch_python INTERFACE IMPORTED GLOBAL)
  target_include_directories(motley::torch_python SYSTEM INTERFACE "${CMAKE_MATCH_6}")
  # The package finds the other packages' libraries beside itself.
  set(MOTLEY_PYTHON_RPATH "$ORIGIN/../torch/lib")
  if(TARGET motley::highs)
    cmake_path(GET torch_library_folder PARENT_PATH torch_folder)
    cmake_path(GET torch_folder PARENT_PATH packages)
    file(RELATIVE_PATH highs_library_folder "${packages}" "${highs_folder}/lib")
    list(APPEND MOTLEY_PYTHON_RPATH "$ORIGIN/../${highs_library_folder}")
  endif()
  target_link_libraries(motley::torch_python INTERFACE motley::torch "${torch_library_folder}/libtorch_python.so")
endif()
