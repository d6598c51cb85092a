#include "ir/f8_scales.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

#include <map>

// Gives the products that mark-f8 chose their 8-bit operands: a scale and codes of each operand, and a product of
// codes.
//
// Matrix units sum along the dimension that lies last in both operands. Forward (y = x w^T) reads x and w as layers
// have them, the input's gradient (dx = dy w) wants w's transpose, the weight's gradient (dw = dy^T x) those of dy and
// x. Codes are therefore made in both layouts where both are read, in one pass over the 16-bit value and where it is
// read first. Between forward and backward the codes wait instead of the value, unless something else reads it.
//
// With one scale a tensor it is of the rows that a product sees: those of a chunk of the batch and of a rank. Since
// scales are powers of two, another scale rounds the same numbers alike but for those below the smallest normal code.
//
// With scales of rows, or of blocks in rows, a layout has scales of its own, and each sum runs along rows on both
// sides: forward and the input's gradient share none between samples, the weight's gradient has those of columns of the
// batch. Of blocks a weight has tiles, whose scales are those of the transpose as well. Products with sizes that are no
// whole blocks have scales of rows, and a frozen weight that is stored with one scale has one on the other side too.
//
// A frozen weight that is stored as codes with one scale (quantize-weights{one-scale=1}) is read as it is stored; only
// the gradient of its input wants it turned. A step makes that transpose each time, or up to {turned-bytes} it is a
// state as well: a byte a weight more, and no transpose in the step.
//
// Where an elementwise op makes the value, its largest size is a reduction that fuse-elementwise takes into that op.
//
// Operands with sizes that are not multiples of 16 stay as they are, since the matrix units do not take them. It is
// right up to rounding: codes times their scale are the value, and sums are of f32.

