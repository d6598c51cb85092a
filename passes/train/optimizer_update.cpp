#include "passes/train/optimizer_update.h"

#include "ir/ops/common/support.h"
#include "passes/partition/pieces.h"

#include <cmath>
#include <map>

namespace plimsoll {

ValueId add_counter(Graph& graph, llvm::StringRef name, DType dtype, double start) {
  return graph.add_state(name, Type(dtype, {}), StateRole::Counter, {StateInit::Kind::Fill, start, ""});
}

Shape updated_piece(const Trained& parameter, const TrainingRequest& request) {
  if (request.zero == 0 || has_axis(parameter.divisions, MeshAxis::Data)) return {};
  return piece_shape(parameter.type.shape, request.mesh[MeshAxis::Data]);
}

namespace {

// fp16 gradients underflow where f32 ones do not, so the loss is multiplied by a scale that halves after an overflow
// and doubles after a long run of steps without one (Micikevicius et al. 2018).
constexpr int64_t growth_interval = 2000;  // steps without overflow before the scale doubles

class UpdateEmitter {
 public:
  UpdateEmitter(Graph& graph, const TrainingRequest& request) : graph_(graph), b_(graph), request_(request) {
    b_.phase = Phase::Update;
  }

  void emit(llvm::ArrayRef<Trained> parameters, ValueId weight, ValueId loss_scale) {
    ValueId divisor = weight == ValueId::None || loss_scale == ValueId::None
                          ? (weight == ValueId::None ? loss_scale : weight)
                          : b_.emit("mul", {weight, loss_scale});
    // With a loss scale or clipping, updates wait for the norm of all gradients, which reads them once more. Otherwise
    // the updates themselves make the norms of their gradients.
    const bool norm_first = loss_scale != ValueId::None || request_.clip_grad_norm > 0;
    if (norm_first) {
      Gradients gradients;
      for (const Trained& parameter : parameters) gradients.of(pieces_of(parameter)).push_back(parameter.grad);
      emit_norm(gradients, divisor);
    }
    ValueId scale = emit_scale(divisor);
    learning_rate_ = add_counter(graph_, "learning_rate", DType::F32, request_.optimizer.learning_rate);
    if (loss_scale != ValueId::None) emit_overflow_handling(loss_scale);
    if (request_.optimizer.kind != OptimizerKind::Sgd) {
      ValueId step = add_counter(graph_, "step", DType::I64, 0);
      ValueId one = finite_ == ValueId::None ? one_i64() : b_.cast(finite_, DType::I64);
      step_ = b_.emit("add", {step, one}, {}, "step.next");
      graph_.updates.push_back({step, step_});
    }
    llvm::SmallVector<ValueId, 16> next;
    for (const Trained& parameter : parameters) next.push_back(emit_update(parameter, scale));
    // Casts come behind all updates, so that updates stand side by side.
    for (const auto& [parameter, value] : llvm::zip(parameters, next)) {
      b_.origin = parameter.origin;
      ValueId whole = b_.cast(value, parameter.type.dtype);
      if (!piece_of(parameter).empty()) whole = b_.emit("gather_pieces", {whole}, group(parameter.type.shape));
      if (whole != value) graph_.rename(whole, parameter.name + ".next");
      graph_.updates.push_back({parameter.value, whole});
    }
    if (!norm_first) emit_norm(norms_of_parts_, divisor);
  }

 private:
  // Along which axes a rank has a piece of a gradient and of the optimizer's states.
  struct Pieces {
    bool data, tensor;
  };
  // Tensors by that.
  struct Gradients {
    llvm::SmallVector<ValueId, 16> by_axes[2][2];
    llvm::SmallVector<ValueId, 16>& of(Pieces pieces) { return by_axes[pieces.tensor][pieces.data]; }
    llvm::ArrayRef<ValueId> of(Pieces pieces) const { return by_axes[pieces.tensor][pieces.data]; }
  };

  Shape piece_of(const Trained& p) const { return updated_piece(p, request_); }
  Pieces pieces_of(const Trained& p) const {
    return {has_axis(p.divisions, MeshAxis::Data) || !piece_of(p).empty(), has_axis(p.divisions, MeshAxis::Tensor)};
  }

  Attrs group(llvm::ArrayRef<int64_t> shape) const { return data_group(request_.mesh[MeshAxis::Data], shape); }

  ValueId one_i64() { return b_.constant(Tensor::scalar_int(1)); }

