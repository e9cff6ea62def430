# What `cmake --install` puts where: header, libraries, package files, command, manual page, completions.
# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)

install(TARGETS rmsnorm rmsnorm_static EXPORT rmsnormTargets)
install(FILES include/rmsnorm.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/rmsnorm)
install(EXPORT rmsnormTargets NAMESPACE rmsnorm:: DESTINATION ${cmake_dir})
configure_package_config_file(cmake/rmsnormConfig.cmake.in ${PROJECT_BINARY_DIR}/rmsnormConfig.cmake
                              INSTALL_DESTINATION ${cmake_dir})
# Before 1.0 a minor version may break source code.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rmsnormConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/rmsnormConfig.cmake ${PROJECT_BINARY_DIR}/rmsnormConfigVersion.cmake
        DESTINATION ${cmake_dir})

# Relocatable: the prefix is found from where the .pc file lies.
file(RELATIVE_PATH pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pc_up "${pc_up}")
set(pc_libs_private -lm)
if(openmp)
  string(APPEND pc_libs_private " ${OpenMP_C_FLAGS}")
endif()
if(cuda OR triton)
  string(APPEND pc_libs_private " -ldl -lpthread")
endif()
configure_file(cmake/rmsnorm.pc.in ${PROJECT_BINARY_DIR}/rmsnorm.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/rmsnorm.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET rmsnorm_cli)
  # The command finds its library beside itself, wherever the whole tree is moved.
  file(RELATIVE_PATH lib_from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(rmsnorm_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${lib_from_bin}")
  install(TARGETS rmsnorm_cli)
  install(FILES cli/rmsnorm.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES completions/rmsnorm.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
          RENAME rmsnorm)
  install(FILES completions/_rmsnorm DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES completions/rmsnorm.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
