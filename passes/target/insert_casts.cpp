#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"
#include "passes/target/precision_rules.h"

#include <algorithm>
#include <cmath>

// Mixed precision: casts let a forward graph exported in f32 compute in {to} where its op records allow it. Parameters
// stay f32 states, the masters, and autodiff casts their gradients back.
//
// One walk visits operands before readers. A node's precision depends on its record's class and on its operands:
// - Low (matmuls, convolutions, attention): operands are narrowed.
// - Follow: operands are narrowed, unless one is wide; then the node computes in f32. An op that reads stored values
//   alone, such as a lookup in a table, stays f32, and its result is narrowed: it has fewer elements and exact
//   gradients.
// - Full: f32. Where the record can read 16 bits and round to f32 itself ({dtype}), it does; no f32 copy is made.
// As few operands are narrowed as inference asks for, so a norm keeps its f32 scale and attention its f32 mask. Values
// that depend on no parameter (positions, masks, tables of angles) are not touched: narrowing them gains nothing, and
// positions above 256 do not survive bf16. For the same reason what becomes an index, as the coordinates at which an
// image is sampled do, is computed in f32 from the last product on, and so is what a logarithm is taken of: a
// probability near 1 would round to 1. But a choice between constants that 16 bits hold, such as a mask of 0 and
// -3.4e38, does not widen what it is added to: it is made once more in 16 bits.
//
// It is right because each op means the same function in every float dtype, and a cast only rounds. Every update and
// output keeps its type.

namespace plimsoll {
namespace {

// Decides which side is cast where an f32 value meets a 16-bit one in an op that wants equal dtypes.
enum class Kind : uint8_t {
  Stored,  // a state or constant: narrowed
  Free,    // f32 because nothing made it 16-bit: narrowed
  Wide,    // data, or the result of a Full op: the other is widened
};

struct Facts {
  Kind kind = Kind::Free;
  bool parametric = false;  // depends on a parameter
  bool fed = false;         // depends on an input
  bool factor = false;      // of DoRA, made of parameters: what it multiplies in f32 may be narrowed behind it
};

class CastInserter {
 public:
  CastInserter(Graph& graph, DType narrow, llvm::ArrayRef<PrecisionRule> rules, PassContext& context)
      : graph_(graph), narrow_(narrow), rules_(rules), context_(context), facts_(graph.value_count()) {
    for (const State& state : graph.states)
      facts_[index_of(state.value)] = {Kind::Stored, state.role == StateRole::Parameter, false};
    for (ValueId input : graph.inputs) facts_[index_of(input)] = {Kind::Wide, false, true};
  }

  Result<bool> run() {
    find_exact();
    for (NodeId id : graph_.order())
      if (Status s = visit(id)) return s;
    restore_boundary();
    for (const auto& [what, nodes] : summary_)
      context_.decide(what.first, what.second,
                      std::to_string(nodes.count) + (nodes.count == 1 ? " node: " : " nodes: ") + nodes.why);
    context_.count("casts", casts_);
    return casts_ > 0 || retyped_;
  }

 private:
  // ---- The precision of a node ----

  Status visit(NodeId id) {
    const Node& node = graph_.node(id);
    Facts facts = facts_of(node);
    if (node.op->name == "constant") facts.kind = Kind::Stored;
    if (!facts.parametric) {
      if (is_narrow_choice(node)) facts.kind = Kind::Free;
      set_facts(id, facts);
      return Status::success();
    }
    const PrecisionRule* rule = find_rule(rules_, graph_, node);
    if (rule && rule->dtype != DType::F8E4M3) return apply_rule(id, *rule, facts);  // those of fp8 are for mark-f8
    if (is_exact(id)) return full(id, facts);
    switch (node.op->precision) {
      case Precision::Low: return narrow(id, facts, "gains from 16-bit operands");
      case Precision::Follow: return follow(id, facts);
      case Precision::Full: return full(id, facts);
    }
    return Status::success();
  }

