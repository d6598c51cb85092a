#include "runtime/cuda/backend/card.h"

#include "runtime/cuda/backend/device_memory.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/cuda/backend/libraries.h"
#include "runtime/cuda/backend/process_memory.h"

#include <algorithm>
#include <random>

namespace plimsoll {
namespace {

constexpr int64_t matmul_size = 8192;
constexpr int repeats = 11;
// Runs of 28 models and 18 of their plans within budgets held at most 12.5 MiB beside context and graphs on Hopper, and
// 21 more where they called cuDNN. Elsewhere the two were not told apart.
constexpr int64_t product_bytes = int64_t{16} << 20, cudnn_bytes = int64_t{24} << 20;
constexpr int64_t library_bytes = int64_t{48} << 20;
constexpr int hopper = 9;

// Median milliseconds of `work` on `stream`, after three runs that do not count.
Result<double> median_ms(cudaStream_t stream, llvm::function_ref<Status()> work) {
  CudaEvent begin, end;
  if (Status s = begin.create(true)) return s;
  if (Status s = end.create(true)) return s;
  std::vector<float> times;
  for (int i = -3; i < repeats; ++i) {
    cudaEventRecord(begin, stream);
    if (Status s = work()) return s;
    cudaEventRecord(end, stream);
    if (Status s = cuda_status(cudaEventSynchronize(end), "measuring")) return s;
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i >= 0) times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[repeats / 2];
}

Result<double> copy_rate(cudaStream_t stream, void* to, const void* from, int64_t bytes, int64_t moved) {
  Result<double> ms = median_ms(stream, [&] {
    return cuda_status(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream), "copy");
  });
  if (!ms) return ms.takeError();
  return static_cast<double>(moved) / *ms / 1e6;
}

Status measure_copies(CudaCard& card, cudaStream_t stream) {
  constexpr int64_t bytes = int64_t{1} << 30, host_bytes = int64_t{256} << 20;
  Result<CudaMemory> a = CudaMemory::on_device(bytes, "copy"), b = CudaMemory::on_device(bytes, "copy");
  if (!a || !b) return llvm::joinErrors(a.takeError(), b.takeError());
  Result<CudaMemory> host = CudaMemory::pinned(host_bytes, "copy");
  if (!host) return host.takeError();
  struct {
    double& rate;
    void* to;
    const void* from;
    int64_t bytes, moved;
  } copies[] = {{card.copy_gb_per_s, a->data(), b->data(), bytes, 2 * bytes},
                {card.to_host_gb_per_s, host->data(), a->data(), host_bytes, host_bytes},
                {card.from_host_gb_per_s, a->data(), host->data(), host_bytes, host_bytes}};
  for (auto& copy : copies) {
    Result<double> rate = copy_rate(stream, copy.to, copy.from, copy.bytes, copy.moved);
    if (!rate) return rate.takeError();
    copy.rate = *rate;
  }
  return Status::success();
}

// One direction of copies between the memories, on a stream of its own.
struct Way {
  CudaMemory to, from;
  CudaStream stream;
  CudaEvent end;
  std::vector<float> ms;

  Status copy(int64_t bytes, int times) {
    for (int i = 0; i < times; ++i)
      if (Status s = cuda_status(
              cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(bytes), cudaMemcpyDefault, stream), "copy"))
        return s;
    return cuda_status(cudaEventRecord(end, stream), "copy");
  }
};

// The rate of one direction while the other is at work. It took `ms` and the other `other_ms`; in what time remains
// after the other has ended it copied alone.
double beside_gb_per_s(double moved_gb, double ms, double other_ms, double alone_gb_per_s) {
  const double alone_ms = std::max(ms - other_ms, 0.0);
  return std::min((moved_gb - alone_gb_per_s * alone_ms * 1e-3) / (ms - alone_ms) * 1e3, alone_gb_per_s);
}

struct BothWays {
  double moved_gb = 0;  // each way
  double to_host_ms = 0, from_host_ms = 0;
};

