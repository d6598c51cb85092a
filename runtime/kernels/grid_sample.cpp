#include "runtime/kernels/grid_sample.h"

#include "kernels/cuda/resize/grid_sample_sizes.h"

#include <limits>

namespace plimsoll {
namespace {

const Shape& image_of(const OpCall& call, llvm::ArrayRef<Type> results) {
  return &call.op == &op_grid_sample_dx ? results[0].shape : call["x"].shape;
}

// Sizes of a call, and how its kernels divide it.
struct Samples {
  int64_t images, pixels, cells, of_image;
  double samples;    // of all images
  double run, runs;  // elements of a run of channels; runs of a sample
  double lanes;      // that share a sample, and how often they do so
  double image_bytes, grid_bytes;

  Samples(const OpCall& call, llvm::ArrayRef<Type> results) {
    const Shape &image = image_of(call, results), &grid = call["grid"].shape;
    const int64_t bytes = dtype_bytes((&call.op == &op_grid_sample ? results[0] : call["dy"]).dtype);
    const int64_t whole = 16 / bytes, elements = image[3] % whole == 0 ? whole : image[3] % 2 == 0 ? 2 : 1;
    images = image[0];
    pixels = image[1] * image[2];
    cells = cuda::grid_cells(image[1], image[2]);
    of_image = grid[1] * grid[2];
    samples = static_cast<double>(images * of_image);
    run = static_cast<double>(elements);
    runs = static_cast<double>(image[3] / elements);
    const int64_t team = teams().team;
    lanes = static_cast<double>(team * divide_up(image[3] / elements, team));
    image_bytes = static_cast<double>(element_count(image) * bytes);
    grid_bytes = static_cast<double>(call["grid"].bytes());
  }
  cuda::PixelTeams teams() const { return {static_cast<int64_t>(runs), pixels, of_image}; }
};

double image_us(const Samples& s, const DeviceDescription& device) {
  return s.image_bytes / (device.memory_gb_per_s * 1e3);
}
double grid_us(const Samples& s, const DeviceDescription& device) {
  return s.grid_bytes / (device.memory_gb_per_s * 1e3);
}

constexpr double us_per_ps = 1e-6;

// Finding the order of the samples by their cells.
double ordered_us(const Samples& s) {
  const cuda::SampleBands split(s.images, s.cells);
  const auto of_image = static_cast<double>(s.of_image), blocks = static_cast<double>(s.images * split.bands);
  // Blocks that run at once wait for their own samples alone.
  if (split.threads == 512) return 5 + us_per_ps * (900 * of_image + 6 * s.samples);
  return 4 + us_per_ps * (1.3 * blocks * of_image + 45 * s.samples);
}

}  // namespace

// Samples and cells of an image are numbered in 31 bits.
bool accepts_grid_samples(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  const Shape &image = image_of(call, results), &grid = call["grid"].shape;
  return all_tensors(call, results, [](const Type& type) { return computes_in_f32(type.dtype); }) &&
         cuda::grid_cells(image[1], image[2]) < most && grid[1] * grid[2] <= most && image[3] <= most;
}

int64_t grid_sample_dx_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const Shape &image = results[0].shape, &grid = call["grid"].shape;
  return cuda::GridSampleWorkspace(image[0], image[1], image[2], grid[1] * grid[2]).bytes;
}

// A sample's 2 x 2 pixels come from the caches, and mixing them takes longer than all that memory moves.
double grid_sample_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  const Samples s(call, llvm::cantFail(infer(call)));
  const double run_ps = 7.2 + 0.5 * s.run;
  return us_per_ps * run_ps * s.samples * s.runs + image_us(s, device) + grid_us(s, device) + device.launch_us +
         device.kernel_us;
}

double grid_sample_dgrid_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  const Samples s(call, llvm::cantFail(infer(call)));
  const double run_ps = 8.8 + 0.7 * s.run;
  return us_per_ps * run_ps * s.samples * s.lanes + image_us(s, device) + 2 * grid_us(s, device) + device.launch_us +
         device.kernel_us;
}

double grid_sample_dx_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  const Samples s(call, llvm::cantFail(infer(call)));
  const double cell_ps = 3.5, entry_ps = 2.2 + 0.18 * s.run, pixel_ps = 8;
  const double pixel_lanes = static_cast<double>(s.images * s.pixels) * s.lanes * s.teams().splits;
  return us_per_ps * (cell_ps * s.samples + 4 * entry_ps * s.samples * s.lanes + pixel_ps * pixel_lanes) +
         ordered_us(s) + 3 * device.launch_us + 2 * device.kernel_us;
}

}  // namespace plimsoll
