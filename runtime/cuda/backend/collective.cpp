#include "ir/support/align.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "runtime/cuda/backend/device_memory.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/cuda/backend/libraries.h"
#include "runtime/cuda/backend/nccl.h"

#include <algorithm>

// Sums, gathers and exchanges over ranks, and transfers between two, by NCCL. Neighbours of one kind become one group,
// which is one launch.

namespace plimsoll {
namespace {

struct PreparedRanks : CudaPrepared {
  explicit PreparedRanks(const Nccl& nccl) : nccl(nccl) {}
  const Nccl& nccl;
};

Result<std::unique_ptr<CudaPrepared>> prepare(CudaLibraries& libraries, const CudaCall& k) {
  const Nccl& nccl = libraries.nccl(*parse_axis(k.call.get_string("axis")));
  if (k.call.get_int("ranks") > 1 && !nccl.is_joined())
    return usage_error("the plan is for several ranks, and one is here");
  return std::make_unique<PreparedRanks>(nccl);
}

const Nccl& nccl_of(const CudaCall& k) { return static_cast<const PreparedRanks&>(*k.prepared).nccl; }
bool is_alone(const CudaCall& k) { return k.call.get_int("ranks") == 1; }

Status copy(const CudaCall& k, void* to, const void* from, int64_t bytes) {
  return launched(k, cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, k.stream));
}
Status zero(const CudaCall& k, void* at, int64_t bytes) {
  return launched(k, cudaMemsetAsync(at, 0, static_cast<size_t>(bytes), k.stream));
}

// As many bytes as both have, then zeros.
Status copy_resized(const CudaCall& k) {
  const int64_t to = k.result("y").type.bytes(), there = std::min(to, k.operand("x").type.bytes());
  if (k.out("y") != k.in("x"))
    if (Status s = copy(k, k.out("y"), k.in("x"), there)) return s;
  return to > there ? zero(k, k.out<char>("y") + there, to - there) : Status::success();
}

Status launch_reduce_all(const CudaCall& k) {
  if (is_alone(k)) return copy_resized(k);
  return nccl_of(k).reduce_all(k.out("y"), k.in("x"), k.elements(), k.result("y").type.dtype, k.stream);
}

Status launch_reduce_pieces(const CudaCall& k) {
  if (is_alone(k)) return copy_resized(k);
  return nccl_of(k).reduce_pieces(k.out("y"), k.in("x"), k.elements(), k.result("y").type.dtype, k.stream);
}

Status launch_reduce_pieces_padded(const CudaCall& k) {
  if (is_alone(k)) return copy_resized(k);
  const int64_t bytes = k.operand("x").type.bytes(), padded = k.call.get_int("ranks") * k.result("y").type.bytes();
  if (Status s = copy(k, k.workspace, k.in("x"), bytes)) return s;
  if (Status s = zero(k, k.scratch<char>() + bytes, padded - bytes)) return s;
  return nccl_of(k).reduce_pieces(k.out("y"), k.workspace, k.elements(), k.result("y").type.dtype, k.stream);
}

Status cast(const CudaCall& k, void* to, int64_t elements) {
  return launched(k, cuda::cast_elements(k.out_scalar("y"), to, k.in_scalar("x"), k.in("x"), elements, k.stream));
}

// Gathers the pieces at `to`, where a cast puts the rank's own piece first.
Status gather_at(const CudaCall& k, char* to) {
  const int64_t elements = k.operand("x").type.elements(), bytes = elements * dtype_bytes(k.result("y").type.dtype);
  const void* own = k.in("x");
  if (k.operand("x").type.dtype != k.result("y").type.dtype) {
    own = to + nccl_of(k).rank() * bytes;
    if (Status s = cast(k, to + nccl_of(k).rank() * bytes, elements)) return s;
  }
  return nccl_of(k).gather_pieces(to, own, bytes, k.stream);
}

Status launch_gather_pieces(const CudaCall& k) {
  if (!is_alone(k)) return gather_at(k, k.out<char>("y"));
  return k.operand("x").type.dtype == k.result("y").type.dtype ? copy_resized(k) : cast(k, k.out("y"), k.elements());
}

Status launch_gather_pieces_padded(const CudaCall& k) {
  if (is_alone(k)) return launch_gather_pieces(k);
  if (Status s = gather_at(k, k.scratch<char>())) return s;
  return copy(k, k.out("y"), k.workspace, k.result("y").type.bytes());
}

// The bytes of the rank's own piece that lie within the whole, as [first, first + count).
struct OwnBytes {
  int64_t first, count;
};
OwnBytes own_bytes(const CudaCall& k, int64_t whole, int64_t piece) {
  const int64_t first = std::min(is_alone(k) ? 0 : nccl_of(k).rank() * piece, whole);
  return {first, std::min(piece, whole - first)};
}

Status launch_take_piece(const CudaCall& k) {
  const int64_t piece = k.result("y").type.bytes();
  const OwnBytes own = own_bytes(k, k.operand("x").type.bytes(), piece);
  if (Status s = copy(k, k.out("y"), k.in<char>("x") + own.first, own.count)) return s;
  return piece > own.count ? zero(k, k.out<char>("y") + own.count, piece - own.count) : Status::success();
}

Status launch_place_piece(const CudaCall& k) {
  const int64_t whole = k.result("y").type.bytes();
  const OwnBytes own = own_bytes(k, whole, k.operand("x").type.bytes());
  if (Status s = zero(k, k.out("y"), whole)) return s;
  return copy(k, k.out<char>("y") + own.first, k.in("x"), own.count);
}

// Without x on a stage that is not the root, where NCCL reads nothing.
Status launch_broadcast(const CudaCall& k) {
  if (is_alone(k)) return copy_resized(k);
  const void* x = k.in("x");
  return nccl_of(k).broadcast(k.out("y"), x ? x : k.out("y"), k.result("y").type.bytes(), k.call.get_int("root"),
                              k.stream);
}

Status launch_reduce_root(const CudaCall& k) {
  if (is_alone(k)) return copy_resized(k);
  const int64_t root = k.call.get_int("root");
  if (Status s = nccl_of(k).reduce_root(k.out("y"), k.in("x"), k.elements(), k.result("y").type.dtype, root, k.stream))
    return s;
  return nccl_of(k).rank() == root ? Status::success() : zero(k, k.out("y"), k.result("y").type.bytes());
}

// Part r of `from` goes to rank r, and what that one sends is part r of `to`; parts lie one after the other.
Status exchange_runs(const CudaCall& k, char* to, const char* from) {
  const Nccl& nccl = nccl_of(k);
  const int64_t part = k.result("y").type.bytes() / nccl.ranks();
  if (Status s = nccl.begin_group()) return s;
  for (int64_t rank = 0; rank < nccl.ranks(); ++rank) {
    if (Status s = nccl.send(from + rank * part, part, rank, k.stream)) return s;
    if (Status s = nccl.receive(to + rank * part, part, rank, k.stream)) return s;
  }
  return nccl.end_group();
}

Status launch_all_to_all(const CudaCall& k) {
  return is_alone(k) ? copy_resized(k) : exchange_runs(k, k.out<char>("y"), k.in<char>("x"));
}

// The parts along a dimension of a tensor, each as rows of memory: `row` bytes every `pitch` bytes.
struct PartRows {
  size_t row, pitch, count;
};
PartRows part_rows(const Type& whole, int64_t dim, int64_t ranks) {
  const llvm::ArrayRef<int64_t> shape = whole.shape;
  const auto at = static_cast<size_t>(dim);
  const auto pitch = static_cast<size_t>(element_count(shape.drop_front(at)) * dtype_bytes(whole.dtype));
  return {pitch / static_cast<size_t>(ranks), pitch, static_cast<size_t>(element_count(shape.take_front(at)))};
}

Status copy_rows(const CudaCall& k, void* to, size_t to_pitch, const void* from, size_t from_pitch, PartRows rows) {
  return launched(
      k, cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, rows.row, rows.count, cudaMemcpyDeviceToDevice, k.stream));
}

