#pragma once

// Which ranks can compute with the model by themselves.

#include "ir/mesh.h"

namespace plimsoll {

// Whether each rank has all weights at any time, as evaluation needs them. `zero` is TrainingRequest::zero.
inline bool holds_whole_weights(const Mesh& mesh, int zero) {
  return mesh[MeshAxis::Tensor] == 1 && mesh[MeshAxis::Stage] == 1 && (mesh[MeshAxis::Data] == 1 || zero < 3);
}

}  // namespace plimsoll
