#pragma once

// Runs a plan on the CPU: arenas are allocated once, every instruction works inside them.

#include "ir/plan/plan.h"

#include <functional>
#include <memory>

namespace plimsoll {

struct ExecutorOptions {
  int threads = 0;       // 0: as many as the machine has
  // Fills bytes with NaN patterns once nothing may read them again, and fresh results before they are written, so
  // that a plan which reads dead bytes cannot go unnoticed.
  bool poison = false;
};

class HostExecutor {
 public:
  virtual ~HostExecutor() = default;

  // Allocates the arenas, prepares kernels, writes the plan's constants. Errors when the machine lacks the memory or a kernel
  // is unknown here.
  static Result<std::unique_ptr<HostExecutor>> create(const Plan& plan, const ExecutorOptions& options);

  // Bytes of a slot; meaningful while the slot is alive.
  virtual TensorView view(SlotId slot) const = 0;

  // Called after the instruction of that index has run.
  using Observer = std::function<Status(int32_t instruction)>;
  // Runs a function once. Inputs must be in their slots. An observer costs a call an instruction.
  virtual Status run(size_t function, const Observer* observer = nullptr) = 0;

  // Microseconds each instruction of a function took in its last run, in order.
  virtual llvm::ArrayRef<double> last_times(size_t function) const = 0;
  // Outside the arenas: prepared kernels and their scratch.
  virtual int64_t prepared_bytes() const = 0;
};

}  // namespace plimsoll