  // Marks what floats that are cast to integers, say where an image is sampled, or have their logarithm taken are made
  // of, up to the products that make them.
  void find_exact() {
    exact_.resize(graph_.value_count());
    const std::vector<NodeId> order = graph_.order();
    for (auto at = order.rbegin(); at != order.rend(); ++at) {
      const Node& node = graph_.node(*at);
      const DType made = graph_.type(node.results[0]).dtype;
      if (!node.op->exact.empty()) exact_[index_of(operand_of(node, node.op->exact))] = true;
      const bool makes_index = node.op->name == "cast" && !is_float(made) && made != DType::Bool;
      if (!makes_index && !(is_exact(*at) && node.op->precision == Precision::Follow)) continue;
      for (ValueId operand : float_operands(*at)) exact_[index_of(operand)] = true;
    }
  }
  bool is_exact(NodeId id) const {
    const Node& node = graph_.node(id);
    return node.op->precision == Precision::Follow &&
           llvm::any_of(node.results, [&](ValueId result) { return exact_[index_of(result)]; });
  }

  // The facts before any decision: nodes that depend on an input are wide.
  Facts facts_of(const Node& node) const {
    Facts facts;
    bool makes_factor = false;
    for (ValueId operand : node.operands) {
      if (operand == ValueId::None) continue;
      facts.parametric |= facts_[index_of(operand)].parametric;
      facts.fed |= facts_[index_of(operand)].fed;
      makes_factor |= facts_[index_of(operand)].factor;
    }
    facts.kind = facts.fed ? Kind::Wide : Kind::Free;
    facts.factor = node.op->name == "dora_scale" || (makes_factor && !facts.fed);
    return facts;
  }

  Status apply_rule(NodeId id, const PrecisionRule& rule, Facts facts) {
    const std::string subject = graph_.value(graph_.node(id).results[0]).name;
    context_.decide(subject, dtype_name(rule.dtype), "rule: " + rule.text);
    facts.kind = Kind::Free;  // readers may be narrowed again
    return rule.dtype == DType::F32 ? widen(id, facts, "a rule") : narrow(id, facts, "a rule");
  }

  Status follow(NodeId id, Facts facts) {
    bool any_wide = false, wants_wide = false, all_stored = true, any = false;
    for (ValueId operand : float_operands(id)) {
      const bool is_f32 = graph_.type(operand).dtype == DType::F32;
      any = true;
      any_wide |= is_f32 && facts_[index_of(operand)].kind == Kind::Wide;
      wants_wide |= is_f32 && facts_[index_of(operand)].kind == Kind::Wide && !facts_[index_of(operand)].factor;
      all_stored &= is_f32 && facts_[index_of(operand)].kind == Kind::Stored;
    }
    if (any && all_stored) {
      facts.kind = Kind::Free;
      return keep(id, facts, "reads stored values alone");
    }
    if (!any_wide) return narrow(id, facts, "follows its operands");
    facts.kind = wants_wide || facts.factor ? Kind::Wide : Kind::Free;
    if (infer(id, {})) return keep(id, facts, "reads both");
    return widen(id, facts, "follows an f32 operand");
  }

  Status full(NodeId id, Facts facts) {
    facts.kind = Kind::Wide;
    if (rounds_to_f32(id)) return keep(id, facts, "wants f32 and reads 16 bits");
    return widen(id, facts, "wants f32");
  }

  // ---- Carrying it out ----

  // Narrows operands from the first on until inference gives a 16-bit result. Where it never does, the node computes in
  // f32.
  Status narrow(NodeId id, Facts facts, llvm::StringRef why) {
    facts.kind = Kind::Wide;  // of f32 results beside a 16-bit one: statistics and losses
    llvm::SmallVector<size_t, 4> chosen;
    const size_t count = graph_.node(id).operands.size();
    for (size_t next = 0;; ++next) {
      std::optional<Types> types = infer(id, chosen);
      if (types && has_narrow(*types)) {
        for (size_t operand : chosen) cast_operand(id, operand, narrow_);
        return finish(id, *types, facts, why);
      }
      while (next < count && !is_operand_of(id, next, DType::F32)) ++next;
      if (next == count) break;
      chosen.push_back(next);
    }
    if (infer(id, {})) return keep(id, facts, "has no 16-bit result");
    facts.kind = Kind::Free;
    return widen(id, facts, "takes no 16-bit operands");
  }

