#include "ir/mesh.h"

#include "llvm/ADT/SmallVector.h"

#include <set>

namespace plimsoll {
namespace {

constexpr llvm::StringLiteral names[mesh_axis_count] = {"data", "tensor", "stage"};
constexpr int64_t max_ranks = 1 << 16;

}  // namespace

llvm::StringRef axis_name(MeshAxis axis) { return names[static_cast<size_t>(axis)]; }

std::optional<MeshAxis> parse_axis(llvm::StringRef name) {
  for (size_t i = 0; i < mesh_axis_count; ++i)
    if (names[i] == name) return static_cast<MeshAxis>(i);
  return std::nullopt;
}

int64_t Mesh::coordinate(int64_t rank, MeshAxis axis) const {
  const int64_t tensor = (*this)[MeshAxis::Tensor], data = (*this)[MeshAxis::Data];
  switch (axis) {
    case MeshAxis::Tensor: return rank % tensor;
    case MeshAxis::Data: return rank / tensor % data;
    case MeshAxis::Stage: return rank / tensor / data;
  }
  return 0;
}

std::vector<int64_t> Mesh::group_of(int64_t rank, MeshAxis axis) const {
  const int64_t tensor = (*this)[MeshAxis::Tensor], data = (*this)[MeshAxis::Data];
  const int64_t step = axis == MeshAxis::Tensor ? 1 : axis == MeshAxis::Data ? tensor : tensor * data;
  std::vector<int64_t> members;
  for (int64_t i = 0; i < (*this)[axis]; ++i) members.push_back(rank + (i - coordinate(rank, axis)) * step);
  return members;
}

std::string to_string(const Mesh& mesh) {
  std::string text;
  for (size_t i = 0; i < mesh_axis_count; ++i)
    if (mesh.sizes[i] > 1) text += (text.empty() ? "" : ",") + names[i].str() + "=" + std::to_string(mesh.sizes[i]);
  return text.empty() ? "one rank" : text;
}

Result<Mesh> parse_mesh(llvm::StringRef text) {
  Mesh mesh;
  std::set<MeshAxis> named;
  llvm::SmallVector<llvm::StringRef, 3> axes;
  text.split(axes, ',');
  for (llvm::StringRef each : axes) {
    const auto [name, size] = each.split('=');
    const std::optional<MeshAxis> axis = parse_axis(name.trim());
    if (!axis) return usage_error("a mesh has the axes data, tensor and stage, not '" + name.trim() + "'");
    if (!named.insert(*axis).second) return usage_error("a mesh has the axis " + name.trim() + " once");
    int64_t count = 0;
    if (size.trim().getAsInteger(10, count) || count < 1 || count > max_ranks)
      return usage_error("mesh axis " + name.trim() + ": '" + size.trim() + "' is no number of ranks from 1 to " +
                         llvm::Twine(max_ranks));
    mesh[*axis] = count;
  }
  if (mesh.ranks() > max_ranks)
    return usage_error("a mesh of " + llvm::Twine(mesh.ranks()) + " ranks, the limit is " + llvm::Twine(max_ranks));
  return mesh;
}

}  // namespace plimsoll
