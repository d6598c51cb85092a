#include "ir/support/align.h"
#include "runtime/cuda/candidates.h"
#include "runtime/cuda/space_to_batch.h"
#include "runtime/cuda/space_to_depth.h"

// What cuDNN is asked to do of convolutions, of 1 to 3 spatial dimensions. Where it has no good kernel for one, others
// of the same result are asked for: of a fold or of phases.

namespace plimsoll {
namespace {

bool is_one_of(DType dtype, std::initializer_list<DType> wanted) { return llvm::is_contained(wanted, dtype); }

// The weight gradient of 16-bit operands may be asked for in f32: it is made in 16 bits and widened.
bool is_widened(const OpCall& call, llvm::ArrayRef<Type> results) {
  return results[0].dtype == DType::F32 && is_16_bit_float(call.operand(0).dtype);
}

bool accepts_convolution(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType dtype = call.operand(0).dtype;
  if (!is_one_of(dtype, {DType::F32, DType::BF16, DType::F16})) return false;
  if (call.operand(0).rank() < 3 || call.operand(0).rank() > 5 || results[0].elements() == 0) return false;
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i) && (call.operand(i).dtype != dtype || call.operand(i).elements() == 0)) return false;
  return results[0].dtype == dtype || is_widened(call, results);
}

// cuDNN's plans behind its first choice: in f32 some of them are wrong (of its 9.19 on an H200, gradients of 3
// channels).
bool accepts_other_plans(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_convolution(call, results) && is_16_bit_float(call.operand(0).dtype);
}

int64_t convolution_workspace(const OpCall&, llvm::ArrayRef<Type>, const DeviceDescription& device) {
  return device.convolution_workspace_bytes;
}

int64_t weight_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return convolution_workspace(call, results, device) +
         (is_widened(call, results) ? align_to_tensor(results[0].bytes() / 2) : 0);
}

constexpr int64_t own_cudnn_workspace = int64_t{32} << 20;  // beside folds and phases
constexpr int64_t max_folded_channels = 4096;
constexpr int64_t whole_vector = 8;  // 16-bit floats of 16 bytes
constexpr int64_t max_counted = int64_t{1}
                                << 30;  // rows, and elements of a row, that folds and phases count in 32 bits

// With the channels last and without groups; cuDNN has its best kernels for these.
bool is_dense_in_16_bits(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_convolution(call, results) && is_16_bit_float(call.operand(0).dtype) &&
         call.attrs.get_int("channels_last") && call.attrs.get_int("groups", 1) == 1;
}

// w and y may be results. x has channels that cuDNN has no kernels for, and every pixel of a block is read.
bool accepts_folded(const OpCall& call, llvm::ArrayRef<Type> results, const Type& w, const Type& y) {
  const Type& x = call.operand(0);
  if (!is_dense_in_16_bits(call, results) || x.rank() > 4 || x.shape.back() % whole_vector == 0 ||
      y.shape.back() % whole_vector != 0)
    return false;
  if (llvm::any_of(call.attrs.get_ints("dilations"), [](int64_t dilation) { return dilation != 1; })) return false;
  const FoldedConvolution folded(call.attrs, x, w, y.shape);
  for (size_t d = 0; d < 2; ++d)
    if (folded.w.block[d] > folded.w.size[d]) return false;
  const int64_t longest_row =
      std::max(folded.x.size[1] * folded.x.channels, folded.x.folded[1] * folded.x.folded_channels);
  const int64_t rows = std::max(folded.x.batch * folded.x.folded[0], folded.w.batch * folded.w.folded[0]);
  return folded.x.folded_channels <= max_folded_channels && std::max({longest_row, rows, w.elements()}) <= max_counted;
}

bool accepts_folded_convolution(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_folded(call, results, call.operand(1), results[0]);
}
bool accepts_folded_gradient(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_folded(call, results, results[0], call.operand(1));
}

int64_t folded_convolution_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  return FoldedConvolution(call.attrs, call.operand(0), call.operand(1), results[0].shape).bytes() +
         own_cudnn_workspace;
}

int64_t folded_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const Type& x = call.operand(0);
  return FoldedConvolution(call.attrs, x, Type(x.dtype, results[0].shape), call.operand(1).shape).bytes() +
         own_cudnn_workspace;
}

std::optional<PhasedConvolution> phases_of(const OpCall& call, llvm::ArrayRef<Type> results, const Type& x,
                                           const Type& w, const Type& y) {
  if (!is_dense_in_16_bits(call, results) || x.rank() != 4 || x.shape.back() % whole_vector != 0 ||
      y.shape.back() % whole_vector != 0)
    return std::nullopt;
  std::optional<PhasedConvolution> phased = PhasedConvolution::of(call.attrs, x, w.shape, y.shape);
  if (!phased) return std::nullopt;
  const int64_t rows = phased->x_type.shape[0] * std::max(phased->x_type.shape[1], phased->y_type.shape[1]);
  const int64_t longest_row = std::max(x.shape[2] * x.shape[3], y.shape[2] * y.shape[3]);
  return std::max(rows, longest_row) <= max_counted ? phased : std::nullopt;
}

