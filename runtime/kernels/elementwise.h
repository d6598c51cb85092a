#pragma once

#include "runtime/kernels/cuda_candidate.h"
#include "runtime/kernels/kernel_call.h"

namespace plimsoll {

// Tensors of the nest: result 0, then the operands.
template <int operands>
LoopNest<operands + 1> broadcast_call(const KernelCall& k) {
  std::array<llvm::ArrayRef<int64_t>, operands> shapes;
  for (size_t i = 0; i < operands; ++i) shapes[i] = k.in_shape(i);
  return broadcast_nest<operands + 1>(k.out_shape(0), shapes);
}

inline bool is_tanh_form(const OpCall& call) { return call.get_string("approximate") == "tanh"; }

// Which random numbers an op draws: those of stream {id} from block first_block on.
struct RandomDraws {
  uint32_t id;
  int64_t first_block;
  explicit RandomDraws(const Attrs& attrs)
      : id(static_cast<uint32_t>(attrs.get_int("id"))), first_block(attrs.get_int("first_draw") / 4) {}
};

// ---- CUDA kernels; they take every dtype but F8 ----

inline constexpr size_t max_add_n_terms = 2048;  // they are arguments of the launch
inline bool accepts_add_n(const OpCall& call, llvm::ArrayRef<Type> results) {
  return call.count() <= max_add_n_terms && has_no_f8(call, results);
}

namespace kernel {

// Operands of one shape are one loop, whatever their rank.
#define PLIMSOLL_VECTORS(op) inline constexpr CudaCandidate op##_vectors{op_##op, "vectors", has_no_f8};
#define PLIMSOLL_BROADCAST(op) \
  inline constexpr CudaCandidate op##_broadcast{op_##op, "broadcast", ranks_fit_without_f8};
#define PLIMSOLL_UNARY(op, Name, formula) PLIMSOLL_VECTORS(op)
#define PLIMSOLL_UNARY_GRAD(op, Name, formula) PLIMSOLL_VECTORS(op)
#define PLIMSOLL_BINARY(op, Name, formula) PLIMSOLL_BROADCAST(op)
#include "kernels/elementwise.def"
PLIMSOLL_VECTORS(bitwise_not)
PLIMSOLL_VECTORS(gelu)
PLIMSOLL_VECTORS(gelu_grad)
PLIMSOLL_VECTORS(clip)
PLIMSOLL_VECTORS(cast)
PLIMSOLL_VECTORS(is_nan)
PLIMSOLL_VECTORS(is_inf)
PLIMSOLL_VECTORS(not )
PLIMSOLL_VECTORS(dropout)
PLIMSOLL_VECTORS(random_uniform)
PLIMSOLL_VECTORS(random_normal)
PLIMSOLL_BROADCAST(mod)
PLIMSOLL_BROADCAST(bit_shift)
#undef PLIMSOLL_VECTORS
#undef PLIMSOLL_BROADCAST
inline constexpr CudaCandidate where_broadcast{op_where, "broadcast", ranks_fit};
inline constexpr CudaCandidate add_n_vectors{op_add_n, "vectors", accepts_add_n};
inline constexpr CudaCandidate copy_bytes{op_copy, "bytes", accepts_everything};
inline constexpr CudaCandidate identity_bytes{op_identity, "bytes", accepts_everything};
inline constexpr CudaCandidate reshape_bytes{op_reshape, "bytes", accepts_everything};
inline constexpr CudaCandidate to_host_copy_engine{op_to_host, "copy_engine", accepts_everything};
inline constexpr CudaCandidate to_device_copy_engine{op_to_device, "copy_engine", accepts_everything};

}  // namespace kernel

inline constexpr const CudaCandidate* elementwise_candidates[] = {
#define PLIMSOLL_UNARY(op, Name, formula) &kernel::op##_vectors,
#define PLIMSOLL_UNARY_GRAD(op, Name, formula) &kernel::op##_vectors,
#define PLIMSOLL_BINARY(op, Name, formula) &kernel::op##_broadcast,
#include "kernels/elementwise.def"
    &kernel::bitwise_not_vectors,   &kernel::gelu_vectors,
    &kernel::gelu_grad_vectors,     &kernel::clip_vectors,
    &kernel::cast_vectors,          &kernel::is_nan_vectors,
    &kernel::is_inf_vectors,        &kernel::not_vectors,
    &kernel::dropout_vectors,       &kernel::random_uniform_vectors,
    &kernel::random_normal_vectors, &kernel::mod_broadcast,
    &kernel::bit_shift_broadcast,   &kernel::where_broadcast,
    &kernel::add_n_vectors,         &kernel::copy_bytes,
    &kernel::identity_bytes,        &kernel::reshape_bytes,
    &kernel::to_host_copy_engine,   &kernel::to_device_copy_engine,
};

}  // namespace plimsoll
