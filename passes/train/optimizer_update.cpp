#include "passes/train/optimizer_update.h"

#include "ir/ops/common/support.h"
#include "passes/partition/pieces.h"
#include "passes/train/optimizer_step.h"

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

// The squares of gradients are summed in parts of so many bytes, or in so many parts where these have more. Reading a
// part takes several times as long as launching its sum. Accumulated gradients come in as many parts whatever they
// have.
constexpr int64_t min_bytes_of_sum = int64_t{64} << 20, max_sums = 16;

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
    // the updates themselves make the norms of their gradients, where they are one op.
    const bool norm_first = loss_scale != ValueId::None || request_.clip_grad_norm > 0 ||
                            request_.clip_grad_value > 0 ||
                            llvm::any_of(parameters, [](const Trained& p) { return !is_one_op(p.rule.optimizer); });
    std::vector<Trained> trained(parameters.begin(), parameters.end());
    if (norm_first) emit_norm(norm_of(trained, divisor));
    ValueId clipped_norm = norm_;
    if (request_.clip_grad_value > 0) {
      clip_by_value(trained, divisor);
      divisor = ValueId::None;
      if (request_.clip_grad_norm > 0) clipped_norm = norm_of(trained, divisor);
    }
    UpdateInputs inputs{.scale = emit_scale(divisor, clipped_norm), .gives_norms = !norm_first};
    inputs.learning_rate = add_counter(graph_, "learning_rate", DType::F32, request_.optimizer.learning_rate);
    if (loss_scale != ValueId::None) emit_overflow_handling(loss_scale);
    inputs.skip = skip_;
    if (llvm::any_of(parameters, [](const Trained& p) { return counts_steps(p.rule.optimizer); })) {
      ValueId step = add_counter(graph_, "step", DType::I64, 0);
      ValueId one = finite_ == ValueId::None ? one_i64() : b_.cast(finite_, DType::I64);
      inputs.step = b_.emit("add", {step, one}, {}, "step.next");
      graph_.updates.push_back({step, inputs.step});
    }
    OptimizerSteps steps(b_, request_, inputs);
    llvm::SmallVector<ValueId, 16> next;
    for (const Trained& parameter : trained) next.push_back(emit_update(parameter, steps));
    // Casts come behind all updates, so that updates stand side by side.
    for (const auto& [parameter, value] : llvm::zip(trained, next)) {
      b_.origin = parameter.origin;
      ValueId whole = b_.cast(value, parameter.type.dtype);
      if (!piece_of(parameter).empty()) whole = b_.emit("gather_pieces", {whole}, group(parameter.type.shape));
      if (whole != value) graph_.rename(whole, parameter.name + ".next");
      graph_.updates.push_back({parameter.value, whole});
    }
    if (!norm_first) emit_norm(norm_of(norms_of_parts_, divisor));
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

  void emit_norm(ValueId norm) {
    norm_ = norm;
    graph_.outputs.push_back({"grad_norm", norm_});
  }

  ValueId norm_of(llvm::ArrayRef<Trained> parameters, ValueId divisor) {
    Gradients gradients;
    for (const Trained& parameter : parameters) gradients.of(pieces_of(parameter)).push_back(parameter.grad);
    return norm_of(gradients, divisor);
  }

  // The norm of all gradients, made of the gradients or of the norms that the updates gave.
  ValueId norm_of(const Gradients& tensors, ValueId divisor) {
    b_.origin = OriginId::None;
    ValueId total = over_data_ranks(tensors, false);
    if (ValueId parts = over_data_ranks(tensors, true); parts != ValueId::None) {
      parts = b_.emit("reduce_all", {parts}, collective_attrs(MeshAxis::Tensor, request_.mesh[MeshAxis::Tensor]));
      total = sum_of(total, parts);
    }
    const ValueId norm = b_.emit("sqrt", {total}, {}, "grad_norm");
    return divisor == ValueId::None ? norm : b_.emit("div", {norm, divisor}, {}, "grad_norm");
  }

  // As PyTorch's clip_grad_value_, of gradients that are divided by all that stands between them and the loss's own.
  void clip_by_value(llvm::MutableArrayRef<Trained> parameters, ValueId divisor) {
    const double most = request_.clip_grad_value;
    const ValueId scale = divisor == ValueId::None ? ValueId::None : b_.emit("reciprocal", {divisor});
    for (Trained& p : parameters) {
      b_.origin = p.origin;
      if (scale != ValueId::None) {
        p.grad = b_.cast(p.grad, stat_dtype(b_.type(p.grad).dtype));
        p.grad = b_.emit("mul", {p.grad, b_.cast(scale, b_.type(p.grad).dtype)});
      }
      p.grad = b_.emit("clip", {p.grad}, {{"min", -most}, {"max", most}}, p.name + ".clipped");
    }
    b_.origin = OriginId::None;
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

  // Several ranks fill their waiting with gradients of weights, which a sum of some of them would hold up.
  int64_t at_once(int64_t whole) const {
    return request_.mesh.ranks() > 1 ? whole : std::max(whole / max_sums, min_bytes_of_sum);
  }

  // Gradients may wait on the host for their updates, from where no sum should need all of them at once. The sums
  // follow from the job alone, so that norms have the same bits within every budget.
  ValueId sum_of_squares(llvm::ArrayRef<ValueId> tensors) {
    std::map<DType, llvm::SmallVector<ValueId, 16>> together;
    for (ValueId tensor : tensors) together[graph_.type(tensor).dtype].push_back(tensor);
    llvm::SmallVector<ValueId, 4> squares;
    const auto add = [&](llvm::ArrayRef<ValueId> some) {
      squares.push_back(b_.cast(b_.emit("sum_squares", some), DType::F32));
    };
    for (const auto& [dtype, all] : together) {
      int64_t whole = 0, bytes = 0;
      for (ValueId tensor : all) whole += graph_.type(tensor).bytes();
      const int64_t most = request_.accumulate > 1 ? whole / max_sums : at_once(whole);
      llvm::SmallVector<ValueId, 16> some;
      for (ValueId tensor : all) {
        const int64_t more = graph_.type(tensor).bytes();
        if (!some.empty() && bytes + more > most) add(some), some.clear(), bytes = 0;
        some.push_back(tensor);
        bytes += more;
      }
      add(some);
    }
    if (squares.size() < 2) return squares.empty() ? ValueId::None : squares.front();
    return b_.emit("add_n", squares);
  }

  // The factor that every update multiplies its gradient by; None when it is 1.
  ValueId emit_scale(ValueId divisor, ValueId norm) {
    ValueId scale = divisor == ValueId::None ? ValueId::None : b_.emit("reciprocal", {divisor});
    if (request_.clip_grad_norm <= 0) return scale;
    // As PyTorch's clip_grad_norm_: limit / (norm + 1e-6), never above 1.
    ValueId ratio = b_.emit(
        "div", {b_.scalar(request_.clip_grad_norm, DType::F32), b_.emit("add", {norm, b_.scalar(1e-6, DType::F32)})});
    ValueId clip = b_.emit("min", {ratio, b_.scalar(1, DType::F32)}, {}, "clip_scale");
    return scale == ValueId::None ? clip : b_.emit("mul", {scale, clip});
  }

  // Gives the next weights, those of the master copy where the parameter has one.
  ValueId emit_update(const Trained& p, OptimizerSteps& steps) {
    b_.origin = p.origin;
    bool master = request_.master_weights == MasterWeights::On
                      ? p.type.dtype != stat_dtype(p.type.dtype)
                      : request_.master_weights == MasterWeights::Auto && is_16_bit_float(p.type.dtype);
    const StateInit as_parameter{StateInit::Kind::CopyOf, 0, p.name};
    ValueId weights = master ? steps.add_state(p, ".master", as_parameter) : p.value;
    if (!master && !piece_of(p).empty()) weights = b_.emit("take_piece", {p.value}, group(piece_of(p)));
    const OptimizerSteps::Updated updated = steps.emit(p, weights);
    if (updated.norms != ValueId::None) norms_of_parts_.of(pieces_of(p)).push_back(updated.norms);
    if (master) graph_.updates.push_back({weights, updated.weights});
    if (request_.ema > 0) {
      const ValueId average = steps.add_state(p, ema_suffix, as_parameter);
      const ValueId now = b_.cast(updated.weights, b_.type(average).dtype);
      steps.update_state(average, b_.emit("running_update", {average, now}, {{"momentum", request_.ema}}));
    }
    return updated.weights;
  }

  Graph& graph_;
  Builder b_;
  const TrainingRequest& request_;
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
