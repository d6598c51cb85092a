# Installs into the build folder, builds examples/embed against the installation and trains with it for a few steps.
# Called by CTest with BUILD, SOURCE, EXAMPLE, GENERATOR, COMPILER, NM and FLAGS.
set(prefix ${BUILD}/embed/prefix)
set(project ${BUILD}/embed/build)
file(REMOVE_RECURSE ${prefix} ${project})

function(must)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

must(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})

file(GLOB_RECURSE headers RELATIVE ${prefix} ${prefix}/*.h)
if(NOT headers STREQUAL "include/plimsoll.h")
  message(FATAL_ERROR "more or less than one header is installed: ${headers}")
endif()

# Debian keeps the headers of LLVM and Protobuf where every compiler looks; here each of them is an error.
file(WRITE ${BUILD}/embed/alone.cpp "#include <plimsoll.h>\n")
execute_process(COMMAND ${COMPILER} -std=c++20 -Wall -Wextra -Wpedantic -Werror -H -fsyntax-only -I ${prefix}/include ${BUILD}/embed/alone.cpp
                ERROR_VARIABLE included COMMAND_ERROR_IS_FATAL ANY)
if(included MATCHES "[^\n]*(llvm|google|onnx|dnnl|CLI)/[^\n]*")
  message(FATAL_ERROR "plimsoll.h includes a header of a dependency: ${CMAKE_MATCH_0}")
endif()

file(GLOB library ${prefix}/lib*/libplimsoll.so ${prefix}/lib/*/libplimsoll.so)
execute_process(COMMAND ${NM} -D --defined-only -C ${library} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "[0-9a-f]+ [TW] plimsoll::api::[^\n]*\n" "" others "${symbols}")
if(others OR NOT symbols)
  message(FATAL_ERROR "libplimsoll.so shows more than the names of plimsoll.h:\n${others}")
endif()

must(${CMAKE_COMMAND} -S ${SOURCE} -B ${project} -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${COMPILER}
     -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_PREFIX_PATH=${prefix})
must(${CMAKE_COMMAND} --build ${project})
must(${CMAKE_COMMAND} -E chdir ${project} ./embed ${EXAMPLE}/small_gpt.onnx ${EXAMPLE}/tokens.bin 5)
must(${CMAKE_COMMAND} -E chdir ${project} ./embed ${EXAMPLE}/small_gpt.onnx ${EXAMPLE}/tokens.bin 1 80000000)