  Status widen(NodeId id, Facts facts, llvm::StringRef why) {
    for (size_t i = 0; i < graph_.node(id).operands.size(); ++i)
      if (is_operand_of(id, i, narrow_)) cast_operand(id, i, DType::F32);
    return keep(id, facts, why);
  }

  // Makes a sum whose record takes {dtype} read 16 bits and give f32.
  bool rounds_to_f32(NodeId id) {
    if (!is_operand_of(id, 0, narrow_)) return false;
    const Attrs before = graph_.node(id).attrs;
    graph_.node(id).attrs.set("dtype", DType::F32);
    if (infer(id, {})) return true;
    graph_.node(id).attrs = before;
    return false;
  }

  Status keep(NodeId id, Facts facts, llvm::StringRef why) {
    std::optional<Types> types = infer(id, {});
    if (types) return finish(id, *types, facts, why);
    return model_error(graph_.value(graph_.node(id).results[0]).name + ": " + graph_.node(id).op->name +
                       " mixes dtypes that no cast to " + dtype_name(narrow_) + " or f32 brings together");
  }

  Status finish(NodeId id, const Types& types, Facts facts, llvm::StringRef why) {
    const Node& node = graph_.node(id);
    for (size_t r = 0; r < types.size(); ++r) {
      retyped_ |= graph_.type(node.results[r]) != types[r];
      graph_.set_type(node.results[r], types[r]);
    }
    if (is_float(types[0].dtype)) {
      Count& nodes = summary_[{node.op->name.str(), dtype_name(types[0].dtype).str()}];
      if (nodes.why.find(why.str()) == std::string::npos) nodes.why += (nodes.why.empty() ? "" : "; ") + why.str();
      ++nodes.count;
    }
    set_facts(id, facts);
    return Status::success();
  }

  void set_facts(NodeId id, Facts facts) {
    for (ValueId result : graph_.node(id).results) {
      if (facts_.size() <= index_of(result)) facts_.resize(graph_.value_count());
      facts_[index_of(result)] = facts;
    }
  }

  // Casts outputs and next values of states back to the types they had.
  void restore_boundary() {
    Builder b(graph_);
    for (Output& output : graph_.outputs)
      if (graph_.type(output.value).dtype == narrow_) output.value = widened(b, output.value);
    for (Update& update : graph_.updates)
      if (graph_.type(update.value).dtype != graph_.type(update.state).dtype) update.value = widened(b, update.value);
  }

  ValueId widened(Builder& b, ValueId value) {
    ++casts_;
    return b.emit("cast", {value}, {{"to", DType::F32}}, graph_.value(value).name + ".f32");
  }

  // ---- Operands ----

  llvm::SmallVector<ValueId, 4> float_operands(NodeId id) const {
    llvm::SmallVector<ValueId, 4> floats;
    for (ValueId operand : graph_.node(id).operands)
      if (operand != ValueId::None && is_float(graph_.type(operand).dtype)) floats.push_back(operand);
    return floats;
  }

  bool is_operand_of(NodeId id, size_t i, DType dtype) const {
    const Node& node = graph_.node(id);
    return i < node.operands.size() && node.operands[i] != ValueId::None &&
           graph_.type(node.operands[i]).dtype == dtype;
  }

  bool has_narrow(const Types& types) const {
    return llvm::any_of(types, [&](const Type& type) { return type.dtype == narrow_; });
  }

