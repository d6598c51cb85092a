# The libraries that decode images. Where one is missing, images of its format are refused at run time, and the build is
# otherwise the same: runtime/data/decode_FORMAT.cpp or decode_FORMAT_missing.cpp is compiled.

set(PLIMSOLL_DECODERS "")
set(PLIMSOLL_OTHER_DECODERS "")

# plimsoll_decoder(FORMAT package)
function(plimsoll_decoder format package)
  string(TOLOWER ${format} lower)
  find_package(${format} QUIET)
  if(${format}_FOUND)
    list(APPEND PLIMSOLL_DECODERS ${format}::${format})
    list(APPEND PLIMSOLL_OTHER_DECODERS runtime/data/decode_${lower}_missing.cpp)
  else()
    message(STATUS "No ${package}: data sets of ${format} images cannot be read")
    list(APPEND PLIMSOLL_OTHER_DECODERS runtime/data/decode_${lower}.cpp)
  endif()
  set(PLIMSOLL_DECODERS ${PLIMSOLL_DECODERS} PARENT_SCOPE)
  set(PLIMSOLL_OTHER_DECODERS ${PLIMSOLL_OTHER_DECODERS} PARENT_SCOPE)
endfunction()

plimsoll_decoder(JPEG libjpeg62-turbo-dev)
plimsoll_decoder(PNG libpng-dev)
