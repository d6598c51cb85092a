#pragma once

// A program on its way to a plan: what the planning steps read and leave behind.

#include "ir/machine/device.h"
#include "ir/machine/kernel_catalog.h"
#include "passes/analysis/buffer_assignment.h"
#include "passes/pass/pass_manager.h"

namespace plimsoll {

// Where a function's buffers of one memory lie.
struct BufferPlacement {
  std::vector<int64_t> offset;    // by buffer, above the persistent bytes or in a window; -1: it lies elsewhere
  int64_t height_bytes = 0;       // the largest end of any buffer
  int64_t lower_bound_bytes = 0;  // no placement of these lifetimes is lower
  int64_t peak_bytes = 0;         // largest sum of live bytes
  int32_t peak_instruction = 0;
  int32_t buffers = 0;
  std::string method;  // what placed the piece that decides the height
  // Where there are windows: the first one begins at windows_begin, the next behind it, and pages are counted from the
  // persistent bytes on.
  int64_t page_bytes = 0;
  std::vector<std::vector<int64_t>> windows;  // of each the pages that it shows

  // What the windows take outside the arena.
  int64_t windows_bytes(const DeviceDescription& device) const {
    return windows.empty() ? 0 : device.windows_reserve_bytes();
  }
};

struct FunctionDraft {
  std::vector<NodeId> writers;      // of the updates, in their order; filled in once updates are writable
  std::vector<NodeId> other_order;  // a second order of the nodes, with each update as early as it may run
  // A third order, for a plan that keeps everything: what frees memory comes early, and small updates and casts stand
  // side by side and share launches.
  std::vector<NodeId> joined_order;
  std::vector<NodeId> added;         // nodes that recompute values or copy them
  std::vector<CopyInFlight> copies;  // copies that run beside computing
  std::optional<BufferAssignment> buffers;
  std::optional<BufferPlacement> placement;  // in device memory
};

struct PlanDraft {
  Program program;
  DeviceDescription device;
  const KernelCatalog* catalog = nullptr;  // never null
  std::vector<FunctionDraft> functions;    // by function of the program

  PlanDraft(Program program, const DeviceDescription& device, const KernelCatalog& catalog)
      : program(std::move(program)), device(device), catalog(&catalog), functions(this->program.functions.size()) {}

  // Writers of the function's updates; makes the updates writable first where no step has.
  std::vector<NodeId>& writers(size_t function);
  // A step that changes a function's nodes drops what was laid out for it.
  void drop_layout(size_t function);
};

// Lets the pass manager run steps on a draft. Passes on graphs run on each function.
class PlanDraftSubject : public PassSubject {
 public:
  explicit PlanDraftSubject(PlanDraft& draft) : draft_(draft) {}

  Result<bool> run(const PassInfo& pass, PassContext& context) override;
  Status verify() const override;
  // The functions; once they are placed, results of transient buffers with their offsets: "%b = neg(%a) : f32[100] @
  // 512".
  std::string to_text() const override;
  void print(llvm::raw_ostream& out) const override { out << to_text(); }

 private:
  PlanDraft& draft_;
};

// Runs a pipeline on a draft, planning steps and passes on graphs alike.
Result<bool> run_steps(PassManager& passes, PlanDraft& draft, llvm::StringRef pipeline);

}  // namespace plimsoll
