#pragma once

// The ranks of a job as a mesh: each rank is one process with one device, and each axis one way to divide the work.

#include "ir/support/status.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace plimsoll {

enum class MeshAxis : uint8_t {
  Data,    // ranks take different rows of the batch
  Tensor,  // ranks take different pieces of one matmul
  Stage,   // ranks take different layers
};
inline constexpr int mesh_axis_count = 3;
llvm::StringRef axis_name(MeshAxis axis);  // "data", "tensor", "stage"
std::optional<MeshAxis> parse_axis(llvm::StringRef name);

// Ranks that differ along the tensor axis alone are next to each other, then those of the data axis: neighbours talk
// most.
struct Mesh {
  std::array<int64_t, mesh_axis_count> sizes{1, 1, 1};

  int64_t operator[](MeshAxis axis) const { return sizes[static_cast<size_t>(axis)]; }
  int64_t& operator[](MeshAxis axis) { return sizes[static_cast<size_t>(axis)]; }
  int64_t ranks() const { return sizes[0] * sizes[1] * sizes[2]; }
  // Those of a stage are neighbours: stage s begins with rank s * ranks_per_stage().
  int64_t ranks_per_stage() const { return ranks() / (*this)[MeshAxis::Stage]; }
  // Where a rank stands along an axis, from 0.
  int64_t coordinate(int64_t rank, MeshAxis axis) const;
  // The ranks that differ from `rank` along that axis alone, in the order of their coordinates, itself among them.
  std::vector<int64_t> group_of(int64_t rank, MeshAxis axis) const;
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

std::string to_string(const Mesh& mesh);  // "data=2,tensor=2"; "one rank"
// Axes that the text does not name have the size 1. Errors name the axis and the size.
Result<Mesh> parse_mesh(llvm::StringRef text);

}  // namespace plimsoll
