#pragma once

// What our own convolutions of channels in groups have in common: which calls they take, and how their times are
// predicted.

#include "runtime/kernels/own_conv.h"

#include <llvm/ADT/ArrayRef.h>

namespace plimsoll {

inline bool has_types(const ConvTypes& types, bool f32_too) {
  const DType dtype = types.x.dtype;
  return is_16_bit_float(dtype) || (f32_too && dtype == DType::F32);
}

// The types but for the result of a weight gradient, which may be f32.
template <ConvPass pass>
bool accepts_any(const OpCall& call, llvm::ArrayRef<Type> results, bool f32_too) {
  const ConvTypes types(pass, call, results);
  if (!has_types(types, f32_too) || results[0].elements() == 0) return false;
  const DType dtype = call.operand(0).dtype;
  if (!all_operands(call, [&](const Type& type) { return type.dtype == dtype && type.elements() != 0; })) return false;
  const bool is_made = results[0].dtype == dtype || (pass == ConvPass::WeightGradient && is_widened(call, results[0]));
  return is_made && has_convolution_sizes(call.attrs, types);
}

template <ConvPass pass>
cuda::ConvolutionSizes sizes_of(const OpCall& call, llvm::ArrayRef<Type> results) {
  return convolution_sizes(call.attrs, ConvTypes(pass, call, results));
}

template <typename Tiles>
int64_t parts_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const cuda::ConvolutionSizes sizes = sizes_of<ConvPass::WeightGradient>(call, results);
  return Tiles(sizes).workspace_bytes(sizes);
}

// Shares of a copy's speed and of the speed of products that a kernel's two parts have, by pass, as measured on an H200
// with the calls of tests/cuda/on_card/speeds/calls.txt. Blocks wait for pixels and multiply by turns, so that both add
// up; they nearly do where some warps copy while others multiply, since both go through shared memory.
struct ConvRates {
  double of_copy[3], of_products[3];
  double start_us[3] = {};  // of a block, before its first product and after its last one
};

// The microseconds of a kernel's two parts, and of its launches.
struct ConvTimes {
  double copies = 0, products = 0, launches = 0;
};

inline ConvTimes parts_of(const DeviceDescription& device, const ConvRates& rates, ConvPass pass, double tflops,
                          double bytes, double products) {
  if (device.memory_gb_per_s <= 0 || tflops <= 0) return {};
  const auto index = static_cast<size_t>(pass);
  const int launches = pass == ConvPass::WeightGradient ? 2 : 1;
  return {.copies = bytes / (device.memory_gb_per_s * 1e3 * rates.of_copy[index]),
          .products = 2 * products / (tflops * 1e6 * rates.of_products[index]),
          .launches = launches * (device.launch_us + device.kernel_us) + rates.start_us[index]};
}

// spread: how many times as long bytes take as those that a kernel reads in its widest pieces.
template <ConvPass pass>
double predicted(const OpCall& call, const DeviceDescription& device, const ConvRates& rates, double tflops,
                 double products, int64_t workspace_bytes, double spread = 1) {
  const auto results = llvm::cantFail(infer(call));  // outlives what refers to it
  const ConvTypes types(pass, call, results);
  const auto tensor_bytes = static_cast<double>(types.x.bytes() + types.w.bytes() + types.y.bytes());
  const double bytes = tensor_bytes * spread + 2 * static_cast<double>(workspace_bytes);
  const ConvTimes parts = parts_of(device, rates, pass, tflops, bytes, products);
  return parts.copies + parts.products + parts.launches;
}

}  // namespace plimsoll
