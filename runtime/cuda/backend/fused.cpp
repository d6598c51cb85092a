#include "runtime/cuda/backend/fused.h"

#include "ir/fused_body.h"
#include "runtime/cuda/backend/device_memory.h"
#include "runtime/cuda/backend/driver.h"
#include "runtime/cuda/backend/libraries.h"

// Launches generated kernels through the driver.

namespace plimsoll {
namespace {

struct PreparedFused : CudaPrepared {
  std::vector<int64_t> starts;  // by operand: bytes in front of what is read
  CUfunction function = nullptr;
  unsigned blocks = 0, threads = 0;
  // Of the launch: pointers to results, operands and the workspace, and where random numbers begin.
  std::vector<void*> pointers;
  std::vector<void*> arguments;
  int64_t first_draw = 0;
  llvm::SmallVector<uint32_t, 4> streams;
  // Of the second kernel, where there is one; its arguments are among the pointers.
  CUfunction combine = nullptr;
  unsigned combining_blocks = 0;
  std::vector<void*> combine_arguments;
};

}  // namespace

Status GeneratedKernels::compile(llvm::ArrayRef<FusedSource> sources, int compute_capability) {
  std::vector<FusedSource> missing;
  for (const FusedSource& source : sources)
    if (!modules_.count(source.name)) {
      modules_[source.name] = nullptr;
      missing.push_back(source);
    }
  if (missing.empty()) return Status::success();
  if (!driver()) return system_error("libcuda.so.1 cannot be opened");
  Result<std::vector<KernelCode>> codes = compile_kernels(missing, compute_capability);
  if (!codes) return codes.takeError();
  for (const KernelCode& code : *codes) {
    CUmodule module = nullptr;
    if (Status s = driver_status(driver()->load(&module, code.cubin.data()), code.name)) return s;
    modules_[code.name] = module;
  }
  return Status::success();
}

Result<void*> GeneratedKernels::function(const std::string& name, const char* suffix) const {
  CUfunction function = nullptr;
  const auto module = modules_.find(name);
  const std::string own = name + suffix;
  if (Status s = driver_status(driver()->function(&function, static_cast<CUmodule>(module->second), own.c_str()), own))
    return s;
  return function;
}

GeneratedKernels::~GeneratedKernels() {
  for (const auto& [name, module] : modules_)
    if (module) driver()->unload(static_cast<CUmodule>(module));
}

Result<std::unique_ptr<CudaPrepared>> prepare_fused(CudaLibraries& libraries, const CudaCall& k) {
  const FusedSource source = fused_source(k.call, k.result_types());
  const cudaDeviceProp& card = libraries.card();
  if (Status s = libraries.generated().compile(source, 10 * card.major + card.minor)) return s;
  Result<void*> function = libraries.generated().function(source.name);
  if (!function) return function.takeError();
  auto prepared = std::make_unique<PreparedFused>();
  prepared->function = static_cast<CUfunction>(*function);
  prepared->blocks = static_cast<unsigned>(source.blocks), prepared->threads = static_cast<unsigned>(source.threads);
  const bool has_parts = source.combining_blocks > 0;
  prepared->pointers.resize(k.results.size() + k.operands.size() + has_parts);
  for (void*& pointer : prepared->pointers) prepared->arguments.push_back(&pointer);
  if (has_parts) {
    Result<void*> combine = libraries.generated().function(source.name, "_combine");
    if (!combine) return combine.takeError();
    prepared->combine = static_cast<CUfunction>(*combine);
    prepared->combining_blocks = static_cast<unsigned>(source.combining_blocks);
    for (size_t result : source.totals) prepared->combine_arguments.push_back(&prepared->pointers[result]);
    prepared->combine_arguments.push_back(&prepared->pointers.back());
  }
  for (size_t i = 0; i < k.operands.size(); ++i)
    prepared->starts.push_back(read_start(k.call, i) * dtype_bytes(k.call.operand(i).dtype));
  prepared->streams = source.streams;
  if (!source.streams.empty()) prepared->arguments.push_back(&prepared->first_draw);
  for (uint32_t& stream : prepared->streams) prepared->arguments.push_back(&stream);
  return prepared;
}

Status launch_fused(const CudaCall& k) {
  auto& prepared = *static_cast<PreparedFused*>(k.prepared);
  if (k.elements() == 0) return Status::success();
  size_t next = 0;
  for (const TensorView& result : k.results) prepared.pointers[next++] = result.data;
  for (size_t i = 0; i < k.operands.size(); ++i)
    prepared.pointers[next++] = static_cast<char*>(k.operands[i].data) + prepared.starts[i];
  if (prepared.combine) prepared.pointers.back() = k.workspace;
  prepared.first_draw = k.call.get_int("first_draw");
  const auto launch = [&](CUfunction function, unsigned blocks, unsigned threads, std::vector<void*>& arguments) {
    return driver_status(
        driver()->launch(function, blocks, 1, 1, threads, 1, 1, 0, k.stream, arguments.data(), nullptr), "fused");
  };
  if (Status s = launch(prepared.function, prepared.blocks, prepared.threads, prepared.arguments)) return s;
  if (!prepared.combine) return Status::success();
  return launch(prepared.combine, prepared.combining_blocks, combining_threads, prepared.combine_arguments);
}

}  // namespace plimsoll