Status launch_all_to_all_packed(const CudaCall& k) {
  if (is_alone(k)) return copy_resized(k);
  const Type &x = k.operand("x").type, &y = k.result("y").type;
  const int64_t ranks = nccl_of(k).ranks(), part = x.bytes() / ranks;
  char* sent = k.scratch<char>();
  char* got = sent + align_to_tensor(x.bytes());
  const PartRows from = part_rows(x, k.call.get_int("split"), ranks), to = part_rows(y, k.call.get_int("join"), ranks);
  for (int64_t rank = 0; rank < ranks; ++rank)
    if (Status s = copy_rows(k, sent + rank * part, from.row, k.in<char>("x") + rank * static_cast<int64_t>(from.row),
                             from.pitch, from))
      return s;
  if (Status s = exchange_runs(k, got, sent)) return s;
  for (int64_t rank = 0; rank < ranks; ++rank)
    if (Status s = copy_rows(k, k.out<char>("y") + rank * static_cast<int64_t>(to.row), to.pitch, got + rank * part,
                             to.row, to))
      return s;
  return Status::success();
}

// The result of a send is read by nobody.
Status launch_send(const CudaCall& k) {
  if (Status s = zero(k, k.out("sent"), 1)) return s;
  return is_alone(k) ? Status::success()
                     : nccl_of(k).send(k.in("x"), k.operand("x").type.bytes(), k.call.get_int("peer"), k.stream);
}

