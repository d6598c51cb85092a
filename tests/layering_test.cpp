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

// What an include can belong to: a folder or file of ours, or a library. The longest prefix decides; what has none (the
// standard library, the system) is free.
constexpr std::string_view families[] = {
    "ir/",
    "ir/support/",
    "ir/machine/",
    "ir/ops/",
    "ir/plan/",
    "ir/plan/plan.pb.h",
    "frontend/",
    "frontend/onnx/",
    "frontend/inspect/",
    "frontend/log/",
    "frontend/log/event.pb.h",
    "frontend/api/",
    "frontend/driver/",
    "passes/",
    "passes/job.h",
    "passes/pipelines.h",
    "passes/lay_out_function.h",
    "passes/arena_windows.h",
    "passes/slow_kernels.h",
    "passes/lower_to_plan.h",
    "passes/fuse_launches.h",
    "passes/derive_program.h",
    "passes/derive_stages.h",
    "passes/compile.h",
    "passes/add_evaluation.h",
    "passes/add_lengths.h",
    "passes/states_of_plan.h",
    "passes/pass/",
    "passes/rewrite/",
    "passes/analysis/",
    "passes/clean/",
    "passes/target/",
    "passes/train/",
    "passes/evaluate/",
    "passes/partition/",
    "passes/schedule/",
    "passes/remat/",
    "passes/offload/",
    "passes/place/",
    "passes/budget/",
    "passes/mesh/",
    "kernels/",
    "kernels/cpu/",
    "kernels/cuda/",
    "runtime/",
    "runtime/comm/",
    "runtime/data/",
    "runtime/checkpoint/",
    "runtime/kernels/",
    "runtime/cpu/",
    "runtime/cuda/",
    "runtime/cuda/backend/",
    "tests/",
    "llvm/",
    "google/",
    "third_party/onnx/",
    "CLI/",
    "doctest/",
    "oneapi/",
    "dnnl",
    "cuda",
    "cublas",
    "cudnn",
    "nccl",
    "mpi",
};

struct Folder {
  std::string_view path;  // a folder, or a file without its extension; the longest that matches decides
  std::vector<std::string_view> may_include;
};

