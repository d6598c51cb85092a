# Installs into the build folder, builds examples/embed against the installation, and trains with it for a few steps.
# Called by CTest with BUILD, SOURCE, EXAMPLE, GENERATOR, COMPILER and FLAGS.
set(prefix ${BUILD}/embed/prefix)
set(project ${BUILD}/embed/build)
file(REMOVE_RECURSE ${prefix} ${project})

function(must)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

must(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
must(${CMAKE_COMMAND} -S ${SOURCE} -B ${project} -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${COMPILER}
     -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_PREFIX_PATH=${prefix})
must(${CMAKE_COMMAND} --build ${project})
must(${project}/embed ${EXAMPLE}/small_gpt.onnx ${EXAMPLE}/tokens.bin 5)
