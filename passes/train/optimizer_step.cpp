#include "passes/train/optimizer_step.h"

#include "ir/eight_bit_moments.h"
#include "ir/ops/common/support.h"
#include "ir/support/align.h"
#include "passes/partition/pieces.h"
#include "passes/train/optimizer_settings.h"

#include "llvm/Support/xxhash.h"

#include <cmath>

// The rules are PyTorch's, with its order of operations where that decides more than the last bits. LAMB (You et al.
// 2020) and Lion (Chen et al. 2023) follow their papers.

namespace plimsoll {

bool counts_steps(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW:
    case OptimizerKind::Adafactor:
    case OptimizerKind::Lamb: return true;
    default: return false;
  }
}

bool is_one_op(OptimizerKind kind) {
  return kind == OptimizerKind::Sgd || kind == OptimizerKind::Adam || kind == OptimizerKind::AdamW;
}

OptimizerSteps::Updated OptimizerSteps::emit(const Trained& p, ValueId weights) {
  switch (p.rule.optimizer) {
    case OptimizerKind::Sgd: return emit_sgd(p, weights);
    case OptimizerKind::Adam: return emit_adam(p, weights, rate_of(p), false);
    case OptimizerKind::AdamW: return emit_adam(p, weights, rate_of(p), true);
    case OptimizerKind::Lamb: return emit_lamb(p, weights);
    default: break;
  }
  ValueId next = ValueId::None;
  switch (p.rule.optimizer) {
    case OptimizerKind::Lion: next = emit_lion(p, weights); break;
    case OptimizerKind::RmsProp: next = emit_rmsprop(p, weights); break;
    case OptimizerKind::Adagrad: next = emit_adagrad(p, weights); break;
    case OptimizerKind::Adafactor: next = emit_adafactor(p, weights); break;
    default: next = emit_muon(p, weights); break;
  }
  if (inputs_.skip != ValueId::None) next = b_.emit("where", {inputs_.skip, weights, next});
  b_.graph().rename(next, p.name + ".next");
  return {next};
}

namespace {

// How the ranks divide the states of a parameter's update.
Divisions divisions_of(const Trained& p, const TrainingRequest& request) {
  Divisions divisions = p.divisions;
  if (!updated_piece(p, request).empty()) divisions.push_back({MeshAxis::Data, p.type.shape, {}});
  return divisions;
}

Shape own_shape(const Trained& p, const TrainingRequest& request) {
  const Shape piece = updated_piece(p, request);
  return piece.empty() ? p.type.shape : piece;
}

// A tensor of blocks along the last dimension, with two scales for each. None where rows are no whole blocks.
std::optional<Shape> scales_shape(llvm::ArrayRef<int64_t> shape) {
  if (shape.empty() || shape.back() % moment_block != 0) return std::nullopt;
  Shape scales(shape.begin(), shape.end());
  scales.back() /= moment_block;
  scales.push_back(2);
  return scales;
}

}  // namespace

std::optional<MomentScales> moment_scales(const Trained& p, const TrainingRequest& request) {
  const Divisions divisions = divisions_of(p, request);
  const Shape whole = whole_shape(divisions, p.type.shape);
  if (element_count(whole) < min_eight_bit_elements) return std::nullopt;
  const auto of_whole = [&] {
    const std::optional<Shape> scales = scales_shape(whole);
    return scales ? *scales : Shape{moment_blocks(element_count(whole)), 2};
  };
  if (divisions.empty()) return MomentScales{Type(DType::F32, of_whole()), {}};
  MomentScales scales;
  for (const Division& division : divisions) {
    const bool is_flat = division.cut.dim == Cut::flat, is_first = scales.divisions.empty();
    std::optional<Shape> shape = scales_shape(division.whole);
    if (!shape && is_flat && is_first) shape = of_whole();
    if (!shape) return std::nullopt;
    Cut cut = division.cut;
    if (!is_flat && cut.dim + 1 == static_cast<int64_t>(division.whole.size())) {
      for (size_t i = 0; i < cut.blocks.size(); ++i)
        if (cut.blocks[i] % moment_block != 0 ||
            part_of_block(cut, i, request.mesh[division.axis]) % moment_block != 0 ||
            (cut.parts.empty() && !divides_evenly(cut, request.mesh[division.axis])))
          return std::nullopt;
      for (int64_t& size : llvm::concat<int64_t>(cut.blocks, cut.parts)) size /= moment_block;
    }
    scales.divisions.push_back({division.axis, *shape, cut});
  }
  const std::optional<Shape> own = scales_shape(own_shape(p, request));
  if (!own) return std::nullopt;
  const bool is_flat = scales.divisions.back().cut.dim == Cut::flat;
  scales.type = Type(DType::F32, is_flat ? Shape{element_count(*own)} : *own);
  return scales;
}

