# What `cmake --install` puts where: the program, a library and the headers of each module, and a CMake package, by which
# find_package(motley) gives the targets motley::<module> (with _ for / in the module's path).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/motley")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/motleyConfig.cmake.in" "${CMAKE_BINARY_DIR}/motleyConfig.cmake"
                              INSTALL_DESTINATION "${package_folder}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/motleyConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/motleyConfig.cmake" "${CMAKE_BINARY_DIR}/motleyConfigVersion.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/Dependencies.cmake" DESTINATION "${package_folder}")
install(EXPORT motley NAMESPACE motley:: FILE motleyTargets.cmake DESTINATION "${package_folder}")
install(DIRECTORY "${CMAKE_SOURCE_DIR}/src/motley" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(TARGETS motley_flags EXPORT motley)
set_target_properties(motley_flags PROPERTIES EXPORT_NAME flags)

# motley_install_library(NAME): the library motley_<NAME> of a module.
function(motley_install_library name)
  set_target_properties(motley_${name} PROPERTIES EXPORT_NAME ${name})
  add_library(motley::${name} ALIAS motley_${name})
  install(TARGETS motley_${name} EXPORT motley)
endfunction()
