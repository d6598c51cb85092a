#pragma once

// The ways in which ranks could share one job: meshes with what they divide and how their stages take micro-batches.
// Nothing here knows the model.

#include "ir/mesh.h"
#include "passes/partition/pipeline_schedule.h"

#include "llvm/ADT/ArrayRef.h"

namespace plimsoll {

struct MeshCandidate {
  Mesh mesh;
  int zero = 0;  // as TrainingRequest::zero
  // Of a pipeline.
  int64_t micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::OneForwardOneBackward;
  friend bool operator==(const MeshCandidate&, const MeshCandidate&) = default;
};

// What a job leaves open.
struct MeshQuestion {
  int64_t cards = 1;          // a mesh may leave some of them idle
  std::optional<Mesh> mesh;   // none: any that the cards allow
  std::optional<int> zero;    // none: any
  int64_t micro_batches = 0;  // 0: any
  std::optional<PipelineSchedule> schedule;
  int64_t batch = 0;            // samples of all ranks; 0: unknown, and then nobody divides it
  bool accumulates = false;     // ZeRO-2 differs from ZeRO-1 only where gradients are accumulated
  bool gathers_copies = false;  // beside no other axis, ZeRO-1 is ZeRO-3: see TrainingRequest::zero_as_done
  int64_t max_stages = 1;
};

// Sizes that are tried along the axes tensor and stage: up to `most`, one and numbers with at most `bits` significant
// bits. More cards only add sizes.
std::vector<int64_t> axis_sizes(int64_t most, int bits);

// All meshes with each of the sizes along the tensor axis, and with as many ranks along the data axis as divide the
// batch, or nearly do where few divide it. In a fixed order; those of more cards contain those of fewer.
std::vector<MeshCandidate> mesh_candidates(const MeshQuestion& question, llvm::ArrayRef<int64_t> tensor_sizes);

// Micro-batches of a pipeline that are tried: the largest numbers that divide the rows, up to one, two and four for
// each stage.
std::vector<int64_t> micro_batches_to_try(int64_t rows, int64_t stages);

}  // namespace plimsoll
