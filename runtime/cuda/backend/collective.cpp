#include "kernels/cuda/elementwise/elementwise.h"
#include "runtime/cuda/backend/device_memory.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/cuda/backend/libraries.h"
#include "runtime/cuda/backend/nccl.h"

#include <algorithm>

// Sums and gathers over ranks, and transfers between two, by NCCL. Neighbours of one kind become one group, which is
// one launch.

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

constexpr CudaLauncher launchers[] = {
    {op_reduce_all, "nccl", launch_reduce_all, prepare, both_of_several, launch_group<launch_reduce_all>},
    {op_reduce_pieces, "nccl", launch_reduce_pieces, prepare, both_of_several, launch_group<launch_reduce_pieces>},
    {op_reduce_pieces, "nccl_padded", launch_reduce_pieces_padded, prepare},
    {op_gather_pieces, "nccl", launch_gather_pieces, prepare, both_of_several, launch_group<launch_gather_pieces>},
    {op_gather_pieces, "nccl_padded", launch_gather_pieces_padded, prepare},
    {op_take_piece, "copy", launch_take_piece, prepare},
    {op_place_piece, "copy", launch_place_piece, prepare},
    {op_send, "nccl", launch_send, prepare},
    {op_receive, "nccl", launch_receive, prepare},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> collective_launchers() { return launchers; }

}  // namespace plimsoll
