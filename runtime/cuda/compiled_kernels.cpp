#include "runtime/cuda/compiled_kernels.h"

#include "ir/support/output_file.h"
#include "ir/support/parallel.h"
#include "ir/support/read_file.h"
#include "runtime/cuda/find_symbol.h"

#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/xxhash.h"

#include <dlfcn.h>
#include <cstdlib>
#include <optional>

namespace plimsoll {
namespace {

namespace fs = llvm::sys::fs;

// ---- NVRTC ----

struct NvrtcProgram;

// What we call of it; every function returns 0 on success.
struct Nvrtc {
  int (*version)(int* major, int* minor);
  int (*create)(NvrtcProgram** program, const char* text, const char* name, int headers, const char* const* texts,
                const char* const* names);
  int (*compile)(NvrtcProgram* program, int options, const char* const* texts);
  int (*code_bytes)(NvrtcProgram* program, size_t* bytes);
  int (*code)(NvrtcProgram* program, char* code);
  int (*log_bytes)(NvrtcProgram* program, size_t* bytes);
  int (*log)(NvrtcProgram* program, char* log);
  int (*destroy)(NvrtcProgram** program);
};

// Null where the library cannot be opened. The program has opened it where it is outside the loader's folders.
const Nvrtc* nvrtc() {
  static const std::optional<Nvrtc> opened = []() -> std::optional<Nvrtc> {
    for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12"}) {
      void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
      Nvrtc n{};
      if (library && find_symbol(library, "nvrtcVersion", n.version) &&
          find_symbol(library, "nvrtcCreateProgram", n.create) &&
          find_symbol(library, "nvrtcCompileProgram", n.compile) &&
          find_symbol(library, "nvrtcGetCUBINSize", n.code_bytes) && find_symbol(library, "nvrtcGetCUBIN", n.code) &&
          find_symbol(library, "nvrtcGetProgramLogSize", n.log_bytes) &&
          find_symbol(library, "nvrtcGetProgramLog", n.log) && find_symbol(library, "nvrtcDestroyProgram", n.destroy))
        return n;
    }
    return std::nullopt;
  }();
  return opened ? &*opened : nullptr;
}

std::string log_of(const Nvrtc& n, NvrtcProgram* program) {
  size_t bytes = 0;
  n.log_bytes(program, &bytes);
  std::string log(bytes, '\0');
  if (bytes > 0) n.log(program, log.data());
  return llvm::StringRef(log.c_str()).trim().str();
}

// Without fused multiply-adds, so that an op rounds as it does by itself.
Result<std::string> compile(const Nvrtc& n, const FusedSource& source, const std::string& architecture) {
  std::vector<const char*> names, texts;
  for (const SourceHeader& header : fused_source_headers()) names.push_back(header.name), texts.push_back(header.text);
  NvrtcProgram* program = nullptr;
  if (n.create(&program, source.text.c_str(), (source.name + ".cu").c_str(), static_cast<int>(names.size()),
               texts.data(), names.data()) != 0)
    return system_error("NVRTC does not start");
  const auto destroy = llvm::make_scope_exit([&] { n.destroy(&program); });
  const std::string target = "--gpu-architecture=" + architecture;
  const char* options[] = {target.c_str(), "--std=c++17", "--fmad=false", "-default-device"};
  size_t bytes = 0;
  if (n.compile(program, 4, options) != 0 || n.code_bytes(program, &bytes) != 0 || bytes == 0)
    return system_error("NVRTC cannot compile " + source.name + " for " + architecture + ": " + log_of(n, program));
  std::string code(bytes, '\0');
  n.code(program, code.data());
  return code;
}

// ---- The folder ----

// Empty where the user has none; then nothing is kept.
std::string cache_folder() {
  llvm::SmallString<128> folder;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"))
    folder = cache;
  else if (const char* home = std::getenv("HOME"))
    llvm::sys::path::append(folder, home, ".cache");
  if (folder.empty()) return "";
  llvm::sys::path::append(folder, "plimsoll", "kernels");
  return fs::create_directories(folder) ? "" : folder.str().str();
}

std::string all_headers() {
  std::string text;
  for (const SourceHeader& header : fused_source_headers()) text += header.text;
  return text;
}

std::string path_of(const FusedSource& source, const std::string& architecture, const std::string& version) {
  static const std::string folder = cache_folder(), headers = all_headers();
  if (folder.empty()) return "";
  const uint64_t hash = llvm::xxHash64(source.text + headers + version);
  return folder + "/" + source.name + "-" + llvm::utohexstr(hash, /*LowerCase=*/true) + "." + architecture + ".cubin";
}

std::string read_code(const std::string& path) {
  if (path.empty() || !fs::exists(path)) return "";
  auto file = read_file(path);
  if (file) return (*file)->getBuffer().str();
  llvm::consumeError(file.takeError());
  return "";
}

// That it cannot be written costs the next start time alone.
void keep_code(const std::string& path, const std::string& code) {
  if (path.empty()) return;
  llvm::consumeError(write_output_file(path, [&](llvm::raw_ostream& out) {
    out << code;
    return Status::success();
  }));
}

}  // namespace

bool has_nvrtc() { return nvrtc() != nullptr; }

Result<std::vector<KernelCode>> compile_kernels(llvm::ArrayRef<FusedSource> sources, int compute_capability) {
  std::vector<KernelCode> codes(sources.size());
  if (sources.empty()) return codes;
  const Nvrtc* library = nvrtc();
  if (!library)
    return system_error(
        "NVRTC (libnvrtc.so.13 or .12) is not found, which compiles fused kernels; install it, name its folder in "
        "PLIMSOLL_CUDA_PATH, or compile the plan with --skip fuse-elementwise");
  int major = 0, minor = 0;
  library->version(&major, &minor);
  const std::string architecture = "sm_" + std::to_string(compute_capability),
                    version = std::to_string(major) + "." + std::to_string(minor);
  std::vector<std::string> failures(sources.size());
  parallel_for(sources.size(), [&](size_t i) {
    const std::string path = path_of(sources[i], architecture, version);
    codes[i] = {sources[i].name, read_code(path)};
    if (!codes[i].cubin.empty()) return;
    Result<std::string> code = compile(*library, sources[i], architecture);
    if (!code) {
      failures[i] = llvm::toString(code.takeError());
      return;
    }
    keep_code(path, *code);
    codes[i].cubin = std::move(*code);
  });
  for (const std::string& failure : failures)
    if (!failure.empty()) return system_error(failure);
  return codes;
}

}  // namespace plimsoll
