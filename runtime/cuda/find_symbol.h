#pragma once

// Functions of libraries that are opened while the program runs.

#include <dlfcn.h>

namespace plimsoll {

// Sets `function` to the library's function of that name; null, and false, where it has none.
template <typename Function>
bool find_symbol(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace plimsoll
