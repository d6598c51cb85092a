#include "runtime/comm/host_collectives.h"

#include "runtime/comm/group_ranks.h"

// A reduction goes in rounds that fit fixed staging memory: each rank gets one piece of every rank's elements, adds
// them up, and hands its sums to the others.

#include <algorithm>
#include <cstring>

namespace plimsoll {
namespace {

constexpr int64_t staging_bytes = 1 << 20;  // of each of the two

std::byte* bytes_at(const TensorView& tensor, int64_t element) {
  return tensor.as<std::byte>() + element * dtype_bytes(tensor.type.dtype);
}

template <typename T>
void sum_pieces(void* out, const std::byte* pieces, int64_t ranks, int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) {
    double sum = 0;
    for (int64_t rank = 0; rank < ranks; ++rank)
      sum += static_cast<double>(reinterpret_cast<const T*>(pieces)[rank * elements + i]);
    static_cast<T*>(out)[i] = static_cast<T>(sum);
  }
}

// Elements [first, first + count) of the tensor, as far as it has them, then zeros.
void copy_padded(std::byte* to, const TensorView& from, int64_t first, int64_t count) {
  const int64_t there = std::clamp<int64_t>(from.elements() - first, 0, count), size = dtype_bytes(from.type.dtype);
  if (there > 0) std::memcpy(to, bytes_at(from, first), static_cast<size_t>(there * size));
  std::memset(to + there * size, 0, static_cast<size_t>((count - there) * size));
}

void cast(std::byte* to, DType dtype, const TensorView& from, int64_t first, int64_t count) {
  const TensorView casted{Type(dtype, {count}), to};
  for (int64_t i = 0; i < count; ++i) casted.set(i, from.get(first + i));
}

}  // namespace

HostCollectives::HostCollectives(Communicator& ranks) : ranks_(ranks), sent_(staging_bytes), received_(staging_bytes) {}

int64_t HostCollectives::elements_per_round(const TensorView& tensor) const {
  return staging_bytes / dtype_bytes(tensor.type.dtype) / ranks();
}

void HostCollectives::sum_received(const TensorView& like, void* out, int64_t elements) {
  switch (like.type.dtype) {
    case DType::F32: return sum_pieces<float>(out, received_.data(), ranks(), elements);
    case DType::F64: return sum_pieces<double>(out, received_.data(), ranks(), elements);
    default: break;
  }
  const Type one_rank(like.type.dtype, {elements * ranks()});
  const TensorView pieces{one_rank, received_.data()}, sums{Type(like.type.dtype, {elements}), out};
  for (int64_t i = 0; i < elements; ++i) {
    double sum = 0;
    for (int64_t rank = 0; rank < ranks(); ++rank) sum += pieces.get(rank * elements + i);
    sums.set(i, sum);
  }
}

Status HostCollectives::reduce_all(const TensorView& out, const TensorView& in) {
  const int64_t size = dtype_bytes(in.type.dtype), total = in.elements();
  for (int64_t first = 0; first < total;) {
    const int64_t left = total - first, piece = std::min(elements_per_round(in), (left + ranks() - 1) / ranks());
    for (int64_t rank = 0; rank < ranks(); ++rank)
      copy_padded(sent_.data() + rank * piece * size, in, first + rank * piece, piece);
    if (Status s = ranks_.exchange(sent_.data(), received_.data(), piece * size)) return s;
    sum_received(in, sent_.data(), piece);
    if (Status s = ranks_.gather_all(sent_.data(), received_.data(), piece * size)) return s;
    const int64_t done = std::min(left, piece * ranks());
    std::memcpy(bytes_at(out, first), received_.data(), static_cast<size_t>(done * size));
    first += done;
  }
  return Status::success();
}

Status HostCollectives::reduce_pieces(const TensorView& out, const TensorView& in) {
  const int64_t size = dtype_bytes(in.type.dtype), length = out.elements();
  for (int64_t first = 0; first < length;) {
    const int64_t round = std::min(elements_per_round(in), length - first);
    for (int64_t rank = 0; rank < ranks(); ++rank)
      copy_padded(sent_.data() + rank * round * size, in, rank * length + first, round);
    if (Status s = ranks_.exchange(sent_.data(), received_.data(), round * size)) return s;
    sum_received(in, bytes_at(out, first), round);
    first += round;
  }
  return Status::success();
}

