#include "runtime/executor.h"

#include "ir/support/parallel.h"
#include "runtime/cpu/cpu_executor.h"
#include "runtime/cuda/cuda_executor.h"

#include <algorithm>
#include <cstring>

namespace plimsoll {

Result<std::unique_ptr<Executor>> Executor::create(const Plan& plan, const ExecutorOptions& options) {
  if (plan.device.backend == "cpu") return create_cpu_executor(plan, options);
  if (plan.device.backend == "cuda") return create_cuda_executor(plan, options);
  return model_error("the plan is for the backend '" + plan.device.backend + "', this program knows cpu and cuda");
}

Status Executor::pin(void*, int64_t) { return Status::success(); }
void Executor::unpin(void*) {}

// One core copies less than the memory gives.
Status Executor::read_into(SlotId slot, const TensorView& to) {
  constexpr int64_t chunk_bytes = int64_t{4} << 20;
  return read(slot, [&](const TensorView& from) {
    const int64_t bytes = from.type.bytes();
    parallel_for(static_cast<size_t>((bytes + chunk_bytes - 1) / chunk_bytes), [&](size_t chunk) {
      const int64_t first = static_cast<int64_t>(chunk) * chunk_bytes;
      std::memcpy(to.as<char>() + first, from.as<char>() + first,
                  static_cast<size_t>(std::min(chunk_bytes, bytes - first)));
    });
    return Status::success();
  });
}

}  // namespace plimsoll