ValueId OptimizerSteps::add_state(const Trained& p, llvm::StringRef suffix, Type type, Divisions divisions,
                                  StateInit init) {
  Graph& graph = b_.graph();
  ValueId state = graph.add_state(p.name + suffix.str(), type, StateRole::Optimizer, std::move(init));
  graph.states.back().divisions = std::move(divisions);
  graph.states.back().origin = p.origin;
  return state;
}

ValueId OptimizerSteps::add_state(const Trained& p, llvm::StringRef suffix, StateInit init, const Shape* shape) {
  const Type type(stat_dtype(p.type.dtype), shape ? *shape : own_shape(p, request_));
  return add_state(p, suffix, type, divisions_of(p, request_), std::move(init));
}

void OptimizerSteps::update_state(ValueId state, ValueId next) {
  if (inputs_.skip != ValueId::None) next = b_.emit("where", {inputs_.skip, state, next});
  b_.graph().rename(next, b_.graph().value(state).name + ".next");
  b_.graph().updates.push_back({state, next});
}

// Results are the weights, the states' next values, and the norms.
OptimizerSteps::Updated OptimizerSteps::emit_one_op(llvm::StringRef op, const Trained& p,
                                                    llvm::ArrayRef<ValueId> operands, Attrs attrs,
                                                    llvm::ArrayRef<ValueId> states) {
  std::vector<std::string> names{p.name + ".next"};
  for (ValueId state : states) names.push_back(b_.graph().value(state).name + ".next");
  if (inputs_.gives_norms) {
    attrs.set("norms", int64_t{1});
    names.push_back(p.name + ".grad_norms");
  }
  const auto results = b_.emit_all(op, operands, std::move(attrs), names);
  for (size_t i = 0; i < states.size(); ++i) b_.graph().updates.push_back({states[i], results[i + 1]});
  return {results[0], inputs_.gives_norms ? results.back() : ValueId::None};
}

OptimizerSteps::Updated OptimizerSteps::emit_sgd(const Trained& p, ValueId weights) {
  const OptimizerSpec& o = request_.optimizer;
  llvm::SmallVector<ValueId, 1> states;
  if (o.momentum != 0) states.push_back(add_state(p, ".momentum"));
  return emit_one_op(
      "sgd", p, {weights, p.grad, rate_of(p), states.empty() ? ValueId::None : states[0], inputs_.scale, inputs_.skip},
      {{"momentum", o.momentum},
       {"dampening", o.dampening},
       {"nesterov", int64_t{o.nesterov}},
       {"weight_decay", p.rule.weight_decay}},
      states);
}

OptimizerSteps::Updated OptimizerSteps::emit_adam(const Trained& p, ValueId weights, ValueId learning_rate,
                                                  bool decoupled) {
  const OptimizerSpec& o = request_.optimizer;
  Attrs attrs{{"beta1", o.beta1},
              {"beta2", o.beta2},
              {"eps", o.eps},
              {"weight_decay", p.rule.weight_decay},
              {"decoupled", int64_t{decoupled}}};
  set_rounding(p, weights, attrs);
  if (request_.moments == Moments::EightBit)
    if (const std::optional<MomentScales> scales = moment_scales(p, request_))
      return emit_adam_8bit(p, weights, learning_rate, std::move(attrs), *scales);
  const DType dtype = request_.moments == Moments::BF16 ? DType::BF16 : stat_dtype(p.type.dtype);
  const Type type(dtype, own_shape(p, request_));
  const ValueId m = add_state(p, mean_suffix, type, divisions_of(p, request_)),
                v = add_state(p, square_suffix, type, divisions_of(p, request_));
  return emit_one_op("adamw", p, {weights, p.grad, m, v, inputs_.step, learning_rate, inputs_.scale, inputs_.skip},
                     std::move(attrs), {m, v});
}

