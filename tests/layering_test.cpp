// Holds every #include in the tree to the table of folders in docs/map.md: an arrow that is not listed here means
// that a file stands in the wrong folder.

#include <doctest/doctest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

// What an include can belong to. The longest prefix decides; what has none (the standard library, the system) is free.
constexpr std::array<std::string_view, 21> families{
    "ir/",
    "frontend/",
    "frontend/driver/",
    "frontend/api/",
    "frontend/inspect/",
    "passes/",
    "kernels/",
    "runtime/",
    "tests/",
    "llvm/",
    "google/",
    "third_party/onnx/",
    "ir/plan/plan.pb.h",
    "CLI/",
    "doctest/",
    "oneapi/",
    "dnnl",
    "cuda",
    "cublas",
    "cudnn",
    "nccl",
};

struct Folder {
  std::string_view path;  // the longest that holds a file decides
  std::vector<std::string_view> may_include;
};

const std::array<Folder, 11> folders{{
    {"ir/", {"ir/", "llvm/"}},
    {"ir/plan/", {"ir/", "ir/plan/plan.pb.h", "llvm/", "google/"}},
    {"frontend/", {"frontend/", "ir/", "llvm/", "google/", "third_party/onnx/"}},
    {"frontend/inspect/", {"frontend/inspect/", "ir/", "llvm/"}},
    {"frontend/api/", {"frontend/", "frontend/api/", "frontend/inspect/", "ir/", "passes/", "runtime/", "llvm/"}},
    {"frontend/driver/",
     {"frontend/", "frontend/driver/", "frontend/api/", "frontend/inspect/", "ir/", "passes/", "kernels/", "runtime/",
      "llvm/", "CLI/"}},
    {"passes/", {"passes/", "ir/", "llvm/"}},
    {"kernels/", {"kernels/", "oneapi/", "dnnl"}},
    {"kernels/cuda/", {"kernels/", "ir/support/align.h", "cuda", "cublas", "cudnn"}},
    {"runtime/", {"runtime/", "ir/", "kernels/", "llvm/"}},
    {"runtime/cuda/", {"runtime/", "ir/", "kernels/", "llvm/", "cuda", "cublas", "cudnn", "nccl"}},
}};

const Folder* folder_of(std::string_view file) {
  const Folder* best = nullptr;
  for (const Folder& folder : folders) {
    if (file.starts_with(folder.path) && (!best || folder.path.size() > best->path.size())) best = &folder;
  }
  return best;
}

std::optional<std::string_view> family_of(std::string_view include) {
  std::optional<std::string_view> best;
  for (std::string_view family : families) {
    if (include.starts_with(family) && (!best || family.size() > best->size())) best = family;
  }
  return best;
}

bool is_allowed(const Folder& folder, std::string_view include) {
  const std::optional<std::string_view> family = family_of(include);
  if (!family) return true;
  for (std::string_view allowed : folder.may_include) {
    if (*family == allowed || include == allowed) return true;
  }
  return false;
}

std::vector<std::string> includes_of(const fs::path& path) {
  static const std::regex directive(R"re(^\s*#\s*include\s*[<"]([^>"]+)[>"])re");
  std::vector<std::string> includes;
  std::ifstream file(path);
  std::smatch match;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_search(line, match, directive)) includes.push_back(match[1]);
  }
  return includes;
}

bool is_source(const fs::path& path) {
  const std::string extension = path.extension();
  return extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh";
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("layering: every include follows the table of folders") {
  const fs::path root = fs::path(PLIMSOLL_TEST_DATA).parent_path();
  int files = 0;
  for (const char* top : {"ir", "frontend", "passes", "kernels", "runtime"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / top)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      const std::string file = entry.path().lexically_relative(root).generic_string();
      const Folder* folder = folder_of(file);
      REQUIRE(folder);
      ++files;
      for (const std::string& include : includes_of(entry.path())) {
        CHECK_MESSAGE(is_allowed(*folder, include), file << " includes " << include);
      }
    }
  }
  CHECK(files > 100);
}

TEST_CASE("layering: arrows that must not exist are found") {
  const auto allowed = [](std::string_view file, std::string_view include) {
    return is_allowed(*folder_of(file), include);
  };
  CHECK(allowed("runtime/cpu/executor.cpp", "ir/plan/plan.h"));
  CHECK(allowed("ir/plan/plan.cpp", "ir/plan/plan.pb.h"));
  CHECK(allowed("kernels/cpu/elementwise/binary.cpp", "cstdint"));
  CHECK_FALSE(allowed("runtime/cpu/executor.cpp", "passes/pass/pass.h"));
  CHECK_FALSE(allowed("runtime/cpu/executor.cpp", "third_party/onnx/onnx.pb.h"));
  CHECK_FALSE(allowed("ir/graph.cpp", "ir/plan/plan.pb.h"));
  CHECK_FALSE(allowed("kernels/cuda/reduce/softmax.cu", "llvm/ADT/ArrayRef.h"));
  CHECK_FALSE(allowed("kernels/cpu/elementwise/binary.cpp", "ir/type.h"));
  CHECK_FALSE(allowed("frontend/onnx/importer.cpp", "frontend/api/job.h"));
}

TEST_SUITE_END();
