#include "ir/support/units.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"
#include "passes/rewrite/quantised_weights.h"

#include "llvm/ADT/STLExtras.h"

// A frozen parameter that is read in one narrower type alone becomes a state of that type, so that a step neither keeps
// nor casts the wide one. Reads may lie behind ops that only move elements: transposes, lookups in a table. Loaders
// convert a file's weight as they read it.
//
// It is right because a cast rounds each element by itself, whether before or after elements move, and because nothing
// gives the parameter a next value: rounding it once, as it is loaded, is rounding it in every step. Trained parameters
// stay as they are: their small updates need the wide type. With {trained} those become states of the narrow type as
// well, for updates that round by chance.

namespace plimsoll {
namespace {

// How the readers of a parameter read it.
struct Readers {
  std::vector<NodeId> movers;  // of elements, in the order in which they were reached: each after what it reads
  std::vector<NodeId> casts;
  std::optional<DType> to;
};

class Narrower {
 public:
  Narrower(Graph& graph, PassContext& context)
      : graph_(graph), context_(context), narrows_trained_(context.number("trained") != 0) {
    for (const Output& output : graph.outputs) kept_.push_back(output.value);
    for (const Update& update : graph.updates) kept_.append({update.state, update.value});
  }

  bool run() {
    for (State& state : graph_.states) {
      const Type type = graph_.type(state.value);
      if (state.role != StateRole::Parameter || (state.trained && !narrows_trained_) || !is_float(type.dtype)) continue;
      Readers readers;
      if (!collect(state.value, readers) || !readers.to || dtype_bytes(*readers.to) >= dtype_bytes(type.dtype))
        continue;
      if (!can_move(readers)) continue;
      narrow(state.value, readers);
      Total& total = totals_[{state.trained, *readers.to}];
      ++total.parameters;
      total.saved_bytes += type.bytes() - graph_.type(state.value).bytes();
    }
    for (NodeId id : graph_.order())
      if (is_dequantize(graph_.node(id))) give_type_of_readers(id);
    for (const auto& [kind, total] : totals_) {
      const auto& [trained, dtype] = kind;
      context_.count("parameters", total.parameters);
      context_.decide(trained ? "trained parameters" : "frozen parameters", dtype_name(dtype),
                      std::to_string(total.parameters) + (total.parameters == 1 ? " is" : " are") +
                          " read in this type alone and stored in it, " + format_bytes(total.saved_bytes) +
                          " less; they are converted as they are loaded");
    }
    return !totals_.empty() || retyped_;
  }

 private:
  struct Total {
    int64_t parameters = 0, saved_bytes = 0;
  };

  // False where something reads the value, or what is made of it by moving, otherwise than by casts to one type.
  bool collect(ValueId value, Readers& readers) const {
    if (llvm::is_contained(kept_, value)) return false;
    for (NodeId user : graph_.value(value).users) {
      const Node& node = graph_.node(user);
      if (node.op->name == "dora_scale" && node.operands[0] == value) continue;  // computes in f32 whatever it reads
      const bool moves = node.op->only_moves() || node.op->name == "gather";
      if (!moves || llvm::count(node.operands, value) != 1 || node.operands[0] != value) return false;
      if (node.op->name == "cast") {
        const DType to = node.attrs.get_dtype("to");
        if (readers.to && *readers.to != to) return false;
        readers.to = to;
        readers.casts.push_back(user);
        continue;
      }
      readers.movers.push_back(user);
      for (ValueId result : node.results)
        if (!collect(result, readers)) return false;
    }
    return true;
  }

  // Movers must give the narrow type of a narrow operand, which one with a table of fills in another type would not.
  bool can_move(const Readers& readers) const {
    return llvm::all_of(readers.movers, [&](NodeId id) {
      const Node& node = graph_.node(id);
      llvm::SmallVector<const Type*, 4> types = operand_types(graph_, node);
      const Type narrow(*readers.to, types[0]->shape);
      types[0] = &narrow;
      const std::optional<Types> made = try_infer(*node.op, node.attrs, types);
      return made && llvm::all_of(*made, [&](const Type& type) { return type.dtype == *readers.to; });
    });
  }

  // A dequantize rounds its f32 numbers itself to the type that all readers cast them to, as the casts would have.
  void give_type_of_readers(NodeId id) {
    const ValueId value = graph_.node(id).results[0];
    Readers readers;
    if (!collect(value, readers) || !readers.to || !readers.movers.empty() || *readers.to == graph_.type(value).dtype)
      return;
    Attrs attrs = graph_.node(id).attrs;
    attrs.set("dtype", *readers.to);
    if (!try_infer(*graph_.node(id).op, attrs, operand_types(graph_, graph_.node(id)))) return;
    graph_.node(id).attrs = attrs;
    narrow(value, readers);
    retyped_ = true;
  }

  void narrow(ValueId parameter, const Readers& readers) {
    const auto retype = [&](ValueId value) { graph_.set_type(value, Type(*readers.to, graph_.type(value).shape)); };
    retype(parameter);
    for (NodeId mover : readers.movers)
      for (ValueId result : graph_.node(mover).results) retype(result);
    for (NodeId cast : readers.casts) {
      graph_.replace_uses(graph_.node(cast).results[0], graph_.node(cast).operands[0]);
      graph_.erase_node(cast);
    }
  }

  Graph& graph_;
  PassContext& context_;
  llvm::SmallVector<ValueId, 8> kept_;  // outputs, and states that change with their next values
  bool narrows_trained_;
  std::map<std::pair<bool, DType>, Total> totals_;  // of trained ones or others, by type
  bool retyped_ = false;
};

Result<bool> run_narrow_frozen(Graph& graph, PassContext& context) { return Narrower(graph, context).run(); }

}  // namespace

static constexpr PassOption options[] = {{"trained", int64_t{0}, "1: trained parameters too", 0, 1}};

constinit const PassInfo pass_narrow_frozen{
    .name = "narrow-frozen",
    .summary = "store frozen parameters in the narrower type in which alone they are read",
    .stage = Stage::Forward,
    .keeps_result = false,
    .options = options,
    .run = run_narrow_frozen,
};

}  // namespace plimsoll