// Without a master copy small updates would be lost to rounding; so each is rounded up or down by chance, which is
// right on average. LAMB's direction is no weight yet.
void OptimizerSteps::set_rounding(const Trained& p, ValueId weights, Attrs& attrs) const {
  if (b_.type(weights).dtype != DType::BF16 || !rounds_stochastically(request_, p.rule.optimizer)) return;
  constexpr uint32_t above_ids_of_nodes = uint32_t{1} << 31;
  attrs.set("rounding_id", static_cast<int64_t>(above_ids_of_nodes | static_cast<uint32_t>(llvm::xxHash64(p.name))));
  // Elements of a piece draw the numbers that they draw as elements of the whole, unless rows are cut apart.
  const Divisions divisions = divisions_of(p, request_);
  for (size_t i = 0; i < divisions.size(); ++i) {
    const int64_t piece = element_count(i + 1 < divisions.size() ? divisions[i + 1].whole : own_shape(p, request_));
    attrs.set(divisions[i].axis == MeshAxis::Data ? "draws_per_rank" : "draws_per_part", align_up(piece, 4));
  }
}

OptimizerSteps::Updated OptimizerSteps::emit_adam_8bit(const Trained& p, ValueId weights, ValueId learning_rate,
                                                       Attrs attrs, const MomentScales& scales) {
  const Type type(DType::U8, own_shape(p, request_));
  const ValueId m = add_state(p, mean_suffix, type, divisions_of(p, request_)),
                v = add_state(p, square_suffix, type, divisions_of(p, request_)),
                pairs = add_state(p, scales_suffix, scales.type, scales.divisions);
  return emit_one_op("adamw_8bit", p,
                     {weights, p.grad, m, v, pairs, inputs_.step, learning_rate, inputs_.scale, inputs_.skip},
                     std::move(attrs), {m, v, pairs});
}

// AdamW with a rate of 1 moves the weights by LAMB's direction, decay included; its length becomes that of the weights.
// As in NVIDIA's and timm's versions, parameters without decay, which are biases and norms as a rule, keep AdamW's.
OptimizerSteps::Updated OptimizerSteps::emit_lamb(const Trained& p, ValueId weights) {
  if (p.rule.weight_decay == 0) return emit_adam(p, weights, rate_of(p), true);
  Updated moved = emit_adam(p, weights, b_.scalar(1, DType::F32), true);
  const ValueId direction = sub(weights, moved.weights);
  const ValueId length = b_.emit("sqrt", {sum_squares(p, weights)}),
                moved_by = b_.emit("sqrt", {sum_squares(p, direction)});
  const ValueId zero = b_.scalar(0, DType::F32), one = b_.scalar(1, DType::F32);
  const ValueId both = b_.emit("and", {b_.emit("greater", {length, zero}), b_.emit("greater", {moved_by, zero})});
  const ValueId trust = b_.emit("where", {both, div(length, moved_by), one}, {}, p.name + ".trust");
  const ValueId rate = b_.cast(mul(rate_of(p), trust), b_.type(weights).dtype);
  b_.graph().rename(moved.weights, p.name + ".moved");
  moved.weights = b_.emit("sub", {weights, mul(direction, rate)}, {}, p.name + ".next");
  return moved;
}

ValueId OptimizerSteps::emit_lion(const Trained& p, ValueId weights) {
  const OptimizerSpec& o = request_.optimizer;
  const ValueId m = add_state(p, ".exp_avg"), g = gradient_of(p, weights);
  const ValueId rate = rate_of(p, b_.type(weights).dtype);
  const ValueId sign = b_.emit("sign", {mean(m, g, o.beta1)});
  update_state(m, mean(m, g, o.beta2));
  return sub(decayed(p, weights, rate), mul(sign, rate));
}

