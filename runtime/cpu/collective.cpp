#include "runtime/cpu/kernels.h"

#include <cstring>

// Collectives go through the ranks' communicator; a rank by itself is its whole group.

namespace plimsoll {
namespace {

// As many elements as both have, then zeros.
void copy_resized(const TensorView& to, const TensorView& from) {
  if (to.type.dtype != from.type.dtype) {
    for (int64_t i = 0; i < to.elements(); ++i) to.set(i, i < from.elements() ? from.get(i) : 0);
    return;
  }
  const int64_t bytes = std::min(to.type.bytes(), from.type.bytes());
  if (to.data != from.data) std::memcpy(to.data, from.data, static_cast<size_t>(bytes));
  std::memset(to.as<char>() + bytes, 0, static_cast<size_t>(to.type.bytes() - bytes));
}

using CollectiveMember = Status (HostCollectives::*)(const TensorView& out, const TensorView& in);

template <CollectiveMember member>
Status launch(const CpuCall& k) {
  if (k.ranks) return (k.ranks->*member)(k.result("y"), k.operand("x"));
  copy_resized(k.result("y"), k.operand("x"));
  return Status::success();
}

int64_t own_rank(const CpuCall& k) { return k.ranks ? k.ranks->rank() : 0; }

// The elements of the rank's own piece that lie within the whole.
TensorView own_part(const TensorView& whole, const TensorView& piece, int64_t rank) {
  const int64_t length = piece.elements(), first = std::min(rank * length, whole.elements());
  const Type part(whole.type.dtype, {std::min(length, whole.elements() - first)});
  return {part, whole.as<char>() + first * dtype_bytes(whole.type.dtype)};
}

Status launch_take_piece(const CpuCall& k) {
  copy_resized(k.result("y"), own_part(k.operand("x"), k.result("y"), own_rank(k)));
  return Status::success();
}

Status launch_place_piece(const CpuCall& k) {
  const TensorView part = own_part(k.result("y"), k.operand("x"), own_rank(k));
  std::memset(k.result("y").data, 0, static_cast<size_t>(k.result("y").type.bytes()));
  std::memcpy(part.data, k.operand("x").data, static_cast<size_t>(part.type.bytes()));
  return Status::success();
}

Status launch_send(const CpuCall& k) {
  std::memset(k.result("sent").data, 0, 1);
  return k.ranks ? k.ranks->send(k.call.get_int("peer"), k.operand("x")) : Status::success();
}

Status launch_receive(const CpuCall& k) {
  if (k.ranks) return k.ranks->receive(k.call.get_int("peer"), k.result("y"));
  std::memset(k.result("y").data, 0, static_cast<size_t>(k.result("y").type.bytes()));
  return Status::success();
}

Status launch_broadcast(const CpuCall& k) {
  if (!k.ranks || k.ranks->rank() == k.call.get_int("root")) copy_resized(k.result("y"), k.operand("x"));
  return k.ranks ? k.ranks->broadcast(k.result("y"), k.call.get_int("root")) : Status::success();
}

Status launch_reduce_root(const CpuCall& k) {
  if (k.ranks) return k.ranks->reduce_root(k.result("y"), k.operand("x"), k.call.get_int("root"));
  copy_resized(k.result("y"), k.operand("x"));
  return Status::success();
}

Status launch_all_to_all(const CpuCall& k) {
  if (k.ranks)
    return k.ranks->all_to_all(k.result("y"), k.operand("x"), {k.call.get_int("split"), k.call.get_int("join")});
  copy_resized(k.result("y"), k.operand("x"));
  return Status::success();
}

constexpr CpuKernel collective_table[] = {
    {op_reduce_all, "ranks", accepts_everything, launch<&HostCollectives::reduce_all>},
    {op_reduce_pieces, "ranks", accepts_everything, launch<&HostCollectives::reduce_pieces>},
    {op_gather_pieces, "ranks", accepts_everything, launch<&HostCollectives::gather_pieces>},
    {op_take_piece, "copy", accepts_everything, launch_take_piece},
    {op_place_piece, "copy", accepts_everything, launch_place_piece},
    {op_broadcast, "ranks", accepts_everything, launch_broadcast},
    {op_reduce_root, "ranks", accepts_everything, launch_reduce_root},
    {op_all_to_all, "ranks", accepts_everything, launch_all_to_all},
    {op_send, "ranks", accepts_everything, launch_send},
    {op_receive, "ranks", accepts_everything, launch_receive},
};

}  // namespace

llvm::ArrayRef<CpuKernel> collective_kernels() { return collective_table; }

}  // namespace plimsoll
