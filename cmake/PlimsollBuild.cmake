# Dependencies, compile options, and plimsoll_library(): one static library per folder.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(PLIMSOLL_CCACHE ccache)
if(PLIMSOLL_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${PLIMSOLL_CCACHE})
  if(PLIMSOLL_SHORT_BUILD)
    # Without these ccache does not keep objects that precompiled headers went into.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
        CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${PLIMSOLL_CCACHE})
  endif()
endif()

if(PLIMSOLL_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()

if(PLIMSOLL_FUZZ)
  include(${CMAKE_CURRENT_LIST_DIR}/PlimsollFuzz.cmake)
endif()

find_package(LLVM REQUIRED CONFIG)
find_package(Protobuf REQUIRED)
find_package(ZLIB REQUIRED)
find_package(Threads REQUIRED)
if(PLIMSOLL_FUZZ)
  add_library(OpenMP::OpenMP_CXX INTERFACE IMPORTED)  # no fuzzer runs a kernel
else()
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()
find_package(CLI11 REQUIRED CONFIG)

include(${CMAKE_CURRENT_LIST_DIR}/PlimsollDnnl.cmake)

# LLVMSupport by itself, linked statically, so that no libLLVM.so is needed at run time.
add_library(plimsoll_llvm INTERFACE)
if(PLIMSOLL_FUZZ)
  plimsoll_late_vectors(${LLVM_INCLUDE_DIRS} ${CMAKE_BINARY_DIR}/headers)
  target_include_directories(plimsoll_llvm SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/headers)
endif()
target_include_directories(plimsoll_llvm SYSTEM INTERFACE ${LLVM_INCLUDE_DIRS})
target_link_libraries(plimsoll_llvm INTERFACE LLVMSupport)

set(PLIMSOLL_WARNINGS -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
if(PLIMSOLL_WERROR)
  list(APPEND PLIMSOLL_WARNINGS -Werror)
endif()

# plimsoll_precompile(target OWN header... | FROM target): reads what nearly every source includes once. Off in the preset
# `dev`, so that each source is held to its own includes there.
set(PLIMSOLL_COMMON_HEADERS
    <algorithm> <array> <cmath> <cstdint> <cstring> <functional> <map> <memory> <optional> <string> <vector>
    <llvm/ADT/ArrayRef.h> <llvm/ADT/DenseMap.h> <llvm/ADT/STLExtras.h> <llvm/ADT/SmallVector.h> <llvm/ADT/StringExtras.h>
    <llvm/ADT/StringMap.h> <llvm/ADT/StringRef.h> <llvm/ADT/Twine.h> <llvm/Support/Error.h> <llvm/Support/raw_ostream.h>)
function(plimsoll_precompile target)
  cmake_parse_arguments(ARG "" "FROM" "OWN" ${ARGN})
  if(NOT PLIMSOLL_SHORT_BUILD)
    return()
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
  if(ARG_FROM)
    target_precompile_headers(${target} REUSE_FROM ${ARG_FROM})
  else()
    target_precompile_headers(${target} PRIVATE ${ARG_OWN})
  endif()
endfunction()

# plimsoll_library(name GLOBS pattern... [EXCEPT pattern...] [PROTO file] LINK target...)
function(plimsoll_library name)
  cmake_parse_arguments(ARG "" "PROTO" "GLOBS;EXCEPT;LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${ARG_GLOBS})
  if(ARG_EXCEPT)
    file(GLOB others CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${ARG_EXCEPT})
    list(REMOVE_ITEM sources ${others})
  endif()
  string(REPLACE ".cpp" ".h" header_globs "${ARG_GLOBS}")
  file(GLOB headers CONFIGURE_DEPENDS ${header_globs})

  add_library(plimsoll_${name} STATIC ${sources})
  target_include_directories(plimsoll_${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}>)
  target_link_libraries(plimsoll_${name} PUBLIC ${ARG_LINK})
  target_compile_options(plimsoll_${name} PRIVATE ${PLIMSOLL_WARNINGS})
  if(headers)
    target_sources(plimsoll_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${CMAKE_CURRENT_SOURCE_DIR} FILES ${headers})
  endif()
  if(PLIMSOLL_CHECK_HEADERS)
    set_target_properties(plimsoll_${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  endif()

  if(ARG_PROTO)
    get_filename_component(folder ${ARG_PROTO} DIRECTORY)
    get_filename_component(stem ${ARG_PROTO} NAME_WE)
    set(out ${CMAKE_BINARY_DIR}/generated/${folder}/${stem}.pb)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/generated)
    add_custom_command(
      OUTPUT ${out}.cc ${out}.h
      COMMAND protobuf::protoc --cpp_out=${CMAKE_BINARY_DIR}/generated -I ${CMAKE_CURRENT_SOURCE_DIR}
              ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_PROTO}
      DEPENDS ${ARG_PROTO} VERBATIM)
    add_library(plimsoll_${name}_proto OBJECT ${out}.cc)
    target_include_directories(plimsoll_${name}_proto SYSTEM PUBLIC ${CMAKE_BINARY_DIR}/generated ${Protobuf_INCLUDE_DIRS})
    target_sources(plimsoll_${name} PRIVATE $<TARGET_OBJECTS:plimsoll_${name}_proto>)
    target_include_directories(plimsoll_${name} SYSTEM PUBLIC $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/generated>)
    target_link_libraries(plimsoll_${name} PUBLIC protobuf::libprotobuf)
    add_dependencies(plimsoll_${name} plimsoll_${name}_proto)
  endif()
endfunction()

# plimsoll_shared_library(GLOBS pattern... LINK target...): libplimsoll.so, which shows the names of frontend/api/plimsoll.h
# and nothing of what it is linked from, so that an embedding program may hold another LLVM or oneDNN.
function(plimsoll_shared_library)
  cmake_parse_arguments(ARG "" "" "GLOBS;LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${ARG_GLOBS})
  set(exports ${CMAKE_CURRENT_SOURCE_DIR}/cmake/exported_symbols.map)
  add_library(plimsoll_shared SHARED ${sources})
  target_link_libraries(plimsoll_shared PRIVATE ${ARG_LINK})
  target_compile_options(plimsoll_shared PRIVATE ${PLIMSOLL_WARNINGS})
  target_link_options(plimsoll_shared PRIVATE -Wl,--version-script=${exports} -Wl,--no-undefined -Wl,--as-needed)
  set_target_properties(plimsoll_shared PROPERTIES
    OUTPUT_NAME plimsoll EXPORT_NAME Plimsoll VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib LINK_DEPENDS ${exports})
  target_sources(plimsoll_shared PUBLIC
    FILE_SET HEADERS BASE_DIRS ${CMAKE_CURRENT_SOURCE_DIR}/frontend/api FILES frontend/api/plimsoll.h)
endfunction()

# plimsoll_embed_text(target file include): sources of `target` can include the file's text as a string literal.
function(plimsoll_embed_text target file include)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/${include} CONTENT "R\"text(@text@)text\"\n" @ONLY)
  target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR}/generated)
endfunction()

# plimsoll_mpi_libraries(source): libplimsoll_openmpi.so and libplimsoll_mpich.so, for each MPI whose compiler wrapper is
# here. Their binary interfaces differ, and the program opens the one whose launcher started it.
function(plimsoll_mpi_libraries source)
  foreach(kind openmpi mpich)
    find_program(PLIMSOLL_MPICXX_${kind} mpicxx.${kind})
    mark_as_advanced(PLIMSOLL_MPICXX_${kind})
    if(NOT PLIMSOLL_MPICXX_${kind})
      message(STATUS "No ${kind}: jobs of several ranks cannot be started by its mpirun")
      continue()
    endif()
    set(library ${CMAKE_BINARY_DIR}/lib/libplimsoll_${kind}.so)
    add_custom_command(
      OUTPUT ${library}
      COMMAND ${PLIMSOLL_MPICXX_${kind}} -std=c++20 -O2 -fPIC -shared -fvisibility=hidden
              -I${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${library}
      DEPENDS ${source} runtime/comm/mpi/mpi_abi.h VERBATIM)
    add_custom_target(plimsoll_${kind} ALL DEPENDS ${library})
  endforeach()
endfunction()
