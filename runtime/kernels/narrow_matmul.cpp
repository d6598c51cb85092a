#include "runtime/kernels/narrow_matmul.h"

#include "runtime/kernels/matmul.h"

// Times are fitted to 12 shapes of bf16 and 2 of f32 that were measured on an H200, each as a product in both
// directions and as a gradient.

namespace plimsoll {
namespace {

// Fewer rows take a launch whatever multiplies them.
constexpr int64_t least_rows = 512;
constexpr double measured_multiprocessors = 132;

double of_copy_us(double bytes, double share, const DeviceDescription& device) {
  return bytes / (share * device.memory_gb_per_s * 1e3);
}

double by_multiprocessors(double us, const DeviceDescription& device) {
  return us * measured_multiprocessors / std::max(device.multiprocessors, 1);
}

double moved_bytes_of(const cuda::NarrowSizes& n) {
  return static_cast<double>(n.rows * (n.inner + n.columns) * n.element_bytes);
}

// Elements of the wide side that the threads of a row have between them: 4 or 8 times a power of 2.
double places_of_row(const cuda::NarrowSizes& n) {
  int64_t places = n.narrow() > 8 || n.wide() <= 4 ? 4 : 8;
  while (places < n.wide()) places *= 2;
  return static_cast<double>(places);
}

// Picoseconds of a place of a row, by the narrow side's columns: up to 2, 4, 8 and 16.
using PlaceTimes = double[4];
constexpr PlaceTimes spread_ps{0.94, 0.88, 1, 1.9}, gather_ps{0.97, 1.15, 1.25, 2.3},
    gradient_ps{0.88, 0.92, 0.99, 1.68};

double narrow_us(const cuda::NarrowSizes& n, const PlaceTimes& place_ps, const DeviceDescription& device) {
  // Rows of the narrow side that are no power of 2 are read element by element.
  constexpr double of_copy = 0.82, of_odd_copy = 0.66;
  const int64_t narrow = n.narrow();
  const size_t at = narrow <= 2 ? 0 : narrow <= 4 ? 1 : narrow <= 8 ? 2 : 3;
  const bool is_odd = (narrow & (narrow - 1)) != 0;
  const double places_us = static_cast<double>(n.rows) * places_of_row(n) * place_ps[at] * 1e-6;
  return std::max(by_multiprocessors(places_us, device),
                  of_copy_us(moved_bytes_of(n), is_odd ? of_odd_copy : of_copy, device)) +
         device.launch_us + device.kernel_us;
}

// What a row's length, or an odd one of two, is a multiple of: 8, 4, or less.
enum class Alignment : uint8_t { Whole, Half, Odd };

Alignment alignment_of(const cuda::NarrowSizes& n) {
  const int64_t lengths = n.inner | n.columns;
  if (lengths % product_alignment == 0) return Alignment::Whole;
  return lengths % 4 == 0 && n.narrow() >= product_alignment ? Alignment::Half : Alignment::Odd;
}

// One column is a product of a matrix with a vector.
bool is_of_vector(const cuda::NarrowSizes& n) { return n.narrow() == 1 && n.wide() % product_alignment == 0; }

bool is_priced_here(const cuda::NarrowSizes& n, DType dtype, const DeviceDescription& device) {
  return n.is_narrow() && n.rows >= least_rows && device.memory_gb_per_s > 0 &&
         (dtype == DType::F32 || (is_16_bit_float(dtype) && alignment_of(n) != Alignment::Whole));
}

}  // namespace

cuda::NarrowSizes narrow_sizes(const Type& x, const Type& y) {
  return {
      .rows = rows_of(x), .inner = x.shape.back(), .columns = y.shape.back(), .element_bytes = dtype_bytes(x.dtype)};
}

bool is_narrow_linear(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Type &x = call["x"], &y = results[0];
  const cuda::NarrowSizes n = narrow_sizes(x, y);
  return computes_in_f32(x.dtype) && y.dtype == x.dtype && n.rows >= least_rows && n.has_product();
}

bool is_narrow_gradient(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Type& x = call["x"];
  const cuda::NarrowSizes n = narrow_sizes(x, call["dy"]);
  const auto is_result = [&](const Type& type) { return type.dtype == DType::F32 || type.dtype == x.dtype; };
  return computes_in_f32(x.dtype) && !call.attrs.has("columns") && n.rows >= least_rows && n.is_narrow() &&
         llvm::all_of(results, is_result);
}

int64_t narrow_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return narrow_sizes(call["x"], call["dy"]).gradient_workspace() * static_cast<int64_t>(sizeof(float));
}

