#pragma once

// The names that a PyTorch model's state_dict() has, of which an exported file has fewer: tied parameters are stored
// once, and counters of batch norms not at all. With all of them load_state_dict(strict=True) takes what is saved.

#include "frontend/onnx/model.h"

#include <map>
#include <string>
#include <vector>

namespace plimsoll {

struct StateNames {
  std::map<std::string, std::string>
      tied;  // a name that the file lacks, and the initializer that is the same parameter
  std::vector<std::string> batch_counters;  // "bn1.num_batches_tracked": i64 scalars
};

// Reads the export signature and the modules of nodes; models without a signature have no such names.
StateNames find_state_names(const onnx::GraphProto& graph);

}  // namespace plimsoll
