#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/importer.h"

// Imports operators that draw random numbers. Each reads the counter state and has its own number, so a step always
// draws the same numbers and no two nodes draw the same. The seed attribute of a node is not used.

namespace plimsoll {
namespace {

struct Draw {
  ValueId counter;
  int64_t id;
};

Draw next_draw(NodeContext& n) { return {n.importer().random_counter(), n.importer().next_random_id()}; }

// The mask is the same draw applied to ones.
void emit_dropout(NodeContext& n, double ratio) {
  ValueId x = n.input(0);
  if (ratio < 0 || ratio >= 1) n.fail("the ratio is " + std::to_string(ratio) + ", it must be at least 0 and below 1");
  if (n.failed()) return;
  Draw draw = next_draw(n);
  Attrs attrs{{"ratio", ratio}, {"id", draw.id}};
  n.output(0, n.emit("dropout", {x, draw.counter}, attrs));
  if (!n.wants(1)) return;
  ValueId ones = n.expand(n.scalar(1, n.type(x).dtype), n.shape(x));
  ValueId kept = n.emit("dropout", {ones, draw.counter}, attrs);
  n.output(1, n.emit("greater", {kept, n.scalar(0, n.type(x).dtype)}));
}

void keep_all(NodeContext& n) {
  ValueId x = n.input(0);
  n.output(0, x);
  if (n.wants(1)) n.output(1, n.expand(n.constant_value(Tensor::scalar(1, DType::Bool)), n.shape(x)));
}

// The ratio is an attribute, and the node does not say whether this is training.
void import_dropout_attribute(NodeContext& n) {
  double ratio = n.attr_float("ratio", 0.5);
  if (n.options().training && ratio > 0) return emit_dropout(n, ratio);
  keep_all(n);
}

void import_dropout(NodeContext& n) {
  Floats ratio = n.has(1) ? n.known_floats(1, "ratio") : Floats{0.5};
  bool training = n.options().training || (n.has(2) && n.known_int(2, "training_mode") != 0);
  if (n.failed()) return;
  if (ratio.size() != 1) return n.fail("its ratio has " + llvm::Twine(ratio.size()) + " elements, not one");
  if (training && ratio.front() > 0) return emit_dropout(n, ratio.front());
  keep_all(n);
}

ValueId uniform(NodeContext& n, llvm::ArrayRef<int64_t> shape, DType dtype, double low, double high) {
  Draw draw = next_draw(n);
  return n.emit(
      "random_uniform", {draw.counter},
      {{"shape", Ints(shape.begin(), shape.end())}, {"dtype", dtype}, {"low", low}, {"high", high}, {"id", draw.id}});
}

void emit_random(NodeContext& n, llvm::ArrayRef<int64_t> shape, DType dtype) {
  if (n.target() == "random_uniform")
    return n.output(0, uniform(n, shape, dtype, n.attr_float("low", 0), n.attr_float("high", 1)));
  Draw draw = next_draw(n);
  n.output(0, n.emit("random_normal", {draw.counter},
                     {{"shape", Ints(shape.begin(), shape.end())},
                      {"dtype", dtype},
                      {"mean", n.attr_float("mean", 0)},
                      {"scale", n.attr_float("scale", 1)},
                      {"id", draw.id}}));
}

void import_random(NodeContext& n) { emit_random(n, n.attr_ints("shape"), n.attr_dtype("dtype", DType::F32)); }

void import_random_like(NodeContext& n) {
  const Type like = n.type(n.input(0));
  emit_random(n, like.shape, n.attr_dtype("dtype", like.dtype));
}

// The result is 1 where a uniform number is below the probability.
void import_bernoulli(NodeContext& n) {
  ValueId p = n.input(0);
  const Type type = n.type(p);
  ValueId drawn = uniform(n, type.shape, type.dtype, 0, 1);
  n.output(0, n.cast(n.emit("less", {drawn, p}), n.attr_dtype("dtype", type.dtype)));
}

constexpr ImportRow random_table[] = {
    {"Bernoulli", 15, import_bernoulli},
    {"Dropout", 7, import_dropout_attribute},
    {"Dropout", 12, import_dropout},
    {"RandomNormal", 1, import_random, "random_normal"},
    {"RandomNormalLike", 1, import_random_like, "random_normal"},
    {"RandomUniform", 1, import_random, "random_uniform"},
    {"RandomUniformLike", 1, import_random_like, "random_uniform"},
};

}  // namespace

llvm::ArrayRef<ImportRow> random_rows() { return random_table; }

}  // namespace plimsoll