ValueId OptimizerSteps::emit_rmsprop(const Trained& p, ValueId weights) {
  const OptimizerSpec& o = request_.optimizer;
  const ValueId v = add_state(p, ".square_avg"), g = with_l2(p, gradient_of(p, weights), weights);
  const ValueId next_v = mean(v, mul(g, g), o.alpha), rate = rate_of(p, b_.type(weights).dtype);
  update_state(v, next_v);
  const ValueId root = b_.emit("sqrt", {next_v});
  ValueId direction = div(g, add(root, scalar_like(o.eps, root)));
  if (o.momentum != 0) {
    const ValueId buffer = add_state(p, ".momentum_buffer");
    direction = add(times(buffer, o.momentum), direction);
    update_state(buffer, direction);
  }
  return sub(weights, mul(direction, rate));
}

ValueId OptimizerSteps::emit_adagrad(const Trained& p, ValueId weights) {
  const ValueId sum = add_state(p, ".sum"), g = with_l2(p, gradient_of(p, weights), weights);
  const ValueId next_sum = add(sum, mul(g, g));
  update_state(sum, next_sum);
  const ValueId root = b_.emit("sqrt", {next_sum});
  const ValueId direction = div(g, add(root, scalar_like(request_.optimizer.eps, root)));
  return sub(weights, mul(direction, rate_of(p, b_.type(weights).dtype)));
}

// The variance is one number for each row and column of the last two dimensions; of a vector, one for each element.
ValueId OptimizerSteps::adafactor_variance(const Trained& p, ValueId gradient) {
  const DType dtype = b_.type(gradient).dtype;
  const double eps = request_.optimizer.eps;
  const ValueId step = b_.cast(inputs_.step, dtype), squares = mul(gradient, gradient);
  const ValueId share = b_.emit("pow", {step, b_.scalar(request_.optimizer.beta2_decay, dtype)});
  auto follow = [&](llvm::StringRef suffix, ValueId now) {
    const Shape shape = b_.type(now).shape;
    const ValueId state = add_state(p, suffix, {StateInit::Kind::Fill, 0, ""}, &shape);
    const ValueId next = add(state, mul(sub(now, state), share));
    update_state(state, next);
    return next;
  };
  auto mean_along = [&](ValueId x, int64_t axis) {
    return b_.emit("reduce_mean", {x}, {{"axes", Ints{axis}}, {"keep_dims", int64_t{1}}});
  };
  const int64_t rank = b_.type(gradient).rank();
  if (rank < 2) return at_least(follow(".variance", squares), eps * eps);
  const ValueId rows = follow(".row_var", mean_along(squares, rank - 1)),
                columns = follow(".col_var", mean_along(squares, rank - 2));
  const ValueId shares = div(rows, at_least(mean_along(rows, rank - 2), eps));
  return at_least(mul(shares, columns), eps * eps);
}

ValueId OptimizerSteps::emit_adafactor(const Trained& p, ValueId weights) {
  const OptimizerSpec& o = request_.optimizer;
  const DType dtype = b_.type(weights).dtype;
  const auto elements = static_cast<double>(b_.type(weights).elements());
  auto root_mean_square = [&](ValueId x) {
    return b_.emit("sqrt", {times(b_.cast(b_.emit("sum_squares", {x}), dtype), 1 / elements)});
  };
  const ValueId g = gradient_of(p, weights), rate = rate_of(p, dtype), step = b_.cast(inputs_.step, dtype);
  const ValueId direction = mul(b_.emit("rsqrt", {adafactor_variance(p, g)}), g);
  const ValueId relative = b_.emit("min", {rate, b_.emit("rsqrt", {step})});
  const ValueId length = mul(at_least(root_mean_square(weights), o.min_scale), relative);
  const ValueId too_long = at_least(times(root_mean_square(direction), 1 / o.clip_threshold), 1);
  return sub(decayed(p, weights, rate), mul(direction, div(length, too_long)));
}

