# What the preset fuzz has besides: clang's sanitizers and fuzzing, and a copy of LLVM's JSON.h that clang accepts.
add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
add_link_options(-fsanitize=address,undefined)

# plimsoll_late_vectors(from to): makes the copy of JSON.h from one folder of headers in another.
function(plimsoll_late_vectors from to)
  set(header llvm/Support/JSON.h)
  file(READ ${from}/${header} text)
  file(READ ${CMAKE_SOURCE_DIR}/tests/fuzz/late_vector.inc late_vector)
  string(REPLACE "std::vector<Value>" "LateVector<Value>" text "${text}")
  string(REPLACE "class Array {" "${late_vector}class Array {" text "${text}")
  file(WRITE ${to}/${header} "${text}")
endfunction()
