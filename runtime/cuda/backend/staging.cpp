#include "runtime/cuda/backend/staging.h"

#include "ir/support/align.h"
#include "runtime/executor.h"

namespace plimsoll {

Status InputStaging::create(const Plan& plan, size_t function, llvm::function_ref<void*(SlotId)> at) {
  const llvm::ArrayRef<PlanInput> planned = plan.functions[function].inputs;
  int64_t bytes = 0;
  llvm::SmallVector<int64_t, 4> offsets;
  for (const PlanInput& input : planned) {
    const Type& type = plan.slots[static_cast<size_t>(input.slot)].type;
    inputs_.push_back(
        {static_cast<size_t>(type.bytes()), input.staging < 0 ? nullptr : at(input.staging), at(input.slot)});
    offsets.push_back(bytes);
    bytes += align_to_tensor(type.bytes());
  }
  for (Buffer& buffer : buffers_) {
    Result<CudaMemory> memory = CudaMemory::pinned(bytes, "input staging");
    if (!memory) return memory.takeError();
    buffer.memory = std::move(*memory);
    for (size_t i = 0; i < inputs_.size(); ++i)
      buffer.views.push_back(
          {plan.slots[static_cast<size_t>(planned[i].slot)].type, buffer.memory.data() + offsets[i]});
    if (Status s = buffer.sent.create()) return s;
  }
  if (Status s = copies_.create()) return s;
  return staging_free_.create();
}

Status InputStaging::next(llvm::ArrayRef<TensorView>& views) {
  current_ = 1 - current_;
  views = buffers_[current_].views;
  return cuda_status(cudaEventSynchronize(buffers_[current_].sent), "input copy");
}

Status InputStaging::copy_from_host(const Input& input, const TensorView& from, void* to, cudaStream_t stream) const {
  return cuda_status(cudaMemcpyAsync(to, from.data, input.bytes, cudaMemcpyHostToDevice, stream), "input copy");
}

Status InputStaging::send(cudaStream_t compute) {
  Buffer& buffer = buffers_[current_];
  if (Status s = cuda_status(cudaStreamWaitEvent(copies_, staging_free_), "input copy")) return s;
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].staging)
      if (Status s = copy_from_host(inputs_[i], buffer.views[i], inputs_[i].staging, copies_)) return s;
  if (Status s = cuda_status(cudaEventRecord(buffer.sent, copies_), "input copy")) return s;
  if (Status s = cuda_status(cudaStreamWaitEvent(compute, buffer.sent), "input copy")) return s;
  return repeat(compute);
}

// The buffer is free again once the last copy from it is through; of inputs without staging that is one on `compute`.
Status InputStaging::repeat(cudaStream_t compute) {
  Buffer& buffer = buffers_[current_];
  bool reads_buffer = false;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Input& input = inputs_[i];
    reads_buffer |= !input.staging;
    Status copied =
        input.staging
            ? cuda_status(cudaMemcpyAsync(input.slot, input.staging, input.bytes, cudaMemcpyDeviceToDevice, compute),
                          "input copy")
            : copy_from_host(input, buffer.views[i], input.slot, compute);
    if (copied) return copied;
  }
  if (reads_buffer)
    if (Status s = cuda_status(cudaEventRecord(buffer.sent, compute), "input copy")) return s;
  return cuda_status(cudaEventRecord(staging_free_, compute), "input copy");
}

Status ScalarStaging::create() {
  Result<CudaMemory> memory = CudaMemory::pinned(rows * element_bytes, "scalars");
  if (!memory) return memory.takeError();
  memory_ = std::move(*memory);
  for (CudaEvent& event : sent_)
    if (Status s = event.create()) return s;
  return Status::success();
}

Status ScalarStaging::send(const TensorView& to, double value, cudaStream_t compute) {
  const size_t row = next_++ % rows;
  if (Status s = cuda_status(cudaEventSynchronize(sent_[row]), "scalar")) return s;
  const TensorView from{to.type, memory_.data() + row * element_bytes};
  from.set(0, value);
  if (Status s = cuda_status(
          cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.type.bytes()), cudaMemcpyDefault, compute),
          "scalar"))
    return s;
  return cuda_status(cudaEventRecord(sent_[row], compute), "scalar");
}

Status OutputRing::create(const Plan& plan, size_t function, llvm::function_ref<void*(SlotId)> at) {
  for (const PlanOutput& output : plan.functions[function].outputs) {
    const Type& type = plan.slots[static_cast<size_t>(output.slot)].type;
    outputs_.push_back({Type(type.dtype, {}), type.elements() > 0 ? at(output.slot) : nullptr});
  }
  values_.assign(outputs_.size(), 0.0);
  Result<CudaMemory> rows =
      CudaMemory::pinned(static_cast<int64_t>(outputs_.size()) * element_bytes * Executor::runs_kept, "outputs");
  if (!rows) return rows.takeError();
  rows_ = std::move(*rows);
  for (int64_t i = 0; i < Executor::runs_kept; ++i)
    if (Status s = done_.emplace_back().create()) return s;
  return Status::success();
}

Status OutputRing::record(int64_t run, cudaStream_t compute) {
  const int64_t row = run % Executor::runs_kept;
  std::byte* to = rows_.data() + row * static_cast<int64_t>(outputs_.size()) * element_bytes;
  for (const Output& output : outputs_) {
    if (output.from)
      if (Status s = cuda_status(cudaMemcpyAsync(to, output.from, static_cast<size_t>(output.type.bytes()),
                                                 cudaMemcpyDeviceToHost, compute),
                                 "outputs"))
        return s;
    to += element_bytes;
  }
  return cuda_status(cudaEventRecord(done_[static_cast<size_t>(row)], compute), "outputs");
}

Status OutputRing::wait(int64_t run, llvm::ArrayRef<double>& values) {
  const int64_t row = run % Executor::runs_kept;
  if (Status s = cuda_status(cudaEventSynchronize(done_[static_cast<size_t>(row)]), "outputs")) return s;
  std::byte* from = rows_.data() + row * static_cast<int64_t>(outputs_.size()) * element_bytes;
  for (size_t i = 0; i < outputs_.size(); ++i, from += element_bytes)
    values_[i] = outputs_[i].from ? TensorView{outputs_[i].type, from}.get(0) : 0;
  values = values_;
  return Status::success();
}

}  // namespace plimsoll