double narrow_linear_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const cuda::NarrowSizes n = narrow_sizes(call["x"], results[0]);
  constexpr double added_of_copy = 0.7;
  const auto added = static_cast<double>(call.has("addend") ? results[0].bytes() : 0);
  return narrow_us(n, n.sums_rows() ? gather_ps : spread_ps, device) + of_copy_us(added, added_of_copy, device);
}

// The sums of the blocks are added in a launch of its own.
double narrow_gradient_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  return narrow_us(narrow_sizes(call["x"], call["dy"]), gradient_ps, device) + device.kernel_us;
}

// The library's tiles have 128 rows, whose other sides are mostly empty here: each takes its time whatever it holds.
double library_narrow_linear_us(const OpCall& call, const DeviceDescription& device) {
  const Type& x = call["x"];
  const cuda::NarrowSizes n = narrow_sizes(x, llvm::cantFail(infer(call))[0]);
  if (!is_priced_here(n, x.dtype, device)) return 0;
  constexpr double of_copy = 0.85, half_aligned = 0.7;
  const double bytes_us = of_copy_us(moved_bytes_of(n), of_copy, device) + device.launch_us + device.kernel_us;
  if (is_of_vector(n)) return bytes_us;
  const bool is_wide = x.dtype == DType::F32;
  const auto tiles = static_cast<double>(divide_up(n.rows, 128) * divide_up(n.columns, is_wide ? 32 : 64));
  const auto steps = static_cast<double>(divide_up(n.inner, 32));
  double tile_us = is_wide ? std::max(0.75, n.inner > 32 ? 1.2 * steps : 0) : std::max(1.65, 0.95 * steps);
  if (!is_wide && alignment_of(n) == Alignment::Half) tile_us *= half_aligned;
  return std::max(tiles * tile_us / std::max(device.multiprocessors, 1), bytes_us);
}

double library_narrow_gradient_us(const OpCall& call, const DeviceDescription& device) {
  const Type& x = call["x"];
  const cuda::NarrowSizes n = narrow_sizes(x, call["dy"]);
  if (call.attrs.has("columns") || !is_priced_here(n, x.dtype, device)) return 0;
  // Picoseconds of a row, for each 64 elements of the wide side.
  struct RowTimes {
    double odd, half_odd, wide;  // of 16 bits with rows at odd addresses or at borders of 8 bytes, and of f32
  };
  constexpr RowTimes few{66, 29, 88}, others{86, 54, 430};
  constexpr double of_copy = 0.75;
  const double bytes_us = of_copy_us(moved_bytes_of(n), of_copy, device);
  if (is_of_vector(n)) return bytes_us + device.launch_us + device.kernel_us;
  const RowTimes& times = n.wide() <= product_alignment ? few : others;
  const bool is_half = (n.inner | n.columns) % 4 == 0;
  const double row_ps = x.dtype == DType::F32 ? times.wide : is_half ? times.half_odd : times.odd;
  const double rows_us = static_cast<double>(n.rows * divide_up(n.wide(), 64)) * row_ps * 1e-6;
  return std::max(by_multiprocessors(rows_us, device), bytes_us) + device.launch_us + device.kernel_us;
}

}  // namespace plimsoll
