# `cmake --install` puts the program, the library and its one header where find_package(Plimsoll) finds them.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

install(TARGETS plimsoll RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS plimsoll_shared EXPORT PlimsollTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
foreach(kind openmpi mpich)
  if(TARGET plimsoll_${kind})
    install(FILES ${CMAKE_BINARY_DIR}/lib/libplimsoll_${kind}.so DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()
if(PLIMSOLL_HAS_CUDA)
  # Both the program and the library look for it in ../lib from their folder and beside them.
  install(TARGETS plimsoll_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
endif()

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Plimsoll)
install(EXPORT PlimsollTargets NAMESPACE Plimsoll:: DESTINATION ${package_folder} FILE PlimsollConfig.cmake)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/PlimsollConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/PlimsollConfigVersion.cmake DESTINATION ${package_folder})