// Both directions start together and move the same bytes.
Result<BothWays> time_both_ways() {
  constexpr int64_t bytes = int64_t{256} << 20;
  constexpr int copies = 16, rounds = 5;
  Way ways[2];
  for (Way& way : ways) {
    Result<CudaMemory> on_card = CudaMemory::on_device(bytes, "copy"), host = CudaMemory::pinned(bytes, "copy");
    if (!on_card || !host) return llvm::joinErrors(on_card.takeError(), host.takeError());
    const bool to_host = &way == ways;
    way.to = std::move(to_host ? *host : *on_card);
    way.from = std::move(to_host ? *on_card : *host);
    if (Status s = way.stream.create()) return s;
    if (Status s = way.end.create(true)) return s;
  }
  CudaEvent begin;
  if (Status s = begin.create(true)) return s;
  for (int round = -1; round < rounds; ++round) {
    if (Status s = cuda_status(cudaEventRecord(begin, ways[0].stream), "copy")) return s;
    if (Status s = cuda_status(cudaStreamWaitEvent(ways[1].stream, begin, 0), "copy")) return s;
    for (Way& way : ways)
      if (Status s = way.copy(bytes, copies)) return s;
    for (Way& way : ways) {
      if (Status s = cuda_status(cudaEventSynchronize(way.end), "measuring")) return s;
      float ms = 0;
      if (Status s = cuda_status(cudaEventElapsedTime(&ms, begin, way.end), "measuring")) return s;
      if (round >= 0) way.ms.push_back(ms);
    }
  }
  for (Way& way : ways) std::nth_element(way.ms.begin(), way.ms.begin() + rounds / 2, way.ms.end());
  return BothWays{1e-9 * bytes * copies, ways[0].ms[rounds / 2], ways[1].ms[rounds / 2]};
}

Status measure_both_ways(CudaCard& card) {
  Result<BothWays> both = time_both_ways();
  if (!both) return both.takeError();
  card.to_host_both_ways_gb_per_s =
      beside_gb_per_s(both->moved_gb, both->to_host_ms, both->from_host_ms, card.to_host_gb_per_s);
  card.from_host_both_ways_gb_per_s =
      beside_gb_per_s(both->moved_gb, both->from_host_ms, both->to_host_ms, card.from_host_gb_per_s);
  return Status::success();
}

// Zeros flatter the matrix units, so operands are random.
Status fill_random(const CudaMemory& memory, DType dtype) {
  std::vector<std::byte> block(int64_t{1} << 20);
  Type type(dtype, {static_cast<int64_t>(block.size()) / dtype_bytes(dtype)});
  TensorView view{type, block.data()};
  std::mt19937 engine(1);
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < view.elements(); ++i) view.set(i, normal(engine));
  for (int64_t at = 0; at < memory.bytes(); at += static_cast<int64_t>(block.size()))
    if (Status s = cuda_status(
            cudaMemcpy(memory.data() + at, block.data(),
                       static_cast<size_t>(std::min<int64_t>(block.size(), memory.bytes() - at)), cudaMemcpyDefault),
            "operands"))
      return s;
  return Status::success();
}

Result<double> matmul_tflops_of(CudaLibraries& libraries, cudaStream_t stream, DType dtype) {
  const bool is_f8 = dtype_bytes(dtype) == 1;  // which have a scale each, and one of which is f8e4m3
  const Shape square{matmul_size, matmul_size};
  const Type type(dtype, square), b_type(is_f8 ? DType::F8E4M3 : dtype, square),
      y_type(is_f8 ? DType::BF16 : dtype, square), scale_type(DType::F32, {});
  Result<CudaMemory> a = CudaMemory::on_device(type.bytes(), "matmul"),
                     b = CudaMemory::on_device(b_type.bytes(), "matmul"),
                     y = CudaMemory::on_device(y_type.bytes(), "matmul"),
                     w = CudaMemory::on_device(int64_t{32} << 20, "workspace"),
                     scale = CudaMemory::on_device(scale_type.bytes(), "scale");
  if (!a || !b || !y || !w || !scale)
    return llvm::joinErrors(llvm::joinErrors(a.takeError(), b.takeError()),
                            llvm::joinErrors(llvm::joinErrors(y.takeError(), w.takeError()), scale.takeError()));
  const float one = 1;
  if (Status s = fill_random(*a, dtype)) return s;
  if (Status s = fill_random(*b, b_type.dtype)) return s;
  if (Status s = cuda_status(cudaMemcpy(scale->data(), &one, sizeof one, cudaMemcpyDefault), "scale")) return s;
  const OpDef& op = is_f8 ? op_linear_f8 : op_matmul;
  const CudaLauncher& matmul = launcher_of(*find_cuda_kernel(op, "cublaslt")->candidate);
  const Attrs attrs = is_f8 ? Attrs{{"dtype", y_type.dtype}} : Attrs();
  const Type* types[] = {&type, &b_type, &scale_type, &scale_type};
  const size_t count = is_f8 ? 4 : 2;
  OpCall call(op, attrs, {types, count});
  TensorView all[] = {{type, a->data()}, {b_type, b->data()}, {scale_type, scale->data()}, {scale_type, scale->data()}},
             results[] = {{y_type, y->data()}};
  const llvm::ArrayRef<TensorView> operands(all, count);
  CudaCall launch{{call, operands, results, w->data()}, w->bytes(), 0, nullptr, stream};
  Result<std::unique_ptr<CudaPrepared>> prepared = matmul.prepare(libraries, launch);
  if (!prepared) return prepared.takeError();
  launch.prepared = prepared->get();
  Result<double> ms = median_ms(stream, [&] { return matmul.launch(launch); });
  if (!ms) return ms.takeError();
  return 2.0 * matmul_size * matmul_size * matmul_size / *ms / 1e9;
}