Status launch_receive(const CudaCall& k) {
  const int64_t bytes = k.result("y").type.bytes();
  return is_alone(k) ? zero(k, k.out("y"), bytes)
                     : nccl_of(k).receive(k.out("y"), bytes, k.call.get_int("peer"), k.stream);
}

bool both_of_several(const CudaCall& first, const CudaCall& next) {
  return !is_alone(first) && first.call.get_string("axis") == next.call.get_string("axis");
}

template <CudaLauncher::LaunchFn launch>
Status launch_group(llvm::ArrayRef<CudaCall> calls) {
  const Nccl& nccl = nccl_of(calls.front());
  if (Status s = nccl.begin_group()) return s;
  for (const CudaCall& call : calls)
    if (Status s = launch(call)) return s;
  return nccl.end_group();
}

constexpr CudaLauncher collective_table[] = {
    {op_reduce_all, "nccl", launch_reduce_all, prepare, both_of_several, launch_group<launch_reduce_all>},
    {op_reduce_pieces, "nccl", launch_reduce_pieces, prepare, both_of_several, launch_group<launch_reduce_pieces>},
    {op_reduce_pieces, "nccl_padded", launch_reduce_pieces_padded, prepare},
    {op_gather_pieces, "nccl", launch_gather_pieces, prepare, both_of_several, launch_group<launch_gather_pieces>},
    {op_gather_pieces, "nccl_padded", launch_gather_pieces_padded, prepare},
    {op_take_piece, "copy", launch_take_piece, prepare},
    {op_place_piece, "copy", launch_place_piece, prepare},
    {op_broadcast, "nccl", launch_broadcast, prepare},
    {op_reduce_root, "nccl", launch_reduce_root, prepare},
    {op_all_to_all, "nccl", launch_all_to_all, prepare},
    {op_all_to_all, "nccl_packed", launch_all_to_all_packed, prepare},
    {op_send, "nccl", launch_send, prepare},
    {op_receive, "nccl", launch_receive, prepare},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> collective_launchers() { return collective_table; }

}  // namespace plimsoll
