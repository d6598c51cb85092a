# The CUDA backend: one shared library that the program opens when a plan for a GPU is to be run. Built where a
# toolkit of 12.4 or newer is found; where none is, everything else is built all the same.

set(PLIMSOLL_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (where a toolkit is found), ON or OFF")
set(PLIMSOLL_CUDA_ARCHITECTURES "80-real;86-real;89-real;90a-real;90-virtual" CACHE STRING
    "Architectures of the backend's own kernels; the last as PTX for newer cards")
set(PLIMSOLL_HAS_CUDA OFF)
if(PLIMSOLL_CUDA STREQUAL "OFF")
  return()
endif()

find_program(PLIMSOLL_NVCC nvcc HINTS ENV PLIMSOLL_CUDA_PATH ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT PLIMSOLL_NVCC)
  if(PLIMSOLL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "PLIMSOLL_CUDA is ON and there is no nvcc; set PLIMSOLL_CUDA_PATH to the toolkit's folder")
  endif()
  message(STATUS "CUDA: no toolkit here, plans for GPUs can be compiled and not run")
  return()
endif()

set(CMAKE_CUDA_COMPILER ${PLIMSOLL_NVCC})
set(CMAKE_CUDA_ARCHITECTURES ${PLIMSOLL_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
foreach(dialect STANDARD EXTENSION) # nvcc 12 and newer know C++20, CMake before 3.26 does not know that
  set(CMAKE_CUDA20_${dialect}_COMPILE_OPTION "-std=c++20")
endforeach()
find_package(CUDAToolkit 12.4 REQUIRED)

# plimsoll_fetch_wheel(requirement folder pattern): unpacks there what of a wheel on PyPI matches the pattern; nothing without a network.
function(plimsoll_fetch_wheel requirement folder pattern)
  execute_process(
    COMMAND python3 -m pip download --quiet --retries 1 --timeout 20 --no-deps --only-binary=:all: --python-version 3.11
            --platform manylinux_2_27_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --dest ${folder} ${requirement}
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  file(GLOB wheel ${folder}/*.whl)
  if(wheel)
    file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${folder} PATTERNS ${pattern})
  endif()
endfunction()

# cuDNN from the toolkit, the system or Python's packages, and its frontend: headers alone, from there or as the wheel that carries them.
execute_process(COMMAND python3 -c "import sysconfig; print(sysconfig.get_path('purelib'))"
                OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
find_library(PLIMSOLL_CUDNN NAMES cudnn libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR} ${wheels}/nvidia/cudnn/lib)
find_path(PLIMSOLL_CUDNN_HEADERS cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${wheels}/nvidia/cudnn/include)
set(frontend_version 1.32.0)
set(frontend_folder ${CMAKE_BINARY_DIR}/cudnn_frontend)
find_path(PLIMSOLL_CUDNN_FRONTEND cudnn_frontend.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${wheels}/include ${frontend_folder}/include)
if(NOT PLIMSOLL_CUDNN_FRONTEND)
  plimsoll_fetch_wheel(nvidia-cudnn-frontend==${frontend_version} ${frontend_folder} "include/*")
  find_path(PLIMSOLL_CUDNN_FRONTEND cudnn_frontend.h HINTS ${frontend_folder}/include)
endif()
if(NOT PLIMSOLL_CUDNN OR NOT PLIMSOLL_CUDNN_HEADERS OR NOT PLIMSOLL_CUDNN_FRONTEND)
  set(missing "CUDA: cuDNN 9 or the headers of cudnn-frontend are missing (pip install nvidia-cudnn-frontend, or set PLIMSOLL_CUDNN_FRONTEND)")
  if(PLIMSOLL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "${missing}")
  endif()
  message(STATUS "${missing}; the CUDA backend is left out")
  return()
endif()
set(PLIMSOLL_HAS_CUDA ON)

if(PLIMSOLL_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${PLIMSOLL_CCACHE})
endif()

# plimsoll_cuda_backend(GLOBS pattern...): libplimsoll_cuda.so beside the program. It holds its own copy of the folders it
# uses and shows one symbol (runtime/cuda/backend_abi.h), so that nothing of it meets the program's own.
function(plimsoll_cuda_backend)
  cmake_parse_arguments(ARG "" "" "GLOBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${ARG_GLOBS})
  add_library(plimsoll_cuda SHARED ${sources})
  # Of the program's libraries the link alone: what these are compiled with is not for kernels.
  target_link_libraries(plimsoll_cuda PRIVATE $<LINK_ONLY:plimsoll_runtime> plimsoll_plan plimsoll_ir CUDA::cudart_static CUDA::cublasLt ${PLIMSOLL_CUDNN} CUDA::nvrtc
                        CUDA::cuda_driver ${CMAKE_DL_LIBS})
  target_include_directories(plimsoll_cuda SYSTEM PRIVATE ${PLIMSOLL_CUDNN_FRONTEND} ${PLIMSOLL_CUDNN_HEADERS})
  target_compile_options(plimsoll_cuda PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${PLIMSOLL_WARNINGS}>" "$<$<COMPILE_LANGUAGE:CUDA>:-extended-lambda;--expt-relaxed-constexpr>")
  target_include_directories(plimsoll_cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  set_target_properties(plimsoll_cuda PROPERTIES
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib SKIP_BUILD_RPATH ON)
  target_link_options(plimsoll_cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,-Bsymbolic -Wl,--no-undefined -Wl,--as-needed)
endfunction()