  // The result types that the node would have with the operands in `narrowed` in 16 bits.
  std::optional<Types> infer(NodeId id, llvm::ArrayRef<size_t> narrowed) const {
    const Node& node = graph_.node(id);
    llvm::SmallVector<const Type*, 4> types = operand_types(graph_, node);
    std::vector<Type> changed;
    changed.reserve(narrowed.size());
    for (size_t i : narrowed) {
      changed.emplace_back(narrow_, types[i]->shape);
      types[i] = &changed.back();
    }
    return try_infer(*node.op, node.attrs, types);
  }

  // Each reader of a parameter gets a cast of its own, so that every gradient is cast back by itself and their sum is
  // taken in f32; cse merges the casts after differentiation. Other values are cast once.
  void cast_operand(NodeId id, size_t i, DType to) {
    const ValueId value = graph_.node(id).operands[i];
    const bool is_parameter = graph_.find_state(value) != nullptr;
    auto known = shared_.find({value, to});
    if (!is_parameter && known != shared_.end()) return graph_.set_operand(id, i, known->second);
    Builder b = builder_at(graph_, id);
    const std::string name = graph_.value(value).name + "." + dtype_name(to).str();
    ValueId cast = ValueId::None;
    if (producer_of(graph_, value, "constant")) {
      cast = narrow_constant(b, value, to, name);
    } else if (const Node* choice = producer_of(graph_, value, "where"); choice && is_narrow_choice(*choice)) {
      const ValueId condition = choice->operands[0], on = choice->operands[1], off = choice->operands[2];
      const ValueId narrow_on = narrow_constant(b, on, to), narrow_off = narrow_constant(b, off, to);
      cast = b.emit("where", {condition, narrow_on, narrow_off}, {}, name);
    } else {
      if (to == narrow_ && narrow_moves(id, value)) return;
      cast = emit_cast(b, id, value, to);
    }
    const Facts facts = facts_[index_of(value)];
    facts_.resize(graph_.value_count());
    facts_[index_of(cast)] = facts;
    shared_[{value, to}] = cast;
    graph_.set_operand(id, i, cast);
  }

  ValueId emit_cast(Builder& b, NodeId reader, ValueId value, DType to) {
    const ValueId cast = b.emit("cast", {value}, {{"to", to}}, graph_.value(value).name + "." + dtype_name(to).str());
    graph_.node(graph_.value(cast).producer).reason =
        (graph_.node(reader).op->name + " computes in " + dtype_name(to)).str();
    ++casts_;
    return cast;
  }

  // Narrows the value by a cast in front of the moves that made it, so that these move 16 bits. False where there are
  // none for this reader alone.
  bool narrow_moves(NodeId reader, ValueId value) {
    const llvm::SmallVector<NodeId, 2> moves = moves_in_front(value);
    if (moves.empty()) return false;
    const ValueId source = graph_.node(moves.back()).operands[0];
    Builder b = builder_at(graph_, moves.back());
    const ValueId cast = emit_cast(b, reader, source, narrow_);
    const Facts facts = facts_[index_of(source)];
    facts_.resize(graph_.value_count());
    facts_[index_of(cast)] = facts;
    graph_.set_operand(moves.back(), 0, cast);
    for (NodeId move : moves) {
      const ValueId moved = graph_.node(move).results[0];
      graph_.set_type(moved, Type(narrow_, graph_.type(moved).shape));
    }
    return true;
  }

  // The moves of f32 elements, last first, that made the value of another one for one reader alone. Moves that drop
  // elements are not among them: what they drop would be cast, too.
  llvm::SmallVector<NodeId, 2> moves_in_front(ValueId value) const {
    llvm::SmallVector<NodeId, 2> moves;
    for (;;) {
      const NodeId id = graph_.value(value).producer;
      if (id == NodeId::None || !has_one_reader(graph_, value)) return moves;
      const Node& node = graph_.node(id);
      if (!node.op->only_moves() || node.op->name == "cast" || node.operands.size() != 1 || node.results.size() != 1)
        return moves;
      const ValueId source = node.operands[0];
      if (graph_.find_state(source) || producer_of(graph_, source, "constant") ||
          graph_.type(source).dtype != DType::F32 ||
          element_count(graph_.type(source).shape) > element_count(graph_.type(value).shape))
        return moves;
      moves.push_back(id);
      value = source;
    }
  }

