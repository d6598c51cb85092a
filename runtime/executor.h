#pragma once

// Runs a plan on the device it was made for: arenas are allocated once, every instruction works inside them.

#include "ir/plan/plan.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <functional>
#include <memory>

namespace plimsoll {

class Communicator;   // runtime/comm/communicator.h
struct RankProgress;  // runtime/comm/rank_watch.h

struct ExecutorOptions {
  int threads = 0;  // of the CPU; 0: as many as the machine has
  // Fills bytes with NaN patterns once nothing may read them again, and fresh results before they are written, so
  // that a plan which reads dead bytes cannot go unnoticed.
  bool poison = false;
  // On the CPU, a copy between memories is made only when it is waited for, and no longer as it starts: a plan that
  // touches bytes which are being copied computes something else. With `poison` that cannot go unnoticed.
  bool late_copies = false;
  // The ranks of a plan for several; null: one rank. It must outlive the executor.
  Communicator* ranks = nullptr;
  // Seconds without a sign of a rank, or of its progress, after which the job ends; 0: by the predicted step.
  double patience_s = 0;
  // Called once, on one rank, with why a lost rank has ended the job; failures of the others then have no words. Null:
  // every rank's failure says it.
  std::function<void(const std::string& failure)> tell;
  // Called where a lost rank has ended the job and this one is still stuck some seconds later; does not return.
  std::function<void()> give_up;
  // Of ranks on unlike GPUs: what this one's must be, looked at once, as the executor is created. Null: any card that
  // can run the plan will do.
  const DeviceDescription* card = nullptr;
  RankProgress* progress = nullptr;  // where the executor says what it is at; null: nobody asks
};

// Bytes that the job holds on its device.
struct MemoryUse {
  int64_t arena_bytes = 0;
  int64_t other_bytes = 0;    // outside the arenas: prepared kernels, handles, context
  int64_t process_bytes = 0;  // as the driver counts this process; 0 where nobody counts
  std::string source;         // who counted: "NVML", "device-wide difference"
};

class Executor {
 public:
  virtual ~Executor() = default;

  // Allocates the arenas, prepares kernels, writes the plan's constants. Errors when the machine lacks the device, the
  // memory or a kernel. The plan must outlive it.
  static Result<std::unique_ptr<Executor>> create(const Plan& plan, const ExecutorOptions& options);

  // Bytes of a slot as host memory, for the time of the call. Both wait for what was started. What `fill` leaves
  // unwritten is undefined.
  using Visit = llvm::function_ref<Status(const TensorView& bytes)>;
  virtual Status write(SlotId slot, Visit fill) = 0;
  virtual Status read(SlotId slot, Visit use) = 0;
  // Copies the bytes of a slot to host memory of its type, without a copy in between where the device allows it.
  virtual Status read_into(SlotId slot, const TensorView& to);
  // Keeps host memory in place, so that a device with memory of its own copies to it at the speed of its link; until
  // unpin(), which is called before the memory is given back.
  virtual Status pin(void* at, int64_t bytes);
  virtual void unpin(void* at);
  // Makes all bytes of a slot zero.
  virtual Status clear(SlotId slot) = 0;
  // Gives a slot of one element its value for the runs that are started from now on, and does not wait for those that
  // were started before.
  virtual Status set_scalar(SlotId slot, double value) = 0;

  // Host memory for the inputs of the function's next run, in their order; waits until it is free. Of a function whose
  // inputs are not staged it is filled while nothing else runs.
  virtual Result<llvm::ArrayRef<TensorView>> next_inputs(size_t function) = 0;
  // Does a run of the function for which next_inputs() was not called take the inputs of the run before?
  virtual bool keeps_inputs(size_t function) const { return false; }

  // Called after the instruction of that index has run.
  using Observer = std::function<Status(int32_t instruction)>;
  // Starts a function and gives the number of this run, counted from 0. With an observer it returns when the function
  // is done, after a call for each instruction.
  virtual Result<int64_t> run(size_t function, const Observer* observer = nullptr) = 0;

  // The first element of each output of a run, once it is done; kept for the last `runs_kept` runs of each function.
  static constexpr int64_t runs_kept = 16;
  virtual Result<llvm::ArrayRef<double>> outputs(size_t function, int64_t run) = 0;

  // Microseconds of each instruction of a function, in order: the least of its runs, or of one more made to measure.
  // `InStep` measures what one launch does together, and gives each of it a share by the bytes that it moves.
  enum class Launches : uint8_t { Single, InStep };
  virtual Result<llvm::ArrayRef<double>> times(size_t function, Launches launches = Launches::Single) = 0;

  // Does run() return before its work is done? Then it pays to start the next step before reading this one's outputs.
  virtual bool runs_ahead() const = 0;

  virtual Result<MemoryUse> memory_use() = 0;

  // Makes what waits for other ranks on the device end, by any thread. Whatever is computed from then on is undefined.
  virtual void interrupt() {}
};

}  // namespace plimsoll
