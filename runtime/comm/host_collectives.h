#pragma once

// The collectives of a plan on host memory: sums in the order of the ranks, so that the same ranks give the same bits.

#include "ir/mesh.h"
#include "ir/type.h"
#include "runtime/comm/communicator.h"

#include <optional>
#include <vector>

namespace plimsoll {

class HostCollectives {
 public:
  explicit HostCollectives(Communicator& ranks);

  int64_t rank() const { return ranks_.rank(); }
  int64_t ranks() const { return ranks_.ranks(); }

  // `out` may be `in`. A call allocates nothing.
  Status reduce_all(const TensorView& out, const TensorView& in);
  // `out` is the rank's own piece of the sum of `in`; zeros behind its end.
  Status reduce_pieces(const TensorView& out, const TensorView& in);
  // `out` is all pieces, one after the other, as many elements as it has, in its own type.
  Status gather_pieces(const TensorView& out, const TensorView& in);
  // What rank `root` has, at `value` on every rank.
  Status broadcast(const TensorView& value, int64_t root);
  // The sum on rank `root`, zeros on the others. `out` is not `in`.
  Status reduce_root(const TensorView& out, const TensorView& in, int64_t root);
  // Part r of `in` along dimension `split` goes to rank r; those that come stand along dimension `join` of `out`.
  struct Exchange {
    int64_t split, join;
  };
  Status all_to_all(const TensorView& out, const TensorView& in, Exchange dims);
  // To or from one rank of the group, which makes the other call.
  Status send(int64_t to, const TensorView& in);
  Status receive(int64_t from, const TensorView& out);

 private:
  // The largest number of elements that the staging memory takes of each rank at a time.
  int64_t elements_per_round(const TensorView& tensor) const;
  void sum_received(const TensorView& like, void* out, int64_t elements);

  Communicator& ranks_;
  std::vector<std::byte> sent_, received_;
};

// Those of each axis of a mesh, among the ranks that differ along it.
class MeshCollectives {
 public:
  // `all` are the ranks of the mesh and must outlive it.
  MeshCollectives(Communicator& all, const Mesh& mesh);
  // Null along an axis of one rank.
  HostCollectives* along(MeshAxis axis);

 private:
  std::array<std::unique_ptr<Communicator>, mesh_axis_count> groups_;  // null where the group is all ranks
  std::array<std::optional<HostCollectives>, mesh_axis_count> collectives_;
};

}  // namespace plimsoll