namespace plimsoll {
namespace {

constexpr int64_t needed_multiple = 16;

// What is read of a value as codes of one type. A single scale is that of both layouts.
struct Codes {
  bool rows = false, columns = false;
  NodeId first = NodeId::None;  // reader
  ValueId as_is = ValueId::None, scale = ValueId::None, turned = ValueId::None, turned_scale = ValueId::None;
};

enum class Product : uint8_t { Forward, InputGradient, WeightGradient };
constexpr llvm::StringLiteral product_names[] = {"forward products", "gradients of inputs", "gradients of weights"};

class Expander {
 public:
  Expander(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  bool run() {
    std::vector<NodeId> products;
    bool changed = false;
    for (NodeId id : graph_.order()) {
      if (!graph_.node(id).attrs.has("f8") || !is_product(graph_.node(id))) continue;
      changed = true;
      if (const std::string why = why_not(graph_.node(id)); why.empty())
        products.push_back(id);
      else
        leave(id, why);
    }
    find_sources(products);
    // What products read is known before any of them has another result.
    std::vector<Sides> sides;
    for (NodeId id : products) {
      sides.push_back(sides_of(graph_.node(id), scales_for(id)));
      note_needs(sides.back(), id);
    }
    for (size_t i = 0; i < products.size(); ++i) expand(products[i], sides[i]);
    for (const auto& [what, count] : made_)
      context_.decide(product_names[static_cast<size_t>(what.first)], what.second,
                      std::to_string(count) + (count == 1 ? " product" : " products") + " of 8-bit operands");
    decide_left("not fp8", left_);
    decide_left("scales of rows", without_blocks_);
    decide_left("one scale", with_one_scale_);
    context_.count("products", static_cast<int64_t>(products.size()));
    context_.count("states", static_cast<int64_t>(turned_states_.size()));
    return changed;
  }

 private:
  struct Key {
    ValueId value;
    DType codes;
    F8Scales scales;
    auto operator<=>(const Key&) const = default;
  };
  // An operand of a product: which codes of which value.
  struct Side {
    Key key;
    bool turned;
  };
  struct Sides {
    Side x, w;  // as linear_f8 has them
  };
  // A frozen weight's codes with one scale, which products read as they are.
  struct Packed {
    ValueId codes, scale;
    bool transposed;  // the model's weight is their transpose
  };

  static bool is_product(const Node& node) { return node.op->name == "linear" || node.op->name == "linear_dw"; }

  static Product kind_of(const Node& node) {
    if (node.op->name == "linear_dw") return Product::WeightGradient;
    return node.phase == Phase::Backward ? Product::InputGradient : Product::Forward;
  }

  std::string why_not(const Node& node) const {
    if (node.op->name == "linear_dw" && (node.results.size() > 1 || node.attrs.has("columns")))
      return "it sums a bias as well, or a part of the columns";
    return size_that_does_not_suit(node, needed_multiple);
  }

  // Which of the product's sizes is no multiple of that; empty where all are.
  std::string size_that_does_not_suit(const Node& node, int64_t multiple) const {
    const auto check = [&](llvm::StringRef what, int64_t size) {
      return size % multiple == 0
                 ? ""
                 : (what + " are " + llvm::Twine(size) + ", no multiple of " + llvm::Twine(multiple)).str();
    };
    const Type &x = graph_.type(node.operands[0]), &other = graph_.type(node.operands[1]);
    const bool is_weight_gradient = node.op->name == "linear_dw";
    const int64_t rows = x.shape.back() == 0 ? 0 : x.elements() / x.shape.back();
    const int64_t columns = is_weight_gradient ? other.shape.back() : graph_.type(node.results[0]).shape.back();
    for (const std::string& why : {check("rows", rows), check("inputs", x.shape.back()), check("outputs", columns)})
      if (!why.empty()) return why;
    return "";
  }

  struct Left {
    int64_t count = 0;
    std::string name;
  };
  using LeftBy = std::map<std::pair<Product, std::string>, Left>;  // by the reason

  void note_left(LeftBy& left, const Node& node, const std::string& why) {
    auto [at, is_new] = left.insert({{kind_of(node), why}, {}});
    if (is_new) at->second.name = graph_.value(node.results[0]).name;
    ++at->second.count;
  }

  void decide_left(llvm::StringRef choice, const LeftBy& all) {
    for (const auto& [what, left] : all)
      context_.decide(product_names[static_cast<size_t>(what.first)], choice,
                      std::to_string(left.count) + (left.count == 1 ? " product, " : " products, first ") + left.name +
                          ": " + what.second);
  }

  void leave(NodeId id, const std::string& why) {
    Node& node = graph_.node(id);
    note_left(left_, node, why);
    for (const char* mark : {"f8", "f8_grad", "f8_scales"}) node.attrs.erase(mark);
  }

  // What the product's operands have, of what mark-f8 wants them to have.
  F8Scales scales_for(NodeId id) {
    const Node& node = graph_.node(id);
    const F8Scales wanted = *parse_f8_scales(node.attrs.get_string("f8_scales", "tensor"));
    if (wanted == F8Scales::Tensor) return wanted;
    if (packed_.count(node.operands[1])) {
      note_left(with_one_scale_, node, "the frozen weight is stored with one");
      return F8Scales::Tensor;
    }
    if (wanted != F8Scales::Blocks) return wanted;
    const std::string why = size_that_does_not_suit(node, f8_block);
    if (why.empty()) return wanted;
    note_left(without_blocks_, node, why);
    return F8Scales::Rows;
  }

  // Codes are made of an f32 state itself where nothing but these products reads its 16-bit copy.
  void find_sources(llvm::ArrayRef<NodeId> products) {
    std::map<ValueId, size_t> readers;
    for (NodeId id : products)
      for (size_t i = 0; i < 2; ++i) ++readers[graph_.node(id).operands[i]];
    for (const auto& [value, count] : readers) {
      const Node* cast = producer_of(graph_, value, "cast");
      const bool is_copy = cast && graph_.find_state(cast->operands[0]) &&
                           graph_.type(cast->operands[0]).dtype == DType::F32 &&
                           graph_.value(value).users.size() == count;
      if (is_copy) sources_[value] = cast->operands[0];
      const Node* dequantize = producer_of(graph_, value, "dequantize");
      const bool is_packed = dequantize && dequantize->attrs.get_string("format") == "fp8" &&
                             graph_.type(operand_of(*dequantize, "scales")).elements() == 1;
      if (is_packed)
        packed_[value] = {operand_of(*dequantize, "codes"), operand_of(*dequantize, "scales"),
                          dequantize->attrs.get_int("transposed", 0) != 0};
    }
  }

  Side side(ValueId value, DType codes, F8Scales scales, bool turned) const {
    const auto source = sources_.find(value);
    return {{source == sources_.end() ? value : source->second, codes, scales}, turned};
  }

  Sides sides_of(const Node& node, F8Scales scales) const {
    const DType codes = node.attrs.get_dtype("f8");
    const bool transpose_w = node.attrs.get_int("transpose_w", 0) != 0;
    if (node.op->name == "linear")
      return {side(operand_of(node, "x"), codes, scales, false),
              side(operand_of(node, "w"), DType::F8E4M3, scales == F8Scales::Blocks ? F8Scales::Tiles : scales,
                   !transpose_w)};
    const Side x = side(operand_of(node, "x"), DType::F8E4M3, scales, true),
               dy = side(operand_of(node, "dy"), codes, scales, true);
    return transpose_w ? Sides{dy, x} : Sides{x, dy};
  }

  void note_needs(const Sides& sides, NodeId id) {
    for (const Side& side : {sides.x, sides.w}) {
      Codes& codes = codes_[side.key];
      if (codes.first == NodeId::None) codes.first = id;
      (side.turned ? codes.columns : codes.rows) = true;
    }
  }

  void expand(NodeId id, const Sides& sides) {
    const Codes &x = codes_of(sides.x, id), &w = codes_of(sides.w, id);
    const Node& node = graph_.node(id);
    const Product kind = kind_of(node);
    const ValueId y = node.results[0],
                  bias = kind == Product::WeightGradient ? ValueId::None : operand_of(node, "bias");
    llvm::SmallVector<ValueId, 6> operands = {sides.x.turned ? x.turned : x.as_is, sides.w.turned ? w.turned : w.as_is,
                                              sides.x.turned ? x.turned_scale : x.scale,
                                              sides.w.turned ? w.turned_scale : w.scale};
    const ValueId addend = operand_of(node, "addend");
    if (bias != ValueId::None || addend != ValueId::None) operands.push_back(bias);
    if (addend != ValueId::None) operands.push_back(addend);
    Attrs attrs{{"dtype", graph_.type(y).dtype}};
    if (const auto packed = packed_.find(sides.w.key.value); packed != packed_.end() && !sides.w.turned) {
      attrs.set("packed", 1);
      if (packed->second.transposed) attrs.set("transposed", 1);
    }
    const bool has_blocks = sides.x.key.scales == F8Scales::Blocks;  // whose parts of a sum are added in f32
    if (kind == Product::Forward && !has_blocks) attrs.set("fast_sums", 1);
    std::string types = (dtype_name(sides.x.key.codes) + " x " + dtype_name(sides.w.key.codes)).str();
    if (sides.x.key.scales != F8Scales::Tensor) types += " by " + f8_scales_name(sides.x.key.scales).str();
    ++made_[{kind, types}];
    const ValueId made = builder_at(graph_, id).emit("linear_f8", operands, std::move(attrs));
    graph_.node(graph_.value(made).producer).reason = "fp8: operands are " + types;
    replace_and_rename(graph_, y, made);
    replaced_[y] = made;
    graph_.erase_node(id);
  }

  // What decides the scale. Of what an elementwise op makes it is a maximum that can be fused with that op, so that the
  // value is not read for it.
  ValueId largest_of(Builder& b, ValueId value) {
    NodeId producer = graph_.value(value).producer;
    while (producer != NodeId::None && graph_.node(producer).op->is_view()) {
      value = operand_of(graph_.node(producer), graph_.node(producer).op->view_of);
      producer = graph_.value(value).producer;
    }
    if (producer == NodeId::None || !graph_.node(producer).op->elementwise) return value;
    if (graph_.node(producer).phase != b.phase) return value;
    Ints axes;
    for (int64_t axis = 0; axis < graph_.type(value).rank(); ++axis) axes.push_back(axis);
    return b.emit("reduce_max", {b.emit("abs", {value})}, {{"axes", axes}, {"keep_dims", 1}});
  }

  const Codes& codes_of(const Side& side, NodeId reader) {
    Codes& codes = codes_[side.key];
    if (const auto packed = packed_.find(side.key.value); packed != packed_.end()) {
      codes.scale = codes.turned_scale = packed->second.scale, codes.as_is = packed->second.codes;
      if (side.turned && codes.turned == ValueId::None) codes.turned = turned_codes(codes.as_is, reader);
      return codes;
    }
    if (codes.scale != ValueId::None || codes.turned_scale != ValueId::None) return codes;
    assert(codes.first == reader && "the first reader makes the codes");
    const DType dtype = side.key.codes;
    const F8Scales scales = side.key.scales;
    const auto replaced = replaced_.find(side.key.value);
    const ValueId value = replaced == replaced_.end() ? side.key.value : replaced->second;
    const std::string name = graph_.value(value).name + "." + dtype_name(dtype).str();
    Builder b = builder_at(graph_, reader);
    Attrs attrs{{"to", dtype}};
    std::vector<std::string> names;
    if (codes.rows) attrs.set("rows", 1), names.push_back(name);
    if (codes.columns) attrs.set("columns", 1), names.push_back(name + ".turned");
    llvm::SmallVector<ValueId, 4> made;
    if (scales == F8Scales::Tensor) {
      codes.scale = b.emit("f8_scale", {largest_of(b, value)}, {{"to", dtype}}, name + ".scale");
      codes.turned_scale = codes.scale;
      made = b.emit_all("to_f8", {value, codes.scale}, std::move(attrs), names);
    } else {
      attrs.set("by", f8_scales_name(scales).str());
      if (codes.rows) names.push_back(name + ".scales");
      if (codes.columns) names.push_back(name + ".turned_scales");
      made = b.emit_all("to_scaled_f8", {value}, std::move(attrs), names);
      if (codes.rows) codes.scale = made[made.size() / 2];
      if (codes.columns) codes.turned_scale = made.back();
    }
    if (codes.rows) codes.as_is = made.front();
    if (codes.columns) codes.turned = made[codes.rows ? 1 : 0];
    return codes;
  }

  // The transpose of a weight's codes. What ranks have pieces of is turned once they are gathered.
  ValueId turned_codes(ValueId codes, NodeId reader) {
    if (const auto known = turned_states_.find(codes); known != turned_states_.end()) return known->second;
    const State* state = graph_.find_state(codes);
    const Type type = graph_.type(codes);
    const bool may_be_state = state && state->divisions.empty();
    // Those that less room has are among those that more room has, so that more of it makes no step slower.
    if (may_be_state && turned_bytes_ + type.bytes() > context_.number("turned-bytes")) is_full_ = true;
    if (!may_be_state || is_full_) return builder_at(graph_, reader).transpose(codes, {1, 0});
    const OriginId origin = state->origin;
    const std::string name = graph_.value(codes).name;
    const ValueId turned = graph_.add_state(name + ".turned", Type(type.dtype, {type.shape[1], type.shape[0]}),
                                            StateRole::Parameter, {StateInit::Kind::TransposeOf, 0, name});
    graph_.states.back().origin = origin;
    turned_bytes_ += type.bytes();
    return turned_states_[codes] = turned;
  }

  Graph& graph_;
  PassContext& context_;
  std::map<ValueId, ValueId> sources_;
  std::map<ValueId, Packed> packed_;
  std::map<ValueId, ValueId> replaced_;  // results of products
  std::map<Key, Codes> codes_;
  std::map<ValueId, ValueId> turned_states_;  // by the state of a weight's codes
  int64_t turned_bytes_ = 0;
  bool is_full_ = false;
  std::map<std::pair<Product, std::string>, int64_t> made_;
  LeftBy left_, without_blocks_, with_one_scale_;
};

Result<bool> run_expand_f8(Graph& graph, PassContext& context) { return Expander(graph, context).run(); }

constexpr PassOption options[] = {
    {"turned-bytes", int64_t{0}, "up to so many bytes of codes of frozen weights have their transposes as states", 0},
};

}  // namespace

constinit const PassInfo pass_expand_f8{
    .name = "expand-f8",
    .summary = "make the 8-bit operands of products that mark-f8 chose",
    .keeps_result = false,
    .options = options,
    .run = run_expand_f8,
};

}  // namespace plimsoll