// Newton and Schulz's iteration, whose coefficients bring all singular values near 1 in five rounds (Jordan et al.
// 2024). Its matmuls are in bf16, as PyTorch's are; what they are combined with is not, since bf16 would round the
// coefficients.
ValueId OptimizerSteps::orthogonalised(ValueId matrix) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315, least_norm = 1e-7;
  constexpr int rounds = 5;
  const Type type = b_.type(matrix);
  const bool is_tall = type.shape[0] > type.shape[1];
  ValueId x = is_tall ? b_.transpose(matrix, {1, 0}) : matrix;
  const ValueId norm = b_.emit("sqrt", {b_.cast(b_.emit("sum_squares", {x}), type.dtype)});
  x = div(x, at_least(norm, least_norm));
  auto low = [&](ValueId value) { return b_.cast(value, DType::BF16); };
  auto product = [&](ValueId left, ValueId right) { return b_.cast(b_.emit("matmul", {left, right}), type.dtype); };
  for (int round = 0; round < rounds; ++round) {
    const ValueId low_x = low(x), low_gram = b_.emit("linear", {low_x, low_x}, {{"transpose_w", int64_t{1}}});
    const ValueId gram = b_.cast(low_gram, type.dtype);
    const ValueId factor = add(times(gram, b), times(product(low_gram, low_gram), c));
    x = add(times(x, a), product(low(factor), low_x));
  }
  return is_tall ? b_.transpose(x, {1, 0}) : x;
}

// The factor makes an update's root mean square that of AdamW's, so that one rate serves both (Liu et al. 2025;
// PyTorch's adjust_lr_fn="match_rms_adamw").
ValueId OptimizerSteps::emit_muon(const Trained& p, ValueId weights) {
  const OptimizerSpec& o = request_.optimizer;
  const ValueId buffer = add_state(p, ".momentum_buffer"), g = gradient_of(p, weights);
  const ValueId next = mean(buffer, g, o.momentum), rate = rate_of(p, b_.type(weights).dtype);
  update_state(buffer, next);
  const ValueId direction = orthogonalised(o.nesterov ? mean(next, g, o.momentum) : next);
  const Shape& shape = b_.type(weights).shape;
  const double adjustment = 0.2 * std::sqrt(static_cast<double>(std::max(shape[0], shape[1])));
  return sub(decayed(p, weights, rate), mul(direction, times(rate, adjustment)));
}

ValueId OptimizerSteps::rate_of(const Trained& p) {
  if (p.rule.rate == 1) return inputs_.learning_rate;
  ValueId& rate = rates_.try_emplace(p.rule.rate, ValueId::None).first->second;
  if (rate == ValueId::None) rate = times(inputs_.learning_rate, p.rule.rate);
  return rate;
}

ValueId OptimizerSteps::gradient_of(const Trained& p, ValueId weights) {
  const ValueId g = b_.cast(p.grad, b_.type(weights).dtype);
  return inputs_.scale == ValueId::None ? g : mul(g, b_.cast(inputs_.scale, b_.type(g).dtype));
}

ValueId OptimizerSteps::sum_squares(const Trained& p, ValueId x) {
  ValueId sum = b_.cast(b_.emit("sum_squares", {x}), DType::F32);
  for (MeshAxis axis : {MeshAxis::Data, MeshAxis::Tensor}) {
    const bool divided = has_axis(p.divisions, axis) || (axis == MeshAxis::Data && !updated_piece(p, request_).empty());
    if (divided) sum = b_.emit("reduce_all", {sum}, collective_attrs(axis, request_.mesh[axis]));
  }
  return sum;
}

ValueId OptimizerSteps::decayed(const Trained& p, ValueId weights, ValueId rate) {
  if (p.rule.weight_decay == 0) return weights;
  return mul(weights, sub(scalar_like(1, rate), times(rate, p.rule.weight_decay)));
}

ValueId OptimizerSteps::with_l2(const Trained& p, ValueId gradient, ValueId weights) {
  return p.rule.weight_decay == 0 ? gradient : add(gradient, times(weights, p.rule.weight_decay));
}

ValueId OptimizerSteps::mean(ValueId running, ValueId next, double decay) {
  return b_.emit("running_update", {running, next}, {{"momentum", decay}});
}

}  // namespace plimsoll
