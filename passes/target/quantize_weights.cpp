#include "ir/quantized_numbers.h"
#include "ir/support/regex_text.h"
#include "ir/support/units.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

// Frozen matrices that only linear layers read are stored as codes of 4 or 8 bits with a scale for each block or row,
// and each reader gets a dequantize of its own. The state of the weight becomes that of its codes; scales are new
// states whose names are those of bitsandbytes' files. Whoever loads the weight makes them of its numbers
// (runtime/packed_weights.h).
//
// Codes stand for the matrix as [outputs, inputs], however the model's file has it, since blocks run along its rows: a
// reader's transpose_w changes with it. Left as they are: trained weights, embeddings, biases and norms, the layer that
// makes the scores of a loss over classes, weights with other readers, and those that {skip} names.

namespace plimsoll {
namespace {

constexpr int64_t block_of_4_bits = 64;

struct Format {
  std::string name;  // of the op
  bool has_quantised_scales = false;
  bool has_one_scale = false;
};

class Quantizer {
 public:
  Quantizer(Graph& graph, const Format& format, const std::vector<llvm::Regex>& skip)
      : graph_(graph), format_(format), skip_(skip) {
    for (const Output& output : graph.outputs) kept_.push_back(output.value);
    for (const Update& update : graph.updates) kept_.push_back(update.state);
  }

  int64_t weights = 0, numbers = 0, bytes_before = 0, bytes_after = 0;

  void run() {
    const size_t count = graph_.states.size();  // those that are added are parts of these
    for (size_t i = 0; i < count; ++i)
      if (may_quantise(graph_.states[i])) quantise(i);
  }

 private:
  bool may_quantise(const State& state) const {
    const Type& type = graph_.type(state.value);
    if (state.role != StateRole::Parameter || state.trained || type.rank() != 2) return false;
    if (type.dtype != DType::F32 && !(is_16_bit_float(type.dtype) && dtype_bytes(type.dtype) == 2)) return false;
    const Value& value = graph_.value(state.value);
    if (value.users.empty() || llvm::is_contained(kept_, state.value)) return false;
    if (llvm::any_of(skip_, [&](const llvm::Regex& regex) { return regex.match(value.name); })) return false;
    return llvm::all_of(value.users, [&](NodeId user) {
      const Node& node = graph_.node(user);
      if (llvm::count(node.operands, state.value) != 1) return false;
      if (node.op->name == "dora_scale") return node.operands[0] == state.value;
      return node.op->name == "linear" && node.operands[1] == state.value && !makes_scores(graph_, node.results[0]);
    });
  }

  void quantise(size_t index) {
    const ValueId weight = graph_.states[index].value;
    const Type type = graph_.type(weight);
    const std::string name = graph_.value(weight).name, source = graph_.states[index].init.source;
    const bool transposed = graph_.node(graph_.value(weight).users.front()).attrs.get_int("transpose_w") == 0;
    Shape shape = type.shape;
    if (transposed) std::swap(shape[0], shape[1]);
    const bool has_4_bits = format_.name == "nf4" || format_.name == "int4";
    const int64_t count = element_count(shape),
                  block = has_4_bits              ? block_of_4_bits
                          : format_.has_one_scale ? count
                                                  : shape[1],
                  blocks = (count + block - 1) / block;
    const llvm::SmallVector<NodeId, 2> readers = graph_.value(weight).users;

    const auto part = [&](llvm::StringRef suffix, const Type& part_type) {
      bytes_after += part_type.bytes();
      return graph_.add_state(name + suffix.str(), part_type, StateRole::Parameter,
                              {StateInit::Kind::Weights, 0, source + suffix.str()});
    };
    llvm::SmallVector<ValueId, 4> operands{weight};
    if (format_.has_quantised_scales) {
      operands.push_back(part(".absmax", Type(DType::U8, {blocks})));
      operands.push_back(
          part(".nested_absmax", Type(DType::F32, {(blocks + scales_per_block - 1) / scales_per_block})));
      operands.push_back(part(".nested_offset", Type(DType::F32, {1})));
    } else {
      operands.push_back(part(".absmax", Type(DType::F32, {blocks})));
    }
    const Type codes = has_4_bits ? Type(DType::U8, {(count + 1) / 2, 1})
                                  : Type(format_.name == "int8" ? DType::I8 : DType::F8E4M3, shape);
    graph_.set_type(weight, codes);
    bytes_after += codes.bytes(), bytes_before += type.bytes(), numbers += count, ++weights;

    Attrs attrs{
        {"format", format_.name}, {"block", block}, {"shape", Ints(shape.begin(), shape.end())}, {"dtype", type.dtype}};
    if (transposed) attrs.set("transposed", 1);
    for (NodeId reader : readers) {
      const ValueId whole = builder_at(graph_, reader).emit("dequantize", operands, attrs, name + ".dequantized");
      graph_.set_operand(reader, graph_.node(reader).op->name == "linear" ? 1 : 0, whole);
      if (transposed) {
        Attrs& own = graph_.node(reader).attrs;
        own.set("transpose_w", int64_t{own.get_int("transpose_w") == 0});
      }
    }
  }

  Graph& graph_;
  const Format& format_;
  const std::vector<llvm::Regex>& skip_;
  llvm::SmallVector<ValueId, 8> kept_;
};

Result<bool> run_quantize_weights(Graph& graph, PassContext& context) {
  std::string name = context.text("format");
  const bool single = name == "nf4-single";
  if (single) name = "nf4";
  if (name != "nf4" && name != "int4" && name != "int8" && name != "fp8")
    return usage_error("format=" + name + ": expected nf4, nf4-single, int4, int8 or fp8");
  std::vector<llvm::Regex> skip;
  llvm::SmallVector<llvm::StringRef, 4> patterns;
  const std::string text = context.text("skip");
  llvm::StringRef(text).split(patterns, ' ', -1, false);
  for (llvm::StringRef pattern : patterns) {
    Result<llvm::Regex> regex = parse_regex(pattern);
    if (!regex) return regex.takeError();
    skip.push_back(std::move(*regex));
  }
  const bool has_one_scale = context.number("one-scale") != 0;
  if (has_one_scale && name != "fp8") return usage_error("one-scale=1: only fp8 has one scale for a whole weight");
  const Format format{name, name == "nf4" && !single, has_one_scale};
  Quantizer quantizer(graph, format, skip);
  quantizer.run();
  if (quantizer.weights == 0)
    return model_error("no frozen matrix is read by linear layers alone, so none can be quantised");
  context.count("weights", quantizer.weights);
  context.decide("frozen weights", context.text("format"),
                 std::to_string(quantizer.weights) + " matrices of linear layers with " +
                     format_count(quantizer.numbers) + " numbers take " + format_bytes(quantizer.bytes_after) +
                     " instead of " + format_bytes(quantizer.bytes_before));
  return true;
}

constexpr PassOption options[] = {
    {"format", "nf4",
     "nf4 (4 bits, scales in 8), nf4-single (scales in f32), int4, int8 or fp8 (a scale for each row)"},
    {"one-scale", int64_t{0}, "1: of fp8, a scale for a whole weight, so that products of 8-bit floats read its codes",
     0, 1},
    {"skip", "", "regular expressions over names of weights that stay as they are, with spaces between"},
};

}  // namespace

constinit const PassInfo pass_quantize_weights{
    .name = "quantize-weights",
    .summary = "store frozen matrices of linear layers in 4 or 8 bits",
    .stage = Stage::Forward,
    .keeps_result = false,
    .options = options,
    .run = run_quantize_weights,
};

}  // namespace plimsoll