// The table of docs/map.md, from the ground up. A folder may include itself.
const Folder folders[] = {
    {"ir/support/", {"llvm/"}},
    {"ir/", {"ir/support/", "ir/ops/", "llvm/"}},
    {"ir/ops/", {"ir/", "ir/support/", "llvm/"}},
    {"ir/machine/", {"ir/", "ir/support/", "llvm/"}},
    {"ir/plan/", {"ir/", "ir/support/", "ir/machine/", "ir/plan/plan.pb.h", "llvm/", "google/"}},
    {"passes/job", {"passes/partition/", "ir/", "ir/plan/"}},
    {"passes/pass/", {"ir/", "ir/support/", "ir/plan/", "llvm/"}},
    {"passes/rewrite/", {"passes/pass/", "ir/", "llvm/"}},
    {"passes/analysis/", {"passes/pass/", "ir/", "ir/machine/", "llvm/"}},
    {"passes/clean/", {"passes/pass/", "passes/rewrite/", "passes/analysis/", "ir/", "llvm/"}},
    {"passes/target/",
     {"passes/pass/", "passes/rewrite/", "passes/analysis/", "passes/job.h", "ir/", "ir/ops/", "ir/support/", "llvm/"}},
    {"passes/partition/",
     {"passes/pass/", "passes/rewrite/", "passes/analysis/", "ir/", "ir/ops/", "ir/support/", "llvm/"}},
    {"passes/train/",
     {"passes/partition/", "passes/pass/", "passes/rewrite/", "passes/analysis/", "passes/job.h", "ir/", "ir/ops/",
      "ir/support/", "llvm/"}},
    {"passes/evaluate/", {"passes/pass/", "passes/rewrite/", "passes/analysis/", "ir/", "ir/plan/", "llvm/"}},
    {"passes/schedule/", {"passes/analysis/", "ir/", "ir/support/", "llvm/"}},
    {"passes/remat/", {"passes/analysis/", "ir/", "ir/machine/", "ir/support/", "llvm/"}},
    {"passes/offload/", {"passes/analysis/", "passes/remat/", "ir/", "ir/machine/", "ir/support/", "llvm/"}},
    {"passes/place/", {"passes/analysis/", "ir/support/", "llvm/"}},
    {"passes/pipelines", {"passes/pass/", "passes/job.h", "ir/machine/", "llvm/"}},
    {"passes/lay_out_function", {"passes/analysis/", "passes/place/", "llvm/"}},
    {"passes/arena_windows", {"passes/place/", "ir/plan/", "llvm/"}},
    {"passes/slow_kernels", {"passes/analysis/", "ir/plan/", "ir/support/"}},
    {"passes/lower_to_plan",
     {"passes/analysis/", "passes/place/", "passes/lay_out_function.h", "passes/arena_windows.h",
      "passes/slow_kernels.h", "ir/plan/", "ir/support/", "llvm/"}},
    {"passes/fuse_launches", {"ir/machine/", "ir/plan/", "ir/support/", "llvm/"}},
    {"passes/derive_program",
     {"passes/pass/", "passes/analysis/", "passes/target/", "passes/partition/", "passes/train/", "passes/pipelines.h",
      "passes/job.h", "ir/machine/", "llvm/"}},
    {"passes/derive_stages",
     {"passes/pass/", "passes/analysis/", "passes/partition/", "passes/train/", "passes/derive_program.h",
      "passes/pipelines.h", "passes/job.h", "ir/", "ir/machine/", "ir/support/", "llvm/"}},
    {"passes/budget/",
     {"passes/analysis/", "passes/train/", "passes/remat/", "passes/offload/", "passes/place/",
      "passes/derive_program.h", "passes/derive_stages.h", "passes/lower_to_plan.h", "passes/job.h", "ir/",
      "ir/machine/", "ir/plan/", "ir/support/", "llvm/"}},
    {"passes/mesh/",
     {"passes/analysis/", "passes/budget/", "passes/partition/", "passes/target/", "passes/train/",
      "passes/derive_program.h", "passes/derive_stages.h", "passes/pipelines.h", "passes/job.h", "ir/", "ir/machine/",
      "ir/ops/", "ir/plan/", "ir/support/", "llvm/"}},
    {"passes/add_evaluation",
     {"passes/evaluate/", "passes/offload/", "passes/partition/", "passes/train/", "passes/compile.h",
      "passes/derive_program.h", "passes/lower_to_plan.h", "passes/pipelines.h", "passes/states_of_plan.h",
      "ir/machine/", "ir/support/", "llvm/"}},
    {"passes/add_lengths",
     {"passes/derive_program.h", "passes/derive_stages.h", "passes/fuse_launches.h", "passes/lower_to_plan.h",
      "passes/states_of_plan.h", "ir/machine/", "ir/plan/", "ir/support/", "llvm/"}},
    {"passes/states_of_plan", {"passes/partition/", "ir/", "ir/plan/", "llvm/"}},
    {"passes/compile",
     {"passes/add_evaluation.h", "passes/budget/", "passes/partition/", "passes/target/", "passes/train/",
      "passes/derive_program.h", "passes/derive_stages.h", "passes/fuse_launches.h", "passes/pipelines.h",
      "ir/machine/", "ir/plan/", "ir/support/", "llvm/"}},
    {"kernels/", {}},
    {"kernels/cpu/", {"kernels/", "oneapi/", "dnnl"}},
    {"kernels/cuda/", {"kernels/", "cuda", "cublas", "cudnn"}},
    {"runtime/comm/", {"ir/", "ir/support/", "llvm/", "mpi"}},
    {"runtime/",
     {"runtime/comm/", "runtime/data/", "runtime/kernels/", "runtime/cpu/", "runtime/cuda/", "ir/", "ir/machine/",
      "ir/plan/", "ir/support/", "llvm/"}},
    {"runtime/data/", {"ir/", "ir/plan/", "ir/support/", "llvm/"}},
    {"runtime/checkpoint/", {"runtime/", "runtime/data/", "ir/", "ir/plan/", "ir/support/", "llvm/"}},
    {"runtime/kernels/", {"kernels/", "kernels/cuda/", "ir/", "ir/machine/", "ir/ops/", "ir/support/", "llvm/"}},
    {"runtime/cpu/",
     {"runtime/", "runtime/comm/", "runtime/kernels/", "kernels/", "kernels/cpu/", "ir/", "ir/machine/", "ir/ops/",
      "ir/support/", "llvm/"}},
    {"runtime/cuda/",
     {"runtime/", "runtime/comm/", "runtime/data/", "runtime/kernels/", "ir/machine/", "ir/plan/", "ir/support/",
      "llvm/"}},
    {"runtime/cuda/backend/",
     {"runtime/", "runtime/comm/", "runtime/kernels/", "runtime/cuda/", "kernels/", "kernels/cuda/", "ir/",
      "ir/machine/", "ir/ops/", "ir/plan/", "ir/support/", "llvm/", "cuda", "cublas", "cudnn", "nccl"}},
    {"frontend/onnx/", {"ir/", "ir/support/", "llvm/", "google/", "third_party/onnx/"}},
    {"frontend/inspect/", {"ir/", "ir/plan/", "ir/support/", "llvm/"}},
    {"frontend/log/", {"frontend/log/event.pb.h", "runtime/", "ir/plan/", "ir/support/", "llvm/", "google/"}},
    {"frontend/api/",
     {"frontend/onnx/",
      "frontend/inspect/",
      "passes/budget/",
      "passes/mesh/",
      "passes/analysis/",
      "passes/rewrite/",
      "passes/train/",
      "passes/partition/",
      "passes/job.h",
      "passes/compile.h",
      "passes/add_lengths.h",
      "runtime/",
      "runtime/comm/",
      "runtime/data/",
      "runtime/cpu/",
      "runtime/cuda/",
      "ir/",
      "ir/machine/",
      "ir/plan/",
      "ir/support/",
      "llvm/"}},
    {"frontend/driver/",
     {"frontend/api/", "frontend/inspect/", "frontend/log/", "passes/budget/", "passes/mesh/", "passes/target/",
      "passes/train/", "runtime/", "runtime/comm/", "runtime/cuda/", "runtime/data/", "runtime/checkpoint/", "ir/",
      "ir/machine/", "ir/plan/", "ir/support/", "llvm/", "CLI/"}},
};

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
  if (*family == folder.path || (folder.path.back() != '/' && family->starts_with(folder.path))) return true;
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
  CHECK(files > 400);
}