// The time from one kernel of a graph to the next, measured on many small memsets in a row.
Result<double> launch_gap_us(cudaStream_t stream) {
  constexpr int kernels = 1000;
  Result<CudaMemory> memory = CudaMemory::on_device(4096, "launch gap");
  if (!memory) return memory.takeError();
  if (Status s = cuda_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture")) return s;
  for (int i = 0; i < kernels; ++i) cudaMemsetAsync(memory->data(), 0, 4096, stream);
  cudaGraph_t graph = nullptr;
  if (Status s = cuda_status(cudaStreamEndCapture(stream, &graph), "capture")) return s;
  cudaGraphExec_t runnable = nullptr;
  Status made = cuda_status(cudaGraphInstantiate(&runnable, graph, 0), "graph");
  cudaGraphDestroy(graph);
  if (made) return made;
  Result<double> ms = median_ms(stream, [&] { return cuda_status(cudaGraphLaunch(runnable, stream), "graph"); });
  cudaGraphExecDestroy(runnable);
  if (!ms) return ms.takeError();
  return *ms * 1e3 / kernels;
}

}  // namespace

Status identify_card(CudaCard& card) {
  if (Status s = cuda_status(cudaSetDevice(0), "card 0")) return s;
  cudaDeviceProp properties;
  if (Status s = cuda_status(cudaGetDeviceProperties(&properties, 0), "card 0")) return s;
  card.name = properties.name;
  card.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  card.compute_major = properties.major;
  card.compute_minor = properties.minor;
  card.multiprocessors = properties.multiProcessorCount;
  return Status::success();
}

Status measure_host_copies(int card, double& gb_per_s) {
  if (Status s = cuda_status(cudaSetDevice(card), "card " + std::to_string(card))) return s;
  Result<BothWays> both = time_both_ways();
  if (!both) return both.takeError();
  gb_per_s = both->moved_gb * 1e3 * (1 / both->to_host_ms + 1 / both->from_host_ms);
  return Status::success();
}

Status measure_card(CudaCard& card) {
  ProcessMemory memory(0);
  if (Status s = identify_card(card)) return s;
  CudaLibraries libraries;
  CudaStream stream;
  std::string source;
  if (Status s = stream.create()) return s;
  const int64_t context = memory.bytes(source);
  if (Status s = libraries.create(false)) return s;
  const int64_t without_cudnn = memory.bytes(source);
  if (Result<CudnnCard> cudnn = libraries.cudnn(); !cudnn) return cudnn.takeError();
  const int64_t cudnn = memory.bytes(source) - without_cudnn;
  if (Status s = measure_copies(card, stream)) return s;
  if (Status s = measure_both_ways(card)) return s;
  llvm::SmallVector<DType, 5> dtypes{DType::F32, DType::BF16, DType::F16};
  if (10 * card.compute_major + card.compute_minor >= 89) dtypes.append({DType::F8E4M3, DType::F8E5M2});
  for (DType dtype : dtypes) {
    Result<double> rate = matmul_tflops_of(libraries, stream, dtype);
    if (!rate) return rate.takeError();
    card.matmul_tflops.push_back({dtype, *rate});
  }
  Result<double> gap = launch_gap_us(stream);
  if (!gap) return gap.takeError();
  card.launch_us = *gap;
  const int64_t all = memory.bytes(source);  // the copies' and matmuls' memory is given back by now
  card.reserves = {{"CUDA context", context, ""}};
  if (card.compute_major == hopper) {
    card.reserves.push_back({"cuBLASLt and kernels", std::max(all - context - cudnn, product_bytes), ""});
    card.reserves.push_back({"cuDNN", std::max(cudnn, cudnn_bytes), "cudnn"});
  } else {
    card.reserves.push_back({"cuBLASLt, cuDNN and kernels", std::max(all - context, library_bytes), ""});
  }
  return Status::success();
}

}  // namespace plimsoll
