#include "ir/support/own_library.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <dlfcn.h>
#include <string>
#include <vector>

namespace plimsoll {

void* open_own_library(llvm::StringRef name) {
  static int here = 0;
  std::vector<std::string> files = {llvm::sys::fs::getMainExecutable(nullptr, &here)}, paths;
  if (Dl_info library; dladdr(&here, &library)) files.push_back(library.dli_fname);
  for (llvm::StringRef file : files)
    for (const char* place : {"/", "/../lib/"})
      paths.push_back((llvm::sys::path::parent_path(file) + place + name).str());
  paths.push_back(name.str());
  for (const std::string& path : paths)
    if (void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened;
  return nullptr;
}

}  // namespace plimsoll
