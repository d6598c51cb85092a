#pragma once

// Where the program and libplimsoll_cuda.so meet. The library has its own copy of the folders it uses, so only plain
// data, and failures taken apart, cross here; both sides come from one build.

#include "ir/plan/plan.h"
#include "runtime/data/image_decoder.h"
#include "runtime/executor.h"

#include <array>
#include <memory>

namespace plimsoll {

struct CudaOutcome {
  bool failed = false;
  Fault fault = Fault::System;
  std::string message;

  CudaOutcome() = default;
  CudaOutcome(Status status) {
    if (!status) return;
    const Diag diag = take_diag(std::move(status));
    failed = true;
    fault = diag.fault();
    message = diag.text();
  }
};

inline Status to_status(CudaOutcome outcome) {
  if (!outcome.failed) return Status::success();
  return llvm::make_error<Diag>(outcome.fault, std::move(outcome.message));
}

// The results of `devices --measure` about the card in this machine.
struct CudaCard {
  std::string name;
  int64_t memory_bytes = 0;
  int compute_major = 0, compute_minor = 0, multiprocessors = 0;
  double copy_gb_per_s = 0;                                                 // device to device, read plus written
  double to_host_gb_per_s = 0, from_host_gb_per_s = 0;                      // pinned memory, one way at a time
  double to_host_both_ways_gb_per_s = 0, from_host_both_ways_gb_per_s = 0;  // while both are at work
  double launch_us = 0;                                                     // from one kernel of a graph to the next
  std::vector<std::pair<DType, double>> matmul_tflops;                      // 8192^3, random data
  std::vector<Reserve> reserves;                                            // what the process holds beside arenas
};

// Under this name the ranks of a job find each other.
using CudaRanksId = std::array<char, 128>;

// The ranks that differ along one axis of the mesh.
struct CudaGroup {
  int rank = 0, ranks = 1;
  bool shares_arenas = false;  // the ranks are of one host and run one plan
  CudaRanksId id{};
};

struct CudaRanks {
  int rank = 0, ranks = 1;
  int card = 0;  // of this host
  std::array<CudaGroup, mesh_axis_count> groups;
};

// Decodes JPEGs beside whatever runs on the card, as ImageDecoder says; after its making it takes no more memory.
class CudaJpegDecoder {
 public:
  virtual ~CudaJpegDecoder() = default;
  virtual CudaOutcome decode(ImageSize shown, llvm::MutableArrayRef<JpegJob> jobs) = 0;
};

class CudaBackend {
 public:
  virtual ~CudaBackend() = default;

  // One rank asks for it and tells the others.
  virtual CudaOutcome make_ranks_id(CudaRanksId& id) = 0;
  // Card, libraries, ranks, arenas, kernels, graphs. The plan must outlive the backend.
  virtual CudaOutcome prepare(const Plan& plan, const ExecutorOptions& options, const CudaRanks& ranks) = 0;

  // Copy a whole slot; both wait for what was started.
  virtual CudaOutcome upload(SlotId slot, const void* from) = 0;
  virtual CudaOutcome download(SlotId slot, void* to) = 0;
  // Of host memory that slots are copied to.
  virtual CudaOutcome pin(void* at, int64_t bytes) = 0;
  virtual void unpin(void* at) = 0;
  virtual CudaOutcome clear(SlotId slot) = 0;
  // Writes a slot of one element between what was started and what will be.
  virtual CudaOutcome set_scalar(SlotId slot, double value) = 0;

  // Pinned memory for the inputs of the function's next start, which without it takes those of the start before.
  virtual CudaOutcome next_inputs(size_t function, llvm::ArrayRef<TensorView>& inputs) = 0;
  // Runs of a function are counted from 0 by the caller.
  virtual CudaOutcome start(size_t function, int64_t run) = 0;
  // One instruction after the other, each waited for: begins with the inputs, ends with the outputs.
  virtual CudaOutcome start_slowly(size_t function) = 0;
  virtual CudaOutcome run_instruction(size_t function, int32_t instruction) = 0;
  virtual CudaOutcome finish_slowly(size_t function, int64_t run) = 0;
  virtual CudaOutcome outputs(size_t function, int64_t run, llvm::ArrayRef<double>& values) = 0;
  // Runs the function once more, an instruction or with `in_step` a launch of a step at a time.
  virtual CudaOutcome measure(size_t function, bool in_step, std::vector<double>& microseconds) = 0;
  virtual CudaOutcome memory_use(MemoryUse& use) = 0;
  // Ends kernels that wait for other ranks, by any thread.
  virtual void interrupt() = 0;

  // Needs no prepare(), and may outlive the backend. Fails where nvJPEG or memory is missing.
  virtual CudaOutcome make_jpeg_decoder(int card, std::unique_ptr<CudaJpegDecoder>& decoder) = 0;

  // The first card of this machine; neither needs prepare(). Measuring takes seconds and a few GiB.
  virtual CudaOutcome identify_card(CudaCard& card) = 0;
  virtual CudaOutcome measure_card(CudaCard& card) = 0;
  // What the copies of a card of this host move, both directions added up; those of other ranks run at the same time.
  virtual CudaOutcome measure_host_copies(int card, double& gb_per_s) = 0;

  // That card in cuDNN's own words.
  virtual CudaOutcome describe_card_to_cudnn(std::string& description) = 0;
  // Bytes that cuDNN takes of the workspace of each instruction of the plan's first function, on a card of that
  // description, which need not be here. An instruction that it cannot run within its workspace is an error, and so is
  // one that is not cuDNN's.
  virtual CudaOutcome cudnn_workspaces(const Plan& plan, llvm::StringRef description, std::vector<int64_t>& bytes) = 0;
};

// The one symbol of the library, found by this name.
inline constexpr const char* cuda_backend_symbol = "plimsoll_cuda_backend";
using CudaBackendFn = CudaBackend* (*)();

}  // namespace plimsoll
