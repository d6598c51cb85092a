// Ops that draw random numbers. They read `rng`, i64[2] = (seed, step), and carry an `id` that is their own,
// so that the same step gives the same numbers however often and in whatever order nodes run.

#include "ir/ops/common/divide.h"
#include "ir/ops/common/layout.h"
#include "ir/ops/elementwise/elementwise.h"
#include "ir/support/philox.h"

namespace plimsoll {
namespace {

Status need_rng(const OpCall& call) { return need_type(call, "rng", Type(DType::I64, {2})); }

RandomStream stream_of(const ReferenceCall& call) {
  const TensorView& rng = call.in("rng");
  return {rng.get_int(0), rng.get_int(1), call.get_int("id"), call.attrs.get_int("first_draw")};
}

// ---- dropout ----

Result<Types> infer_dropout(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  if (Status s = need_dropout(call)) return s;
  return Types{call["x"]};
}

// Where the element of a draw is: [N, C, spatial...] draw in order, however they are stored.
class Places {
 public:
  explicit Places(const OpCall& call) {
    const Shape& shape = call["x"].shape;
    if (!is_channels_last(call.attrs) || shape.size() < 3) return;
    channels_ = shape.back();
    positions_ = element_count(llvm::ArrayRef<int64_t>(shape).drop_front().drop_back());
  }
  int64_t of_draw(int64_t draw) const {
    const int64_t size = channels_ * positions_, in_sample = draw % size;
    return draw - in_sample + in_sample % positions_ * channels_ + in_sample / positions_;
  }

 private:
  int64_t channels_ = 1, positions_ = 1;
};

void dropout_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  const RandomStream stream = stream_of(call);
  const DropoutRule rule = DropoutRule::of_elements(call.get_float("ratio"));
  const Places places(call);
  for (int64_t i = 0; i < y.elements(); ++i) {
    const int64_t at = places.of_draw(i);
    y.set(at, stream.keeps(rule, i) ? x.get(at) * rule.factor() : 0);
  }
}

// Linear in x: the same elements of dy are dropped.
void dropout_gradient(GradContext& g) { g.add("x", apply("dropout", out_grad(g), operand(g, "rng"), g.attrs())); }

std::optional<ChunkCall> dropout_chunk(const OpCall& call, Chunk chunk) {
  return with_chunk_of_draws(cut_operands(call, {"x"}), call["x"].elements(), chunk);
}

// Where a part is a run of elements, which draws a run of numbers.
std::optional<DividedCall> dropout_divide(const OpCall& call, llvm::ArrayRef<Type>, const CutAt& known, int64_t ranks) {
  const Type& x = call["x"];
  const bool is_x = known.side == CutAt::Side::Result || known.index == 0;
  if (!is_x || known.cut.blocks.size() > 1 || x.elements() == 0) return std::nullopt;
  if (element_count(llvm::ArrayRef<int64_t>(x.shape).take_front(known.cut.dim)) > 1) return std::nullopt;
  if (is_channels_last(call.attrs) && known.cut.dim > 0) return std::nullopt;
  const auto dim = static_cast<size_t>(known.cut.dim);
  const int64_t own = x.elements() / x.shape[dim] * part_size(known.cut, ranks);
  std::optional<DividedCall> made = with_draws_of_part({{known.cut, std::nullopt}, {known.cut}, call.attrs}, own);
  if (made) made->may_be_uneven = true;
  return made;
}

SampleOperand rng_sample(int64_t step) {
  return samples::values({2}, {1234567, static_cast<double>(step)}, DType::I64);
}

std::vector<Sample> dropout_samples() {
  using namespace samples;
  return {{{normal({3, 5}), rng_sample(0)}, {{"ratio", 0.4}, {"id", 3}}},
          {{normal({4}), rng_sample(7)}, {{"ratio", 0.0}, {"id", 0}}},
          {{normal({4, 6}), rng_sample(2)}, {{"ratio", 0.5}, {"id", 3}, {"first_draw", 12}}},
          {{normal({2, 2}), rng_sample(7)}, {{"ratio", 1.0}, {"id", 1}}},
          {{normal({2, 4, 4, 16}), rng_sample(3)}, {{"ratio", 0.3}, {"id", 5}, {"channels_last", 1}}},
          {{normal({3, 2, 8, 8}, DType::BF16), rng_sample(3)},
           {{"ratio", 0.5}, {"id", 5}, {"channels_last", 1}, {"first_draw", 8}}},
          {{normal({2, 3, 5}), rng_sample(3)}, {{"ratio", 0.5}, {"id", 2}, {"channels_last", 1}, {"first_draw", 4}}}};
}

// A round of Philox for each element counts as one.
double dropout_flops(const OpCall&, llvm::ArrayRef<Type> results) {
  return static_cast<double>(DropoutRule::rounds * results[0].elements());
}

// ---- random_uniform, random_normal ----

Result<Types> infer_random(const OpCall& call) {
  if (Status s = need_rng(call)) return s;
  DType dtype = call.attrs.get_dtype("dtype");
  if (!is_float(dtype)) return model_error("dtype is " + dtype_name(dtype) + ", it must be a float");
  for (int64_t dim : call.get_ints("shape"))
    if (dim < 0) return model_error("shape has the negative dimension " + llvm::Twine(dim));
  return one_result(dtype, call.get_ints("shape"));
}

void uniform_reference(const ReferenceCall& call) {
  const TensorView& y = call.out("y");
  RandomStream stream = stream_of(call);
  double low = call.get_float("low"), high = call.get_float("high");
  for (int64_t i = 0; i < y.elements(); ++i) y.set(i, low + (high - low) * stream.uniform(i));
}

void normal_reference(const ReferenceCall& call) {
  const TensorView& y = call.out("y");
  RandomStream stream = stream_of(call);
  double mean = call.get_float("mean"), scale = call.get_float("scale");
  for (int64_t i = 0; i < y.elements(); ++i) y.set(i, mean + scale * stream.normal(i));
}

Sample random_sample(Ints shape, DType dtype, llvm::StringRef first, llvm::StringRef second) {
  Attrs attrs{{"shape", std::move(shape)}, {"dtype", dtype}, {"id", 2}};
  attrs.set(first, -0.5);
  attrs.set(second, 2.0);
  return {{rng_sample(1)}, attrs};
}

constexpr AttrSpecs random_attrs{{"shape", AttrKind::Ints}, {"dtype", AttrKind::DType}, {"id", AttrKind::Int}};

double ten_integer_rounds(const OpCall&, llvm::ArrayRef<Type> results) {
  return 10 * static_cast<double>(results[0].elements());
}

constexpr OpDef random_op(llvm::StringLiteral name, llvm::StringLiteral summary, AttrSpec first, AttrSpec second,
                          ReferenceFn reference, SamplesFn samples) {
  return {.name = name,
          .summary = summary,
          .operands = {"rng"},
          .attrs = random_attrs.with({first, second}),
          .infer = infer_random,
          .gradient = Gradient::zero(),
          .flops = ten_integer_rounds,
          .reference = reference,
          .samples = samples};
}

}  // namespace