  // where(c, a, b) of constants whose numbers 16 bits hold.
  bool is_narrow_choice(const Node& node) const {
    if (node.op->name != "where") return false;
    return llvm::all_of(llvm::ArrayRef<ValueId>(node.operands).drop_front(), [&](ValueId branch) {
      const Node* constant = producer_of(graph_, branch, "constant");
      return constant && graph_.type(branch).dtype == DType::F32 &&
             holds(*constant->attrs.get_tensor("value"), narrow_);
    });
  }

  // All numbers as they are, or the type's largest where a number is hardly larger.
  static bool holds(const Tensor& wide, DType to) {
    constexpr double hardly = 1.01;
    const Tensor narrow = saturated(wide, to);
    for (int64_t i = 0; i < wide.type().elements(); ++i) {
      const double value = wide.get(i), kept = narrow.get(i);
      const bool is_largest = std::abs(kept) == largest(to) && std::abs(value) <= hardly * largest(to);
      if (kept != value && !is_largest) return false;
    }
    return true;
  }

  ValueId narrow_constant(Builder& b, ValueId constant, DType to, llvm::StringRef name = "const") {
    return b.constant(saturated(*producer_of(graph_, constant, "constant")->attrs.get_tensor("value"), to), name);
  }

  static double largest(DType to) { return to == DType::F16 ? 65504 : to == DType::BF16 ? 0x1.fep127 : INFINITY; }

  // The -3.4e38 of a mask must not become -inf: a row of it has a softmax, a row of -inf has none.
  static Tensor saturated(const Tensor& wide, DType to) {
    Tensor narrow(Type(to, wide.type().shape));
    for (int64_t i = 0; i < wide.type().elements(); ++i) {
      const double value = wide.get(i);
      narrow.view().set(i, std::isfinite(value) ? std::clamp(value, -largest(to), largest(to)) : value);
    }
    return narrow;
  }

  struct Count {
    int64_t count = 0;
    std::string why;
  };

  Graph& graph_;
  DType narrow_;
  llvm::ArrayRef<PrecisionRule> rules_;
  PassContext& context_;
  std::vector<Facts> facts_;                                      // by value
  std::map<std::pair<ValueId, DType>, ValueId> shared_;           // casts already made
  std::map<std::pair<std::string, std::string>, Count> summary_;  // by op and dtype
  std::vector<bool> exact_;  // by value: is an index made of it, or a logarithm taken?
  int64_t casts_ = 0;
  bool retyped_ = false;
};

Result<bool> run_insert_casts(Graph& graph, PassContext& context) {
  const std::string to = context.text("to");
  if (to == "tf32") {
    context.decide("plan", to, "no casts: products may round f32 operands to 10 bits; the CPU does not");
    return false;
  }
  std::optional<DType> narrow = parse_precision(to);
  if (!narrow || *narrow == DType::F32) return usage_error("to=" + to + ": expected bf16, fp16 or tf32");
  Result<std::vector<PrecisionRule>> rules = parse_precision_rules(context.text("rules"));
  if (!rules) return rules.takeError();
  for (const PrecisionRule& rule : *rules)
    if (rule.dtype != DType::F32 && dtype_bytes(rule.dtype) > 1 && rule.dtype != *narrow)
      return usage_error("'" + rule.text + "': one plan computes in one 16-bit dtype, here " + to);
  return CastInserter(graph, *narrow, *rules, context).run();
}

constexpr PassOption options[] = {
    {"to", "bf16", "bf16, fp16, or tf32, which needs no casts"},
    {"rules", "", "precision rules (passes/target/precision_rules.h), separated by ';'"},
};

}  // namespace

constinit const PassInfo pass_insert_casts{
    .name = "insert-casts",
    .summary = "compute in 16 bits where the op records allow it",
    .stage = Stage::Forward,
    .keeps_result = false,
    .options = options,
    .run = run_insert_casts,
};

}  // namespace plimsoll