TEST_CASE("layering: arrows that must not exist are found") {
  const auto allowed = [](std::string_view file, std::string_view include) {
    return is_allowed(*folder_of(file), include);
  };
  CHECK(allowed("runtime/executor.cpp", "ir/plan/plan.h"));
  CHECK(allowed("ir/plan/plan.cpp", "ir/plan/plan.pb.h"));
  CHECK(allowed("kernels/cpu/elementwise/binary.cpp", "cstdint"));
  CHECK_FALSE(allowed("runtime/cpu/executor.cpp", "passes/pass/pass.h"));
  CHECK_FALSE(allowed("runtime/cpu/executor.cpp", "third_party/onnx/onnx.pb.h"));
  CHECK_FALSE(allowed("ir/graph.cpp", "ir/plan/plan.pb.h"));
  CHECK_FALSE(allowed("kernels/cuda/reduce/softmax.cu", "llvm/ADT/ArrayRef.h"));
  CHECK_FALSE(allowed("kernels/cpu/elementwise/binary.cpp", "ir/type.h"));
  CHECK_FALSE(allowed("passes/remat/remat_plan.cpp", "passes/budget/fit.h"));
  CHECK_FALSE(allowed("passes/clean/dce.cpp", "passes/compile.h"));
  CHECK_FALSE(allowed("passes/place/placement.cpp", "passes/remat/remat_plan.h"));
  CHECK_FALSE(allowed("ir/support/units.cpp", "ir/graph.h"));
  CHECK_FALSE(allowed("frontend/onnx/importer.cpp", "frontend/api/job.h"));
}

TEST_SUITE_END();