  // An infinity or NaN in any gradient makes the norm infinite or NaN; then the step is skipped and the scale is
  // halved.
  void emit_overflow_handling(ValueId loss_scale) {
    ValueId growth = add_counter(graph_, "growth_tracker", DType::I64, 0);
    ValueId skipped = add_counter(graph_, "skipped_steps", DType::I64, 0);
    finite_ = b_.emit("less", {norm_, b_.scalar(INFINITY, DType::F32)}, {}, "gradients_finite");
    skip_ = b_.emit("not", {finite_}, {}, "skip_step");
    ValueId good_steps = b_.emit("add", {growth, one_i64()});
    ValueId is_due = b_.emit("greater_equal", {good_steps, b_.constant(Tensor::scalar_int(growth_interval))});
    ValueId factor =
        b_.emit("where", {finite_, b_.emit("where", {is_due, b_.scalar(2, DType::F32), b_.scalar(1, DType::F32)}),
                          b_.scalar(0.5, DType::F32)});
    ValueId starts_over = b_.emit("or", {skip_, is_due});
    ValueId zero = b_.constant(Tensor::scalar_int(0));
    ValueId next_scale = b_.emit("mul", {loss_scale, factor}, {}, "loss_scale.next");
    ValueId next_skipped = b_.emit("add", {skipped, b_.cast(skip_, DType::I64)}, {}, "skipped_steps.next");
    graph_.outputs.push_back({"loss_scale", next_scale});
    graph_.outputs.push_back({"skipped_steps", next_skipped});
    graph_.updates.push_back({loss_scale, next_scale});
    graph_.updates.push_back({skipped, next_skipped});
    graph_.updates.push_back({growth, b_.emit("where", {starts_over, zero, good_steps}, {}, "growth_tracker.next")});
  }

  // The norm of all gradients, made of the gradients or of the norms that the updates gave.
  void emit_norm(const Gradients& tensors, ValueId divisor) {
    b_.origin = OriginId::None;
    ValueId total = over_data_ranks(tensors, false);
    if (ValueId parts = over_data_ranks(tensors, true); parts != ValueId::None) {
      parts = b_.emit("reduce_all", {parts}, collective_attrs(MeshAxis::Tensor, request_.mesh[MeshAxis::Tensor]));
      total = sum_of(total, parts);
    }
    norm_ = b_.emit("sqrt", {total}, {}, "grad_norm");
    if (divisor != ValueId::None) norm_ = b_.emit("div", {norm_, divisor}, {}, "grad_norm");
    graph_.outputs.push_back({"grad_norm", norm_});
  }

  // Of the tensors that are pieces along the tensor axis, or of the others. None where there are none.
  ValueId over_data_ranks(const Gradients& tensors, bool in_parts) {
    const ValueId whole = sum_of_squares(tensors.of({false, in_parts}));
    ValueId pieces = sum_of_squares(tensors.of({true, in_parts}));
    if (pieces == ValueId::None) return whole;
    pieces = b_.emit("reduce_all", {pieces}, group({}));
    return sum_of(whole, pieces);
  }

  // Stages may have either summand; what is named a sum they add up.
  ValueId sum_of(ValueId some, ValueId others) {
    return some == ValueId::None ? others : b_.emit("add_n", {some, others});
  }

  ValueId sum_of_squares(llvm::ArrayRef<ValueId> tensors) {
    std::map<DType, llvm::SmallVector<ValueId, 16>> together;
    for (ValueId tensor : tensors) together[graph_.type(tensor).dtype].push_back(tensor);
    llvm::SmallVector<ValueId, 4> squares;
    for (const auto& [dtype, some] : together) squares.push_back(b_.cast(b_.emit("sum_squares", some), DType::F32));
    if (squares.size() < 2) return squares.empty() ? ValueId::None : squares.front();
    return b_.emit("add_n", squares);
  }

  // The factor that every update multiplies its gradient by; None when it is 1.
  ValueId emit_scale(ValueId divisor) {
    ValueId scale = divisor == ValueId::None ? ValueId::None : b_.emit("reciprocal", {divisor});
    if (request_.clip_grad_norm <= 0) return scale;
    // As PyTorch's clip_grad_norm_: limit / (norm + 1e-6), never above 1.
    ValueId ratio = b_.emit(
        "div", {b_.scalar(request_.clip_grad_norm, DType::F32), b_.emit("add", {norm_, b_.scalar(1e-6, DType::F32)})});
    ValueId clip = b_.emit("min", {ratio, b_.scalar(1, DType::F32)}, {}, "clip_scale");
    return scale == ValueId::None ? clip : b_.emit("mul", {scale, clip});
  }

