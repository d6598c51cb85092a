#include "passes/target/pad_heads.h"

#include "ir/support/align.h"
#include "passes/rewrite/patterns.h"

// Attention of 16-bit heads that end within a 16-byte word, such as those of 196 or 50 elements, works on heads that
// are padded with zeros: kernels for the matrix units copy rows of whole words beside computing, and others element by
// element. Zeros behind q and k add nothing to a product, and those behind v make zeros behind y, which are cut off.
// The scale is an attribute and stays.
//
// Heads of few rows and columns that are whole words of 8 bytes stay as they are: their kernel reads these, and copies
// would take longer than it does.

namespace plimsoll {
namespace {

constexpr int64_t short_word = 4;  // elements of 8 bytes

class HeadPadder {
 public:
  HeadPadder(int64_t multiple, int64_t few_rows) : multiple_(multiple), few_rows_(few_rows) {}

  bool pad(Graph& graph, NodeId id) const {
    const Node node = graph.node(id);  // a copy: making nodes moves nodes
    const ValueId y = node.results[0];
    const Type q = graph.type(operand_of(node, "q")), y_type = graph.type(y);
    if (!is_16_bit_float(q.dtype)) return false;
    const int64_t heads = node.attrs.get_int("heads"), kv_heads = node.attrs.get_int("kv_heads");
    const bool packed = node.attrs.get_int("packed") != 0;
    const int64_t q_heads = packed ? heads + 2 * kv_heads : heads;
    const int64_t depth = q.shape[2] / q_heads, value_depth = y_type.shape[2] / heads;
    const int64_t rows = q.shape[1], columns = packed ? rows : graph.type(operand_of(node, "k")).shape[1];
    if (depth % multiple_ == 0 && value_depth % multiple_ == 0) return false;
    const bool is_read_whole = depth == value_depth && depth % short_word == 0 && heads == kv_heads;
    if (is_read_whole && rows <= few_rows_ && columns <= few_rows_) return false;
    Builder b = builder_at(graph, id);
    llvm::SmallVector<ValueId, 8> operands(node.operands.begin(), node.operands.end());
    const auto lengthen = [&](llvm::StringRef name, int64_t count, int64_t of_head) {
      ValueId& operand = operands[node.op->operand(name)];
      operand = resized(b, operand, count, align_up(of_head, multiple_) - of_head, ".padded");
    };
    lengthen("q", q_heads, depth);
    if (!packed) {
      lengthen("k", kv_heads, depth);
      lengthen("v", kv_heads, value_depth);
    }
    const llvm::SmallVector<ValueId, 4> made = b.emit_all("attention", operands, node.attrs);
    const ValueId cut = resized(b, made[0], heads, value_depth - align_up(value_depth, multiple_), ".cut");
    replace_and_rename(graph, y, cut);
    replace_and_rename(graph, node.results[1], made[1]);
    graph.erase_node(id);
    return true;
  }

 private:
  // Each of `count` heads side by side gets so many elements more, or less.
  static ValueId resized(Builder& b, ValueId value, int64_t count, int64_t more, llvm::StringRef suffix) {
    if (more == 0) return value;
    const Shape shape = b.type(value).shape;
    const int64_t of_head = shape[2] / count;
    const std::string name = b.graph().value(value).name + suffix.str();
    const ValueId made = b.emit("pad", {b.reshape(value, {shape[0], shape[1], count, of_head})},
                                {{"before", Ints{0, 0, 0, 0}}, {"after", Ints{0, 0, 0, more}}}, name);
    return b.reshape(made, {shape[0], shape[1], count * (of_head + more)});
  }

  int64_t multiple_, few_rows_;
};

}  // namespace

bool pad_heads(Graph& graph, PassContext& context, int64_t multiple, int64_t few_rows) {
  const HeadPadder padder(multiple, few_rows);
  return apply_patterns(graph, context,
                        {{"attention", "heads", [&](Graph&, NodeId id) { return padder.pad(graph, id); }}});
}

}  // namespace plimsoll
