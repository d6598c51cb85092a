#include "runtime/kernels/pool.h"

namespace plimsoll {

namespace {

// Elements are numbered in 31 bits; indices are the second result.
bool accepts_pool(const OpCall& call, llvm::ArrayRef<Type> results) {
  return computes_in_f32(call.operand(0).dtype) && call.operand(0).elements() <= INT32_MAX &&
         results[0].elements() <= INT32_MAX;
}

// The place of each maximum in its window is kept in a byte; operand x may be these places.
bool accepts_max_pool_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return computes_in_f32(call["dy"].dtype) && results[0].elements() <= INT32_MAX &&
         call["dy"].elements() <= INT32_MAX && element_count(call.get_ints("kernel")) < 255;
}

int64_t max_pool_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return call["x"].dtype == DType::U8 ? 0 : call["dy"].elements();
}

// Averages over images with channels last by 3 x 3 windows with a stride of 1 or 2, or 2 x 2 with 2, for which there
// are kernels of their own: the bytes at shares of a copy's speed, as measured on an H200 in bf16. Narrow accesses,
// where channels are no multiples of more, are slower. 0, which leaves it to the planner's roofline, for others.
double averages_us(const OpCall& call, const Type& x, const Type& y, bool is_gradient,
                   const DeviceDescription& device) {
  struct Windows {
    int64_t kernel, stride;
    double shares[2];  // of y, and of dx
  };
  constexpr Windows windows[] = {{3, 1, {0.85, 0.6}}, {3, 2, {0.87, 0.97}}, {2, 2, {1.07, 0.98}}};
  constexpr double start_us = 1;
  if (device.memory_gb_per_s <= 0 || x.rank() != 4 || !call.get_int("channels_last")) return 0;
  const PoolWindow<int64_t> w = pool_window<int64_t>(call.attrs, x.shape, y.shape);
  const auto* found = llvm::find_if(windows, [&](const Windows& each) {
    return llvm::all_of(llvm::ArrayRef<int>{1, 2}, [&](int d) {
      return w.kernel[d] == each.kernel && w.strides[d] == each.stride && w.dilations[d] == 1;
    });
  });
  if (found == std::end(windows)) return 0;
  const int64_t channels = x.shape.back();
  const double narrow = channels % 4 == 0 ? 1 : channels % 2 == 0 ? 0.77 : 0.5;
  // With a stride dx is written in accesses of 16 bytes.
  const bool is_wide = is_gradient && found->stride > 1 && dtype_bytes(x.dtype) == 2;
  const double share =
      found->shares[is_gradient ? 1 : 0] * (is_wide && channels % 8 != 0 && narrow == 1 ? 0.77 : narrow);
  return static_cast<double>(x.bytes() + y.bytes()) / (device.memory_gb_per_s * 1e3 * share) + device.launch_us +
         start_us;
}

double average_pool_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  return averages_us(call, call["x"], results[0], false, device);
}

double average_pool_grad_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  return averages_us(call, results[0], call["dy"], true, device);
}

// How often maxima take the time of a copy of what they move, fitted to 25 calls by windows of 3 x 3 with a stride of 2
// on an H200 (2026-11-30).
double maxima_us(double pixels, double planes, const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  return (call.attrs.get_int("channels_last", 0) ? pixels : planes) *
             device.roofline_us(0, moved_bytes(call, results), std::nullopt) +
         device.launch_us;
}

double max_pool_us(const OpCall& call, const DeviceDescription& device) { return maxima_us(1.9, 6.1, call, device); }
double max_pool_grad_us(const OpCall& call, const DeviceDescription& device) {
  return maxima_us(1.7, 16.8, call, device);
}

// Patches of images with channels last, as measured on an H200: shares of a copy's speed. A thread that writes many
// taps of a patch leaves fewer threads; gradients read patches in runs, and narrow accesses cost them more. 0, which
// leaves it to the planner's roofline, for others.
double patches_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double start_us = 1, fold_share = 0.62, most_share = 0.82, least_share = 0.45, share_of_tap = 0.0053;
  constexpr double half_access_times[] = {0.67, 0.47}, less_times = 0.5;  // of unfold and fold
  constexpr int64_t access_bytes = 16;
  if (device.memory_gb_per_s <= 0 || !call.get_int("channels_last")) return 0;
  const Types results = llvm::cantFail(infer(call));
  const Type& x = call["x"];
  const int64_t pixel_bytes = x.shape.back() * dtype_bytes(x.dtype);
  const bool is_fold = call.op.name == "fold";
  const auto taps = static_cast<double>(element_count(call.get_ints("kernel")));
  double share = is_fold ? fold_share : std::max(most_share - share_of_tap * taps, least_share);
  if (pixel_bytes % access_bytes != 0) share *= half_access_times[is_fold ? 1 : 0];
  if (pixel_bytes % (access_bytes / 2) != 0) share *= less_times;
  return static_cast<double>(x.bytes() + results[0].bytes()) / (device.memory_gb_per_s * 1e3 * share) +
         device.launch_us + start_us;
}

constexpr CudaCandidate pool_table[] = {
    {.op = op_max_pool, .name = "windows", .accepts = accepts_pool, .predicted_us = max_pool_us},
    {.op = op_max_pool_with_indices, .name = "windows", .accepts = accepts_pool, .predicted_us = max_pool_us},
    {.op = op_max_pool_grad,
     .name = "windows",
     .accepts = accepts_max_pool_grad,
     .workspace_bytes = max_pool_grad_workspace,
     .predicted_us = max_pool_grad_us},
    {.op = op_average_pool, .name = "windows", .accepts = accepts_pool, .predicted_us = average_pool_us},
    {.op = op_average_pool_grad, .name = "windows", .accepts = accepts_pool, .predicted_us = average_pool_grad_us},
    {.op = op_unfold, .name = "windows", .accepts = accepts_pool, .predicted_us = patches_us},
    {.op = op_fold, .name = "windows", .accepts = accepts_pool, .predicted_us = patches_us},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> pool_candidates() { return pool_table; }

}  // namespace plimsoll
