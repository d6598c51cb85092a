# `cmake --install` puts the program, the static libraries and their headers where find_package(Plimsoll) finds them.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(libraries ir plan passes frontend kernels runtime driver)
set(targets plimsoll_llvm)
set_target_properties(plimsoll_llvm PROPERTIES EXPORT_NAME llvm)
foreach(library ${libraries})
  set_target_properties(plimsoll_${library} PROPERTIES EXPORT_NAME ${library})
  list(APPEND targets plimsoll_${library})
endforeach()

install(TARGETS plimsoll RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(PLIMSOLL_HAS_CUDA)
  # Where the program looks for it: ../lib from its own folder.
  install(TARGETS plimsoll_cuda LIBRARY DESTINATION lib OPTIONAL)
endif()
install(TARGETS ${targets} EXPORT PlimsollTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/plimsoll)
# Headers of the frontend and of ir/plan read what protoc wrote.
install(DIRECTORY ${CMAKE_BINARY_DIR}/generated/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/plimsoll
        FILES_MATCHING PATTERN "*.pb.h")

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Plimsoll)
install(EXPORT PlimsollTargets NAMESPACE Plimsoll:: DESTINATION ${package_folder})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/PlimsollConfig.cmake.in
                              ${CMAKE_BINARY_DIR}/PlimsollConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/PlimsollConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/PlimsollConfig.cmake ${CMAKE_BINARY_DIR}/PlimsollConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/PlimsollDnnl.cmake
        DESTINATION ${package_folder})
