#include "runtime/cuda/loader.h"

// The backend names its libraries by SONAME. Whatever of them the system's loader would not find is opened first by
// full path, which satisfies that name for the rest of the process.

#include "ir/support/own_library.h"
#include "ir/support/strings.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <dlfcn.h>
#include <cstdlib>

namespace plimsoll {
namespace {

namespace fs = llvm::sys::fs;

// In the order in which they depend on each other. cuDNN opens its engines and NVRTC by name when a plan is made.
struct Library {
  llvm::StringLiteral stem;
  llvm::StringLiteral sonames;  // by preference
  bool needed;
};

constexpr Library libraries[] = {
    {"cuBLASLt", "libcublasLt.so.13 libcublasLt.so.12", true},
    {"NVRTC's built-ins", "libnvrtc-builtins.so.13.0 libnvrtc-builtins.so.12.8", false},
    {"NCCL", "libnccl.so.2", false},
    {"NVRTC", "libnvrtc.so.13 libnvrtc.so.12", false},
    {"cuDNN's graphs", "libcudnn_graph.so.9", false},
    {"cuDNN's operations", "libcudnn_ops.so.9", false},
    {"cuDNN's heuristics", "libcudnn_heuristic.so.9", false},
    {"cuDNN's engines", "libcudnn_engines_precompiled.so.9", false},
    {"cuDNN's generated engines", "libcudnn_engines_runtime_compiled.so.9", false},
    {"cuDNN's convolutions", "libcudnn_cnn.so.9", false},
    {"cuDNN", "libcudnn.so.9", true},
};

using Folders = std::vector<std::string>;

void add_folder(Folders& folders, const llvm::Twine& path) {
  if (fs::is_directory(path)) folders.push_back(path.str());
}

// nvidia/<package>/lib under one site-packages folder, and the libraries that torchvision's wheel brings along.
void add_wheels(Folders& folders, const llvm::Twine& site_packages) {
  std::error_code error;
  add_folder(folders, site_packages + "/torchvision.libs");
  for (fs::directory_iterator at(site_packages + "/nvidia", error), end; at != end && !error; at.increment(error))
    add_folder(folders, at->path() + "/lib");
}

// <root>/lib/python3.*/{site,dist}-packages.
void add_python(Folders& folders, const llvm::Twine& root) {
  std::error_code error;
  for (fs::directory_iterator at(root + "/lib", error), end; at != end && !error; at.increment(error)) {
    if (!starts_with(llvm::sys::path::filename(at->path()), "python3")) continue;
    add_wheels(folders, at->path() + "/site-packages");
    add_wheels(folders, at->path() + "/dist-packages");
  }
}

Folders places() {
  Folders folders;
  if (const char* path = std::getenv("PLIMSOLL_CUDA_PATH"))
    for (llvm::StringRef root : llvm::split(path, ':')) {
      add_folder(folders, root);
      add_folder(folders, root + "/lib64");
      add_folder(folders, root + "/lib");
      add_wheels(folders, root);
    }
  if (const char* path = std::getenv("CUDA_PATH")) add_folder(folders, llvm::Twine(path) + "/lib64");
  add_folder(folders, "/usr/local/cuda/lib64");
  if (const char* path = std::getenv("VIRTUAL_ENV")) add_python(folders, path);
  for (const char* root : {"/usr/local", "/usr"}) add_python(folders, root);
  // The python3 that a shell would start, wherever its folder is.
  if (const char* path = std::getenv("PATH"))
    for (llvm::StringRef folder : llvm::split(path, ':'))
      if (fs::exists(folder + "/python3")) add_python(folders, llvm::sys::path::parent_path(folder));
  if (const char* home = std::getenv("HOME")) add_python(folders, llvm::Twine(home) + "/.local");
  return folders;
}

// Python's wheels put a hash into the names of libraries that they bring along: libnvjpeg.4a0b5c81.so.13.
std::string file_of(const std::string& folder, llvm::StringRef name) {
  const std::string path = folder + "/" + name.str();
  if (fs::exists(path) || !ends_with(folder, ".libs")) return path;
  const auto [stem, version] = name.split(".so.");
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; at != end && !error; at.increment(error)) {
    const llvm::StringRef file = llvm::sys::path::filename(at->path());
    if (starts_with(file, (stem + ".").str()) && ends_with(file, (".so." + version).str())) return at->path();
  }
  return path;
}

// Opened for the whole process and kept open.
bool open_library(const Library& library, const Folders& folders) {
  llvm::SmallVector<llvm::StringRef, 2> names;
  library.sonames.split(names, ' ');
  for (llvm::StringRef name : names) {
    for (const std::string& folder : folders) {
      const std::string path = file_of(folder, name);
      if (fs::exists(path) && dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) return true;
    }
    if (dlopen(name.str().c_str(), RTLD_NOW | RTLD_GLOBAL)) return true;
  }
  return false;
}

// A CUDA graph with copies or collectives beside computing is spread over the driver's work queues for kernels. In more
// than two, each product starts 3 us later, even where nothing runs beside it. The driver reads this when it starts,
// and what a user has set stays.
void set_work_queues() {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "2", 0);
  setenv("CUDA_DEVICE_MAX_COPY_CONNECTIONS", "8", 0);
}

}  // namespace

void open_nvjpeg() { open_library({"nvJPEG", "libnvjpeg.so.13 libnvjpeg.so.12", false}, places()); }

Result<std::unique_ptr<CudaBackend>> load_cuda_backend(bool to_run) {
  if (to_run && !dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL))
    return system_error(
        "no NVIDIA driver here (libcuda.so.1 cannot be opened); plans for GPUs can be compiled and inspected, not run");
  set_work_queues();
  Folders folders = places();
  for (const Library& library : libraries)
    if (!open_library(library, folders) && library.needed)
      return system_error(library.stem + " (" + library.sonames +
                          ") is not found; install it, or name its folder in PLIMSOLL_CUDA_PATH");
  void* opened = open_own_library("libplimsoll_cuda.so");
  if (!opened) {
    const char* why = dlerror();
    return system_error(llvm::Twine("the CUDA backend cannot be opened: ") +
                        (why ? why : "libplimsoll_cuda.so is not found"));
  }
  auto make = reinterpret_cast<CudaBackendFn>(dlsym(opened, cuda_backend_symbol));
  if (!make)
    return system_error("libplimsoll_cuda.so is of another build: it lacks " + llvm::Twine(cuda_backend_symbol));
  return std::unique_ptr<CudaBackend>(make());
}

}  // namespace plimsoll