constinit const OpDef op_dropout{
    .name = "dropout",
    .summary =
        "x / (1 - ratio) where the random number of {id} is at least {ratio}, rounded to 16 bits, else 0; "
        "rng = (seed, step); of the node's numbers those from {first_draw} on; with {channels_last} elements "
        "[N, spatial..., C] draw in the order of [N, C, spatial...]",
    .operands = {"x", "rng"},
    .attrs = {{"ratio", AttrKind::Float},
              {"id", AttrKind::Int},
              first_draw_attr,
              draws_per_rank_attr,
              draws_per_part_attr,
              channels_last_attr},
    .infer = infer_dropout,
    .gradient = Gradient::rule(dropout_gradient),
    .dim_order = DimOrder::ChannelsLast,
    .in_place = {{"y", "x"}},
    .flops = dropout_flops,
    .chunk = dropout_chunk,
    .divide = dropout_divide,
    .linear = {"x"},
    .reference = dropout_reference,
    .samples = dropout_samples,
};

constinit const OpDef op_random_uniform =
    random_op("random_uniform", "random numbers in [{low}, {high}) of {shape} and {dtype}; rng = (seed, step) {id}",
              {"low", AttrKind::Float}, {"high", AttrKind::Float}, uniform_reference, [] {
                return std::vector<Sample>{random_sample({3, 5}, DType::F32, "low", "high"),
                                           random_sample({}, DType::BF16, "low", "high")};
              });

constinit const OpDef op_random_normal =
    random_op("random_normal",
              "normal random numbers with {mean} and deviation {scale} of {shape} and {dtype}; rng = (seed, step) {id}",
              {"mean", AttrKind::Float}, {"scale", AttrKind::Float}, normal_reference, [] {
                return std::vector<Sample>{random_sample({3, 5}, DType::F32, "mean", "scale"),
                                           random_sample({6}, DType::F64, "mean", "scale")};
              });

}  // namespace plimsoll
