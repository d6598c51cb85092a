// Counts what a session allocates on the card and as pinned memory: cuda_allocations [MODEL.onnx DATA].
//
// Every copy of the CUDA runtime, the backend's own and those inside cuBLASLt and cuDNN, asks the driver for its
// functions by name, through dlsym. In this program dlsym is ours and hands out, for functions that allocate, ones that
// count.

#include "frontend/api/job.h"
#include "passes/budget/budget_report.h"
#include "runtime/cuda/loader.h"

#include "llvm/Support/raw_ostream.h"

#include <dlfcn.h>
#include <array>
#include <atomic>
#include <cstring>

namespace {

std::atomic<int64_t> allocations{0};

// Pointers and sizes alone, all of which travel in the same registers; no function here takes more than six.
using Word = uintptr_t;
using DriverCall = int (*)(Word, Word, Word, Word, Word, Word);

constexpr std::array<const char*, 11> allocating = {"cuMemAlloc",      "cuMemAllocPitch",         "cuMemAllocManaged",
                                                    "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemCreate",
                                                    "cuMemAllocHost",  "cuMemHostAlloc",          "cuMemHostRegister",
                                                    "cuArrayCreate",   "cuArray3DCreate"};
std::array<DriverCall, allocating.size()> driver_calls{};

template <size_t i>
int counted(Word a, Word b, Word c, Word d, Word e, Word f) {
  ++allocations;
  return driver_calls[i](a, b, c, d, e, f);
}

template <size_t... i>
constexpr std::array<DriverCall, sizeof...(i)> all_counted(std::index_sequence<i...>) {
  return {counted<i>...};
}

// What to hand out for the driver's function of that name.
void* counting(const char* name, void* function) {
  static constexpr auto counters = all_counted(std::make_index_sequence<allocating.size()>());
  for (size_t i = 0; i < allocating.size(); ++i) {
    if (std::strcmp(name, allocating[i]) != 0 || !function) continue;
    driver_calls[i] = reinterpret_cast<DriverCall>(function);
    return reinterpret_cast<void*>(counters[i]);
  }
  return function;
}

using GetProcAddress = int (*)(const char*, void**, int, uint64_t, void*);
GetProcAddress real_get_proc_address = nullptr;

int get_proc_address(const char* name, void** function, int version, uint64_t flags, void* found) {
  const int status = real_get_proc_address(name, function, version, flags, found);
  if (status != 0 || !function) return status;
  // The runtime asks for this function too, by its newest version, and goes on with that.
  if (std::strcmp(name, "cuGetProcAddress") == 0 && *function) {
    real_get_proc_address = reinterpret_cast<GetProcAddress>(*function);
    *function = reinterpret_cast<void*>(&get_proc_address);
  }
  *function = counting(name, *function);
  return status;
}

}  // namespace

extern "C" void* dlsym(void* library, const char* name) noexcept {
  using Dlsym = void* (*)(void*, const char*);
  static const auto real = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  void* function = real(library, name);
  if (std::strcmp(name, "cuGetProcAddress_v2") != 0 || !function) return function;
  real_get_proc_address = reinterpret_cast<GetProcAddress>(function);
  return reinterpret_cast<void*>(&get_proc_address);
}

namespace plimsoll {
namespace {

constexpr int steps = 6;

// Accumulates and clips, so that both functions of a program run; 16 bits, so that all libraries have work.
Result<std::unique_ptr<Session>> start(const std::string& model) {
  CompileRequest request;
  request.model_path = model;
  request.device = "auto";
  request.import.dims["batch"] = 8;
  request.training.precision = "bf16";
  request.training.accumulate = 2;
  request.training.clip_grad_norm = 1;
  Result<Job> job = Job::open(request);
  if (!job) return job.takeError();
  Result<Plan> plan = fitting_plan(job->compile());
  if (!plan) return plan.takeError();
  Result<Weights> weights = open_weights(model);
  if (!weights) return weights.takeError();
  Result<std::unique_ptr<Session>> session = Session::create(std::move(*plan), {});
  if (!session) return session.takeError();
  if (Status s = (*session)->initialise(weights->load, 1, weights->load_range)) return s;
  return session;
}

Result<int64_t> count_allocations(const std::string& model, const std::string& data) {
  Result<std::unique_ptr<Session>> session = start(model);
  if (!session) return session.takeError();
  if (allocations == 0) return system_error("the counter does not see the allocation of the arena");
  const int64_t to_start = allocations;
  Result<std::unique_ptr<BatchSource>> batches = open_data(data, (*session)->inputs(), {});
  if (!batches) return batches.takeError();
  for (int step = 0; step < steps; ++step)
    if (Result<StepMetrics> metrics = (*session)->step(**batches); !metrics) return metrics.takeError();
  llvm::outs() << to_start << " allocations to start, " << allocations - to_start << " in " << steps << " steps\n";
  return allocations - to_start;
}

}  // namespace
}  // namespace plimsoll

int main(int argc, char** argv) {
  using namespace plimsoll;
  if (Result<std::unique_ptr<CudaBackend>> backend = load_cuda_backend(); !backend) {
    llvm::outs() << "skipped: " << take_diag(backend.takeError()).text() << "\n";
    return 77;
  }
  const std::string folder = "examples/quickstart/";
  Result<int64_t> counted = argc == 3 ? count_allocations(argv[1], argv[2])
                                      : count_allocations(folder + "small_gpt.onnx", folder + "tokens.bin");
  if (counted) return *counted == 0 ? 0 : 1;
  llvm::errs() << take_diag(counted.takeError()).text() << "\n";
  return 1;
}
