#include "passes/mesh/mesh_candidates.h"

#include "passes/partition/divide_batch.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

constexpr int stage_bits = 3;  // 1 to 8, 10, 12, 14, 16, 20, ...: never more than a fifth below what would be possible
constexpr int64_t micro_batches_per_stage[] = {1, 2, 4};

// How many ranks share the batch: those that divide it. Where that leaves more than half of them out, also those of
// which each has a sample and the last a few less.
std::vector<int64_t> data_sizes(int64_t batch, int64_t most) {
  std::vector<int64_t> sizes;
  int64_t divisor = 1;
  for (int64_t i = 1; i <= std::min(batch, most); ++i) {
    if (batch % i == 0) divisor = i;
    const bool all_have_rows = rows_of_rank(batch, i) * (i - 1) < batch;
    if (divisor == i || (2 * divisor <= i && all_have_rows)) sizes.push_back(i);
  }
  return sizes;
}

class Enumerator {
 public:
  explicit Enumerator(const MeshQuestion& question) : question_(question) {}

  std::vector<MeshCandidate> run(llvm::ArrayRef<int64_t> tensor_sizes) {
    if (question_.mesh) {
      add_mesh(*question_.mesh);
      return std::move(found_);
    }
    const int64_t cards = question_.cards;
    for (int64_t data : data_sizes(std::max<int64_t>(question_.batch, 1), cards))
      for (int64_t tensor : tensor_sizes)
        for (int64_t stages : axis_sizes(std::min(cards / data, question_.max_stages), stage_bits)) {
          Mesh mesh;
          mesh[MeshAxis::Data] = data, mesh[MeshAxis::Tensor] = tensor, mesh[MeshAxis::Stage] = stages;
          if (mesh.ranks() <= cards) add_mesh(mesh);
        }
    return std::move(found_);
  }

 private:
  void add_mesh(const Mesh& mesh) {
    for (int zero : zero_stages(mesh)) {
      MeshCandidate candidate{.mesh = mesh, .zero = zero};
      if (mesh[MeshAxis::Stage] == 1)
        found_.push_back(candidate);
      else
        add_pipelines(candidate);
    }
  }

  std::vector<int> zero_stages(const Mesh& mesh) const {
    if (mesh[MeshAxis::Data] == 1) return {0};
    if (question_.zero) return {*question_.zero};
    if (question_.gathers_copies && mesh[MeshAxis::Data] == mesh.ranks()) return {0, 3};
    return question_.accumulates ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{0, 1, 3};
  }

  void add_pipelines(MeshCandidate candidate) {
    const int64_t stages = candidate.mesh[MeshAxis::Stage],
                  rows = std::max<int64_t>(rows_of_rank(question_.batch, candidate.mesh[MeshAxis::Data]), 1);
    std::vector<int64_t> counts = micro_batches_to_try(rows, stages);
    if (question_.micro_batches > 0) counts = {question_.micro_batches};
    for (int64_t count : counts)
      for (size_t i = 0; i < std::size(schedule_names); ++i) {
        candidate.micro_batches = count;
        candidate.schedule = static_cast<PipelineSchedule>(i);
        if (is_tried(candidate)) found_.push_back(candidate);
      }
  }

  bool is_tried(const MeshCandidate& candidate) const {
    const int64_t stages = candidate.mesh[MeshAxis::Stage];
    if (question_.schedule.value_or(candidate.schedule) != candidate.schedule) return false;
    if (candidate.schedule == PipelineSchedule::Interleaved && candidate.micro_batches % stages != 0) return false;
    return runs_of_schedule(candidate.schedule, stages).count() <= question_.max_stages || question_.mesh;
  }

  const MeshQuestion& question_;
  std::vector<MeshCandidate> found_;
};

}  // namespace

std::vector<int64_t> axis_sizes(int64_t most, int bits) {
  std::vector<int64_t> sizes;
  for (int64_t step = 1, size = 1; size <= most; size += step) {
    sizes.push_back(size);
    if (size == step << bits) step *= 2;
  }
  return sizes;
}

std::vector<MeshCandidate> mesh_candidates(const MeshQuestion& question, llvm::ArrayRef<int64_t> tensor_sizes) {
  return Enumerator(question).run(tensor_sizes);
}

std::vector<int64_t> micro_batches_to_try(int64_t rows, int64_t stages) {
  std::vector<int64_t> counts;
  for (int64_t per_stage : micro_batches_per_stage) {
    int64_t count = std::min(rows, per_stage * stages);
    while (rows % count != 0) --count;
    if (!llvm::is_contained(counts, count)) counts.push_back(count);
  }
  return counts;
}

}  // namespace plimsoll
