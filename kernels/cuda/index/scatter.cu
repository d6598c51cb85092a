#include "kernels/cuda/index/index.cuh"
#include "kernels/cuda/index/index_workspace.h"
#include "kernels/cuda/index/sort.cuh"

// Serves scatter_elements and scatter_nd. Updates are read once and their destinations written once beside the sort.
// Writing and combining at indices: updates are sorted by destination, and the thread of a destination's first update
// applies them all in their order. Floats combine in double and round once.

namespace plimsoll::cuda {
namespace {

// A key is a destination in runs of `run` elements.
template <typename Places>
__global__ void destinations_kernel(SortArrays arrays, const __grid_constant__ Places places, Divider run, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= n) return;
  int64_t at = places(i);
  arrays.keys[i] = static_cast<uint32_t>(run.divide(at));
  arrays.positions[i] = static_cast<uint32_t>(i);
}

template <typename Value>
__device__ Value combine(Reduction reduction, Value old, Value update) {
  switch (reduction) {
    case Reduction::Add: return old + update;
    case Reduction::Mul: return old * update;
    case Reduction::Max: return old < update ? update : old;
    default: return update < old ? update : old;
  }
}

struct Updates {
  const uint32_t *keys, *positions;
  int64_t n, run;  // updates, elements of each
  Divider runs;
};

// Sorted update `entry` applies to its run of y if no earlier one does; a thread has one element of the run.
template <typename Value>
__global__ void combine_kernel(const __grid_constant__ Updates u, Reduction reduction, Scalar type, void* y,
                               const void* updates) {
  int64_t element = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (element >= u.n * u.run) return;
  const int64_t entry = u.runs.divide(element);
  const uint32_t key = u.keys[entry];
  if (entry > 0 && u.keys[entry - 1] == key) return;
  const int64_t at = key * u.run + element;
  Value value = load_any<Value>({y, type}, at);
  for (int64_t next = entry; next < u.n && u.keys[next] == key; ++next)
    value = combine(reduction, value, load_any<Value>({updates, type}, u.positions[next] * u.run + element));
  store_any(y, type, at, value);
}

// The last of the updates of one destination stays.
template <typename T>
__global__ void write_kernel(const __grid_constant__ Updates u, T* y, const T* updates) {
  int64_t element = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (element >= u.n * u.run) return;
  const int64_t entry = u.runs.divide(element);
  const uint32_t key = u.keys[entry];
  if (entry + 1 < u.n && u.keys[entry + 1] == key) return;
  y[key * u.run + element] = updates[u.positions[entry] * u.run + element];
}

int bytes_of(Scalar type) {
  switch (type) {
    case Scalar::F64:
    case Scalar::I64:
    case Scalar::U64: return 8;
    case Scalar::F32:
    case Scalar::I32:
    case Scalar::U32: return 4;
    case Scalar::BF16:
    case Scalar::F16:
    case Scalar::I16:
    case Scalar::U16: return 2;
    default: return 1;
  }
}

template <typename Places>
cudaError_t scatter(Reduction reduction, const Places& places, int64_t n, int64_t run, Scalar type, void* y,
                    int64_t y_elements, const void* updates, void* workspace, cudaStream_t stream) {
  if (n * run == 0) return cudaSuccess;
  char* rest = static_cast<char*>(workspace);
  SortArrays arrays = take_sort_arrays(rest, n);
  destinations_kernel<<<blocks_for(n), block_threads, 0, stream>>>(arrays, places, Divider(run), n);
  if (const cudaError_t error = sort_pairs(arrays, n, y_elements / run, stream)) return error;
  const Updates sorted{arrays.keys, arrays.positions, n, run, Divider(run)};
  const unsigned blocks = blocks_for(n * run);
  if (reduction == Reduction::None)
    return with_element_bytes(bytes_of(type), [&]<typename T>(T*) {
      write_kernel<<<blocks, block_threads, 0, stream>>>(sorted, static_cast<T*>(y), static_cast<const T*>(updates));
    });
  if (is_float(type))
    combine_kernel<double><<<blocks, block_threads, 0, stream>>>(sorted, reduction, type, y, updates);
  else
    combine_kernel<int64_t><<<blocks, block_threads, 0, stream>>>(sorted, reduction, type, y, updates);
  return cudaGetLastError();
}

}  // namespace

cudaError_t scatter_elements(Reduction reduction, const ElementIndices& places, Scalar type, void* y,
                             int64_t y_elements, const void* updates, void* workspace, cudaStream_t stream) {
  const int64_t n = places.nest.iterations();
  if (n == 0) return cudaSuccess;
  return scatter(reduction, ElementPlaces(places), n, 1, type, y, y_elements, updates, workspace, stream);
}

cudaError_t scatter_tuples(Reduction reduction, const TupleIndices& places, Scalar type, void* y, int64_t y_elements,
                           const void* updates, void* workspace, cudaStream_t stream) {
  if (places.tuples * places.count == 0) return cudaSuccess;
  return scatter(reduction, TuplePlaces(places), places.tuples, places.count, type, y, y_elements, updates, workspace,
                 stream);
}

}  // namespace plimsoll::cuda