  ValueId add_optimizer_state(const Trained& p, llvm::StringRef suffix, StateInit init) {
    const Shape piece = piece_of(p);
    Type type(stat_dtype(p.type.dtype), piece.empty() ? p.type.shape : piece);
    ValueId state = graph_.add_state(p.name + suffix.str(), type, StateRole::Optimizer, std::move(init));
    graph_.states.back().divisions = p.divisions;
    if (!piece.empty()) graph_.states.back().divisions.push_back({MeshAxis::Data, p.type.shape, {}});
    graph_.states.back().origin = p.origin;
    return state;
  }

  // Gives the next weights, those of the master copy where the parameter has one.
  ValueId emit_update(const Trained& p, ValueId scale) {
    b_.origin = p.origin;
    bool master = request_.master_weights == MasterWeights::On
                      ? p.type.dtype != stat_dtype(p.type.dtype)
                      : request_.master_weights == MasterWeights::Auto && is_16_bit_float(p.type.dtype);
    ValueId weights = master ? add_optimizer_state(p, ".master", {StateInit::Kind::CopyOf, 0, p.name}) : p.value;
    if (!master && !piece_of(p).empty()) weights = b_.emit("take_piece", {p.value}, group(piece_of(p)));
    ValueId next =
        request_.optimizer.kind == OptimizerKind::Sgd ? emit_sgd(p, weights, scale) : emit_adam(p, weights, scale);
    if (master) graph_.updates.push_back({weights, next});
    return next;
  }

  // The update op also gives the norms of its gradient's parts if the global norm is not made yet.
  llvm::SmallVector<ValueId, 4> emit_update_op(llvm::StringRef op, const Trained& p, llvm::ArrayRef<ValueId> operands,
                                               Attrs attrs, std::vector<std::string> names) {
    if (norm_ != ValueId::None) return b_.emit_all(op, operands, std::move(attrs), names);
    attrs.set("norms", int64_t{1});
    names.push_back(p.name + ".grad_norms");
    auto results = b_.emit_all(op, operands, std::move(attrs), names);
    norms_of_parts_.of(pieces_of(p)).push_back(results.back());
    return results;
  }

  ValueId emit_sgd(const Trained& p, ValueId weights, ValueId scale) {
    const OptimizerSpec& o = request_.optimizer;
    ValueId momentum =
        o.momentum != 0 ? add_optimizer_state(p, ".momentum", {StateInit::Kind::Fill, 0, ""}) : ValueId::None;
    std::vector<std::string> names{p.name + ".next"};
    if (momentum != ValueId::None) names.push_back(p.name + ".momentum.next");
    auto results = emit_update_op("sgd", p, {weights, p.grad, learning_rate_, momentum, scale, skip_},
                                  {{"momentum", o.momentum},
                                   {"dampening", o.dampening},
                                   {"nesterov", int64_t{o.nesterov}},
                                   {"weight_decay", o.weight_decay}},
                                  std::move(names));
    if (momentum != ValueId::None) graph_.updates.push_back({momentum, results[1]});
    return results[0];
  }

  ValueId emit_adam(const Trained& p, ValueId weights, ValueId scale) {
    const OptimizerSpec& o = request_.optimizer;
    ValueId m = add_optimizer_state(p, ".exp_avg", {StateInit::Kind::Fill, 0, ""});
    ValueId v = add_optimizer_state(p, ".exp_avg_sq", {StateInit::Kind::Fill, 0, ""});
    auto results = emit_update_op("adamw", p, {weights, p.grad, m, v, step_, learning_rate_, scale, skip_},
                                  {{"beta1", o.beta1},
                                   {"beta2", o.beta2},
                                   {"eps", o.eps},
                                   {"weight_decay", o.weight_decay},
                                   {"decoupled", int64_t{o.kind == OptimizerKind::AdamW}}},
                                  {p.name + ".next", p.name + ".exp_avg.next", p.name + ".exp_avg_sq.next"});
    graph_.updates.push_back({m, results[1]});
    graph_.updates.push_back({v, results[2]});
    return results[0];
  }

  Graph& graph_;
  Builder b_;
  const TrainingRequest& request_;
  ValueId learning_rate_ = ValueId::None, step_ = ValueId::None;
  ValueId norm_ = ValueId::None;  // of all gradients, once it is made
  Gradients norms_of_parts_;
  ValueId finite_ = ValueId::None, skip_ = ValueId::None;  // with a loss scale alone
};

}  // namespace

void emit_updates(Graph& graph, llvm::ArrayRef<Trained> parameters, ValueId weight, ValueId loss_scale,
                  const TrainingRequest& request) {
  UpdateEmitter(graph, request).emit(parameters, weight, loss_scale);
}

}  // namespace plimsoll
