#include "ir/support/strings.h"
#include "runtime/cpu/cpu_executor.h"
#include "runtime/cuda/backend_abi.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

// Stands in for libplimsoll_cuda.so where there is no GPU: it runs plans for one on the processor, each op by its
// reference. It says that the process holds what PLIMSOLL_STAND_IN_HELD_BYTES has, so that a test can break a promise.

namespace plimsoll {
namespace {

// Decodes every pixel before it scales, as nvJPEG does; leaves every eighth image undone.
class DecodingStandIn : public CudaJpegDecoder {
 public:
  CudaOutcome decode(ImageSize shown, llvm::MutableArrayRef<JpegJob> jobs) override {
    Image image;
    std::vector<float> row;
    for (size_t i = 0; i < jobs.size(); ++i) {
      JpegJob& job = jobs[i];
      if (job.bytes.empty() || i % 8 == 7) continue;
      const auto choose = [&](ImageSize) { return job.region; };
      if (Status s = decode_jpeg("image", job.bytes, {choose, shown, /*at_fraction=*/false}, image)) {
        llvm::consumeError(std::move(s));
        continue;
      }
      sample_image(image, image.region, shown, job.mirrored, row, job.planes);
      job.is_done = true;
    }
    return {};
  }
};

class StandIn : public CudaBackend {
 public:
  CudaOutcome prepare(const Plan& plan, const ExecutorOptions& options, const CudaRanks&) override {
    plan_ = plan;
    for (PlanFunction& function : plan_.functions)
      for (Instruction& instruction : function.instructions) instruction.kernel = "reference";
    Result<std::unique_ptr<Executor>> executor = create_cpu_executor(plan_, {.threads = options.threads});
    if (!executor) return executor.takeError();
    executor_ = std::move(*executor);
    return {};
  }

  CudaOutcome upload(SlotId slot, const void* from) override {
    return executor_->write(slot, [&](const TensorView& bytes) {
      std::memcpy(bytes.data, from, static_cast<size_t>(bytes.type.bytes()));
      return Status::success();
    });
  }
  CudaOutcome download(SlotId slot, void* to) override {
    return executor_->read(slot, [&](const TensorView& bytes) {
      std::memcpy(to, bytes.data, static_cast<size_t>(bytes.type.bytes()));
      return Status::success();
    });
  }
  CudaOutcome pin(void* at, int64_t bytes) override { return executor_->pin(at, bytes); }
  void unpin(void* at) override { executor_->unpin(at); }
  CudaOutcome clear(SlotId slot) override { return executor_->clear(slot); }
  CudaOutcome set_scalar(SlotId slot, double value) override { return executor_->set_scalar(slot, value); }

  CudaOutcome next_inputs(size_t function, llvm::ArrayRef<TensorView>& inputs) override {
    llvm::ArrayRef<TensorView> of_step;
    CudaOutcome outcome = given(executor_->next_inputs(function), of_step);
    Staged& staged = staged_[function];
    if (staged.tensors.empty())
      for (const TensorView& input : of_step) staged.views.push_back(staged.tensors.emplace_back(input.type).view());
    inputs = staged.views;
    return outcome;
  }
  CudaOutcome start(size_t function, int64_t) override {
    llvm::ArrayRef<TensorView> of_step;
    if (CudaOutcome outcome = given(executor_->next_inputs(function), of_step); outcome.failed) return outcome;
    const Staged& staged = staged_[function];
    for (size_t i = 0; i < staged.views.size(); ++i)
      std::memcpy(of_step[i].data, staged.views[i].data, static_cast<size_t>(of_step[i].type.bytes()));
    Result<int64_t> run = executor_->run(function);
    return run ? CudaOutcome() : run.takeError();
  }
  CudaOutcome outputs(size_t function, int64_t run, llvm::ArrayRef<double>& values) override {
    return given(executor_->outputs(function, run), values);
  }
  CudaOutcome measure(size_t function, bool, std::vector<double>& microseconds) override {
    llvm::ArrayRef<double> times;
    CudaOutcome outcome = given(executor_->times(function), times);
    microseconds = times.vec();
    return outcome;
  }
  CudaOutcome memory_use(MemoryUse& use) override {
    if (CudaOutcome outcome = given(executor_->memory_use(), use); outcome.failed) return outcome;
    use.source = "the stand-in";
    if (const char* held = std::getenv("PLIMSOLL_STAND_IN_HELD_BYTES")) use.process_bytes = std::atoll(held);
    return {};
  }
  void interrupt() override {}

  CudaOutcome make_jpeg_decoder(int, std::unique_ptr<CudaJpegDecoder>& decoder) override {
    if (std::getenv("PLIMSOLL_STAND_IN_LACKS_NVJPEG")) return lacks("nvJPEG");
    decoder = std::make_unique<DecodingStandIn>();
    return {};
  }

  CudaOutcome identify_card(CudaCard& card) override { return card.name = "NVIDIA H200", CudaOutcome(); }

  CudaOutcome make_ranks_id(CudaRanksId&) override { return lacks("several ranks"); }
  CudaOutcome start_slowly(size_t) override { return lacks("steps by instruction"); }
  CudaOutcome run_instruction(size_t, int32_t) override { return lacks("steps by instruction"); }
  CudaOutcome finish_slowly(size_t, int64_t) override { return lacks("steps by instruction"); }
  CudaOutcome measure_card(CudaCard&) override { return lacks("a card to measure"); }
  CudaOutcome measure_host_copies(int, double&) override { return lacks("a card to measure"); }
  CudaOutcome describe_card_to_cudnn(std::string&) override { return lacks("cuDNN"); }
  CudaOutcome cudnn_workspaces(const Plan&, llvm::StringRef, std::vector<int64_t>&) override { return lacks("cuDNN"); }

 private:
  static CudaOutcome lacks(llvm::StringRef what) { return system_error("the stand-in for a GPU has no " + what); }

  template <typename T>
  static CudaOutcome given(Result<T> result, T& to) {
    if (!result) return result.takeError();
    to = std::move(*result);
    return {};
  }

  // Inputs stay from step to step, as those of a card do.
  struct Staged {
    std::deque<Tensor> tensors;
    std::vector<TensorView> views;
  };

  Plan plan_;
  std::unique_ptr<Executor> executor_;
  std::map<size_t, Staged> staged_;  // by function
};

}  // namespace
}  // namespace plimsoll

extern "C" __attribute__((visibility("default"))) plimsoll::CudaBackend* plimsoll_cuda_backend() {
  return new plimsoll::StandIn;
}
