#pragma once

// What a training step would take and hold on a mesh, computed from a few programs of one rank instead of planning each
// mesh: bounds that every plan keeps, and estimates that order the candidates.

#include "passes/derive_program.h"
#include "passes/mesh/mesh_candidates.h"

#include <map>

namespace plimsoll {

// Collectives along one axis: how many, and the bytes that a rank sends in them.
struct Exchanges {
  double count = 0, sent_bytes = 0;
};

// What one rank does for one call of the training step, its stages together, at one size of its batch.
struct RankWork {
  int64_t rows = 0;  // samples
  // Computing of a forward and backward pass as planning predicts it, and the device's ceilings for all matmuls and all
  // bytes of it.
  double forward_us = 0, backward_us = 0, matmul_us = 0, memory_us = 0;
  double sure_us = 0;  // of forward_us and backward_us what every plan computes, whatever its ranks divide
  Exchanges over_tensor, over_data;  // within a pass
  int64_t saved_bytes = 0;           // what forward makes and backward reads
  int64_t working_bytes = 0;         // what the largest instruction reads and writes
  int64_t nodes = 0;                 // instructions of the passes
};

// One rank's share of the model where so many share tensors: at a few sizes of the batch, and what does not depend on
// it.
struct TensorProfile {
  int64_t tensor_ranks = 1;
  std::vector<RankWork> work;  // by rows, ascending
  double update_us = 0, update_memory_us = 0;
  Exchanges update_over_tensor;  // sums of gradients that ranks along the tensor axis make alike
  // States by what ZeRO divides.
  int64_t parameter_bytes = 0, optimizer_bytes = 0, gradient_bytes = 0, other_bytes = 0;
  // Of the trained parameters: as they are updated and as computing reads them, the gradients' sums over ranks, and the
  // largest gradient.
  int64_t trained_bytes = 0, read_bytes = 0, sum_bytes = 0, largest_gradient_bytes = 0;
  int64_t trained = 0;  // number

  // Between the sizes on straight lines, and on the nearest line beyond them.
  RankWork at(int64_t rows) const;
  // What computing so many rows takes at least: more rows take no less, and a row of more rows takes no longer.
  double sure_us(int64_t rows) const;
};

// Where the model can be cut in stages.
struct StageProfile {
  std::vector<double> block_share;  // of a step's computing, between neighbouring cuts; they add up to 1
  double border_bytes = 0;          // of one sample, over a typical cut
};

struct MeshEstimate {
  int64_t bytes = 0;  // of the rank that needs most, without remats and copies
  double us = 0;      // of a step
  // No plan needs fewer bytes of device and host together, or of the device; no plan takes less time.
  int64_t least_bytes = 0, least_device_bytes = 0;
  double least_us = 0;
  int64_t nodes = 0;  // instructions of all stages

  // What a rank's passes read: so many bytes each, one pass after the other, and all of its states once.
  double passes = 1;
  int64_t pass_bytes = 0, state_bytes = 0;
  double from_host_gb_per_s = 0;

  // No plan within the budget takes less time: what does not stay on the device comes from the host for every pass.
  double least_us_within(int64_t budget_bytes) const;
  double host_us(int64_t budget_bytes) const;  // these copies alone
};

struct ModelProfile {
  int64_t batch = 0;                      // samples of all ranks; 0: unknown
  std::map<int64_t, TensorProfile> with;  // by ranks along the tensor axis: those that compute less than fewer ranks do
  StageProfile stages;

  std::vector<int64_t> tensor_sizes() const;
};

// How many ranks along the tensor axis.
struct TensorRanks {
  int64_t most = 1;
  bool is_given = false;  // so many and no fewer, whether they shorten anything or not
};

// Derives the programs of one rank; `request` gives the rest of the job. Errors are those of the program of one rank
// and of a given size; other sizes that cannot be planned are left out.
Result<ModelProfile> profile_model(const CleanModel& model, const TrainingRequest& request, TensorRanks tensor,
                                   const DeviceDescription& device, const KernelCatalog& catalog);

// `device` has the links of the mesh. `candidate` has as many ranks along the tensor axis as a profile.
MeshEstimate estimate_mesh(const ModelProfile& profile, const MeshCandidate& candidate, const TrainingRequest& request,
                           const DeviceDescription& device);

}  // namespace plimsoll