std::optional<PhasedConvolution> phases_of_convolution(const OpCall& call, llvm::ArrayRef<Type> results) {
  return phases_of(call, results, call.operand(0), call.operand(1), results[0]);
}
std::optional<PhasedConvolution> phases_of_input_gradient(const OpCall& call, llvm::ArrayRef<Type> results) {
  return phases_of(call, results, results[0], call.operand(1), call.operand(0));
}
std::optional<PhasedConvolution> phases_of_weight_gradient(const OpCall& call, llvm::ArrayRef<Type> results) {
  return phases_of(call, results, call.operand(0), results[0], call.operand(1));
}

template <auto phases>
bool accepts_phases(const OpCall& call, llvm::ArrayRef<Type> results) {
  return phases(call, results).has_value();
}

// Runs over parts of the batch are summed in f32.
bool accepts_phased_weight_gradient(const OpCall& call, llvm::ArrayRef<Type> results) {
  return is_widened(call, results) && accepts_phases<phases_of_weight_gradient>(call, results);
}

template <auto phases>
int64_t phases_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  return phases(call, results)->bytes() + own_cudnn_workspace;
}

int64_t phased_weight_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type> results,
                                         const DeviceDescription& device) {
  return phases_workspace<phases_of_weight_gradient>(call, results, device) + align_to_tensor(results[0].bytes() / 2);
}

// A fold where there is one, phases forward, or cuDNN's own first choice: the first of these is taken without measured
// times. Further plans for each, and phases of gradients, of which some are slower, are there to be timed.
constexpr CudaCandidate candidates[] = {
    {"conv", "cudnn_folded", accepts_folded_convolution, folded_convolution_workspace},
    {"conv_dw", "cudnn_folded", accepts_folded_gradient, folded_gradient_workspace},
    {"conv", "cudnn_phases", accepts_phases<phases_of_convolution>, phases_workspace<phases_of_convolution>},
    {"conv", "cudnn", accepts_convolution, convolution_workspace},
    {"conv", "cudnn_2", accepts_other_plans, convolution_workspace},
    {"conv", "cudnn_3", accepts_other_plans, convolution_workspace},
    {"conv", "cudnn_4", accepts_other_plans, convolution_workspace},
    {"conv", "cudnn_5", accepts_other_plans, convolution_workspace},
    {"conv", "cudnn_6", accepts_other_plans, convolution_workspace},
    {"conv_dx", "cudnn", accepts_convolution, convolution_workspace},
    {"conv_dx", "cudnn_2", accepts_other_plans, convolution_workspace},
    {"conv_dx", "cudnn_3", accepts_other_plans, convolution_workspace},
    {"conv_dx", "cudnn_4", accepts_other_plans, convolution_workspace},
    {"conv_dx", "cudnn_5", accepts_other_plans, convolution_workspace},
    {"conv_dx", "cudnn_6", accepts_other_plans, convolution_workspace},
    {"conv_dw", "cudnn", accepts_convolution, weight_gradient_workspace},
    {"conv_dw", "cudnn_2", accepts_other_plans, weight_gradient_workspace},
    {"conv_dw", "cudnn_3", accepts_other_plans, weight_gradient_workspace},
    {"conv_dw", "cudnn_4", accepts_other_plans, weight_gradient_workspace},
    {"conv_dw", "cudnn_5", accepts_other_plans, weight_gradient_workspace},
    {"conv_dw", "cudnn_6", accepts_other_plans, weight_gradient_workspace},
    {"conv_transpose", "cudnn", accepts_convolution, convolution_workspace},
    {"conv_transpose", "cudnn_2", accepts_other_plans, convolution_workspace},
    {"conv_transpose", "cudnn_3", accepts_other_plans, convolution_workspace},
    {"conv_transpose", "cudnn_4", accepts_other_plans, convolution_workspace},
    {"conv_transpose", "cudnn_5", accepts_other_plans, convolution_workspace},
    {"conv_transpose", "cudnn_6", accepts_other_plans, convolution_workspace},
    {"conv", "cudnn_folded_2", accepts_folded_convolution, folded_convolution_workspace},
    {"conv", "cudnn_folded_3", accepts_folded_convolution, folded_convolution_workspace},
    {"conv_dw", "cudnn_folded_2", accepts_folded_gradient, folded_gradient_workspace},
    {"conv_dw", "cudnn_folded_3", accepts_folded_gradient, folded_gradient_workspace},
    {"conv", "cudnn_phases_2", accepts_phases<phases_of_convolution>, phases_workspace<phases_of_convolution>},
    {"conv", "cudnn_phases_3", accepts_phases<phases_of_convolution>, phases_workspace<phases_of_convolution>},
    {"conv_dx", "cudnn_phases", accepts_phases<phases_of_input_gradient>, phases_workspace<phases_of_input_gradient>},
    {"conv_dx", "cudnn_phases_2", accepts_phases<phases_of_input_gradient>, phases_workspace<phases_of_input_gradient>},
    {"conv_dx", "cudnn_phases_3", accepts_phases<phases_of_input_gradient>, phases_workspace<phases_of_input_gradient>},
    {"conv_dw", "cudnn_phases", accepts_phased_weight_gradient, phased_weight_gradient_workspace},
    {"conv_dw", "cudnn_phases_2", accepts_phased_weight_gradient, phased_weight_gradient_workspace},
    {"conv_dw", "cudnn_phases_3", accepts_phased_weight_gradient, phased_weight_gradient_workspace},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_convolution_candidates() { return candidates; }

}  // namespace plimsoll
