#include "runtime/cuda/backend/cudnn_plans.h"

#include <bit>

namespace plimsoll {
namespace {

enum Kind : int64_t { Attention, AttentionGrad, Convolution };

// A list begins with its length, so that no two calls write the same key.
class KeyWriter {
 public:
  explicit KeyWriter(Kind kind) : key_{kind} {}

  KeyWriter& add(int64_t value) {
    key_.push_back(value);
    return *this;
  }
  KeyWriter& add(llvm::ArrayRef<int64_t> values) {
    add(static_cast<int64_t>(values.size()));
    key_.insert(key_.end(), values.begin(), values.end());
    return *this;
  }
  KeyWriter& add(const CudnnTensor& tensor) {
    return add(static_cast<int64_t>(tensor.dtype)).add(tensor.sizes).add(tensor.strides);
  }

  std::vector<int64_t> take() { return std::move(key_); }

 private:
  std::vector<int64_t> key_;
};

std::vector<int64_t> key_of(Kind kind, const CudnnAttention& a) {
  return KeyWriter(kind)
      .add(a.q)
      .add(a.k)
      .add(a.v)
      .add(a.y)
      .add(std::bit_cast<int64_t>(a.scale))
      .add(a.causal)
      .add(a.deterministic)
      .take();
}

std::vector<int64_t> key_of(const CudnnConvolution& c, int64_t max_workspace_bytes, int rank) {
  KeyWriter key(Convolution);
  key.add(static_cast<int64_t>(c.pass))
      .add(c.x)
      .add(c.w)
      .add(c.y)
      .add(c.pads_begin)
      .add(c.pads_end)
      .add(c.strides)
      .add(c.dilations);
  return key.add(c.tensor_cores).add(max_workspace_bytes).add(rank).take();
}

}  // namespace

CudnnPlans::Plan CudnnPlans::attention(const CudnnCard& card, const CudnnAttention& attention) {
  return find(key_of(Attention, attention), [&] { return plan_attention(card, attention); });
}

CudnnPlans::Plan CudnnPlans::attention_grad(const CudnnCard& card, const CudnnAttention& attention) {
  return find(key_of(AttentionGrad, attention), [&] { return plan_attention_grad(card, attention); });
}

CudnnPlans::Plan CudnnPlans::convolution(const CudnnCard& card, const CudnnConvolution& convolution,
                                         int64_t max_workspace_bytes, int rank) {
  return find(key_of(convolution, max_workspace_bytes, rank),
              [&] { return plan_convolution(card, convolution, max_workspace_bytes, rank); });
}

CudnnPlans::Plan CudnnPlans::find(Key key, llvm::function_ref<Result<std::unique_ptr<CudnnPlan>>()> make) {
  std::shared_ptr<CudnnPlan>& plan = plans_[std::move(key)];
  if (plan) return plan;
  Result<std::unique_ptr<CudnnPlan>> made = make();
  if (!made) return made.takeError();
  plan = std::move(*made);
  return plan;
}

}  // namespace plimsoll