Status HostCollectives::gather_pieces(const TensorView& out, const TensorView& in) {
  const int64_t size = dtype_bytes(out.type.dtype), length = in.elements();
  for (int64_t first = 0; first < length;) {
    const int64_t round = std::min(elements_per_round(out), length - first);
    if (in.type.dtype == out.type.dtype)
      std::memcpy(sent_.data(), bytes_at(in, first), static_cast<size_t>(round * size));
    else
      cast(sent_.data(), out.type.dtype, in, first, round);
    if (Status s = ranks_.gather_all(sent_.data(), received_.data(), round * size)) return s;
    for (int64_t rank = 0; rank < ranks(); ++rank) {
      const int64_t at = rank * length + first, there = std::clamp<int64_t>(out.elements() - at, 0, round);
      if (there > 0)
        std::memcpy(bytes_at(out, at), received_.data() + rank * round * size, static_cast<size_t>(there * size));
    }
    first += round;
  }
  return Status::success();
}

// A binary tree: with each step twice as many ranks have the value.
Status HostCollectives::broadcast(const TensorView& value, int64_t root) {
  const int64_t place = (rank() - root + ranks()) % ranks();  // the root's is 0
  auto at_place = [&](int64_t other) { return (other + root) % ranks(); };
  int64_t step = 1;
  while (step <= place) step *= 2;  // this rank gets it from the one `step` / 2 places before
  if (place > 0)
    if (Status s = receive(at_place(place - step / 2), value)) return s;
  for (; place + step < ranks(); step *= 2)
    if (Status s = send(at_place(place + step), value)) return s;
  return Status::success();
}

Status HostCollectives::reduce_root(const TensorView& out, const TensorView& in, int64_t root) {
  if (Status s = reduce_all(out, in)) return s;
  if (rank() != root) std::memset(out.data, 0, static_cast<size_t>(out.type.bytes()));
  return Status::success();
}

namespace {

// The part of one rank along a dimension of a tensor that the ranks divide evenly, seen as consecutive elements.
class PartAlong {
 public:
  PartAlong(const TensorView& whole, int64_t dim, int64_t ranks) : whole_(whole) {
    const llvm::ArrayRef<int64_t> shape = whole.type.shape;
    const int64_t inner = element_count(shape.drop_front(static_cast<size_t>(dim) + 1));
    stride_ = shape[static_cast<size_t>(dim)] * inner;
    run_ = stride_ / ranks;
  }

  // visit(bytes of the tensor, bytes behind the first of these elements, how many bytes)
  template <typename Visit>
  void for_each_run(int64_t rank, int64_t first, int64_t count, Visit visit) const {
    const int64_t size = dtype_bytes(whole_.type.dtype);
    for (int64_t i = first; i < first + count;) {
      const int64_t in_run = i % run_, length = std::min(run_ - in_run, first + count - i);
      visit(bytes_at(whole_, i / run_ * stride_ + rank * run_ + in_run), (i - first) * size,
            static_cast<size_t>(length * size));
      i += length;
    }
  }

 private:
  const TensorView& whole_;
  int64_t stride_, run_;  // elements from run to run, and of a run
};

}  // namespace

Status HostCollectives::all_to_all(const TensorView& out, const TensorView& in, Exchange dims) {
  const int64_t size = dtype_bytes(in.type.dtype), length = in.elements() / ranks();
  const PartAlong sent(in, dims.split, ranks()), got(out, dims.join, ranks());
  for (int64_t first = 0; first < length;) {
    const int64_t round = std::min(elements_per_round(in), length - first);
    for (int64_t rank = 0; rank < ranks(); ++rank) {
      std::byte* staged = sent_.data() + rank * round * size;
      sent.for_each_run(rank, first, round, [&](const std::byte* from, int64_t at, size_t bytes) {
        std::memcpy(staged + at, from, bytes);
      });
    }
    if (Status s = ranks_.exchange(sent_.data(), received_.data(), round * size)) return s;
    for (int64_t rank = 0; rank < ranks(); ++rank) {
      const std::byte* staged = received_.data() + rank * round * size;
      got.for_each_run(rank, first, round,
                       [&](std::byte* to, int64_t at, size_t bytes) { std::memcpy(to, staged + at, bytes); });
    }
    first += round;
  }
  return Status::success();
}

Status HostCollectives::send(int64_t to, const TensorView& in) {
  return ranks_.transfer({to, in.data, in.type.bytes()}, {});
}

Status HostCollectives::receive(int64_t from, const TensorView& out) {
  return ranks_.transfer({}, {from, out.data, out.type.bytes()});
}

MeshCollectives::MeshCollectives(Communicator& all, const Mesh& mesh) {
  for (size_t i = 0; i < mesh_axis_count; ++i) {
    if (mesh.sizes[i] == 1) continue;
    if (mesh.sizes[i] < mesh.ranks()) groups_[i] = make_group(all, mesh.group_of(all.rank(), static_cast<MeshAxis>(i)));
    collectives_[i].emplace(groups_[i] ? *groups_[i] : all);
  }
}

HostCollectives* MeshCollectives::along(MeshAxis axis) {
  std::optional<HostCollectives>& found = collectives_[static_cast<size_t>(axis)];
  return found ? &*found : nullptr;
}

}  // namespace plimsoll
