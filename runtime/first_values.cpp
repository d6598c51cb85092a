#include "runtime/first_values.h"

#include "ir/adapter_names.h"
#include "ir/fused_body.h"
#include "ir/kept_copies.h"
#include "ir/support/strings.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

namespace plimsoll {
namespace {

constexpr double transformers_deviation = 0.02;  // initializer_range of nearly all configurations

// A weight on its way to its reader.
struct Traced {
  size_t state;
  llvm::SmallVector<int64_t, 4> dims;  // which dimension of the whole weight each dimension is; empty: that is lost
  bool is_multiplied = false;          // by numbers that are no weight
};

// Does an op of that name multiply a weight and give what the next layers read?
bool makes_layer(llvm::StringRef op) {
  return op == "linear" || op == "linear_gelu" || op == "linear_f8" || op == "matmul" || op == "conv" ||
         op == "conv_moments";
}

bool is_norm(llvm::StringRef op) { return op.contains("_norm"); }

class Finder {
 public:
  // `plan` is that of one stage of `whole`.
  Finder(const Plan& plan, const Plan& whole)
      : plan_(plan), whole_(whole), is_transformers_(has_source("modeling_")), values_(plan.states.size()) {}

  std::vector<FirstValue> find() {
    for (size_t i = 0; i < plan_.states.size(); ++i) start(i);
    for (const PlanFunction& function : plan_.functions) follow(function);
    for (size_t i = 0; i < plan_.states.size(); ++i) by_name(i);
    return std::move(values_);
  }

 private:
  // Does a line of a source file with such a name make something of the model?
  bool has_source(llvm::StringRef file) const {
    return llvm::any_of(plan_.origins, [&](const Origin& origin) { return starts_with(origin.source, file); });
  }

  const Slot& slot(SlotId id) const { return plan_.slots[static_cast<size_t>(id)]; }
  const std::string& name_of(size_t state) const { return slot(plan_.states[state].slot).name; }
  Shape whole_of(size_t state) const {
    return whole_shape(plan_.states[state].divisions, slot(plan_.states[state].slot).type.shape);
  }

  void start(size_t i) {
    const PlanState& state = plan_.states[i];
    if (is_kept_copy(state.role, state.init)) {  // it is read in the parameter's place
      const size_t parameter = state_named(state.init.source);
      traced_[state.slot] = {Traced{parameter, dims_of(parameter)}};
      return;
    }
    if (state.init.kind != StateInit::Kind::Weights) {
      values_[i].kind = FirstValue::Kind::Constant;
      return;
    }
    traced_[state.slot] = {Traced{i, dims_of(i)}};
  }

  size_t state_named(llvm::StringRef name) const {
    size_t i = 0;
    while (name_of(i) != name) ++i;
    return i;
  }

  llvm::SmallVector<int64_t, 4> dims_of(size_t state) const {
    llvm::SmallVector<int64_t, 4> dims(whole_of(state).size());
    std::iota(dims.begin(), dims.end(), 0);
    return dims;
  }

  // The weights that a value is, one behind the other; none of other values.
  llvm::ArrayRef<Traced> trace(SlotId id) const {
    if (id < 0) return {};
    const auto found = traced_.find(id);
    if (found != traced_.end()) return found->second;
    const auto stored = traced_.find(plan_.storage_of(id));
    return stored == traced_.end() ? llvm::ArrayRef<Traced>() : llvm::ArrayRef<Traced>(stored->second);
  }

  void follow(const PlanFunction& function) {
    std::map<SlotId, const Instruction*> makers;
    for (const Instruction& instruction : function.instructions) {
      for (SlotId result : instruction.results) makers[result] = &instruction;
      // Running statistics may be updated behind forward; other updates say nothing about a layer.
      const bool is_statistic = instruction.op == "running_update";
      if (instruction.phase == Phase::Update && !is_statistic) continue;
      if (instruction.op == "fused") read_body(instruction, makers);
      if (instruction.op == "fused" || passes_on(instruction)) continue;
      if (instruction.phase != Phase::Forward && !is_statistic) continue;
      const OpDef& op = get_op(instruction.op);
      for (size_t i = 0; i < instruction.operands.size() && i < op.operands.size(); ++i)
        for (const Traced& traced : trace(instruction.operands[i]))
          read(instruction, op.operands[i].name, i, traced, makers);
      follow_arithmetic(instruction);
    }
  }

  // A weight that a norm standardises is still that of the layer behind, and one that numbers multiply may be a norm's
  // scale.
  void follow_arithmetic(const Instruction& instruction) {
    if (is_norm(instruction.op) && !trace(instruction.operands[0]).empty())
      traced_[instruction.results[0]] = trace(instruction.operands[0]).vec();
    if (const auto weight = multiplied_weight(instruction))
      traced_[instruction.results[0]] = multiplied(trace(*weight));
  }

  // The operand that is a weight whose elements the other multiplies, each by one number.
  std::optional<SlotId> multiplied_weight(const Instruction& instruction) const {
    if (instruction.op != "mul") return std::nullopt;
    const bool is_first = !trace(instruction.operands[0]).empty(), is_second = !trace(instruction.operands[1]).empty();
    if (is_first == is_second) return std::nullopt;
    const SlotId weight = instruction.operands[is_first ? 0 : 1];
    const auto elements = [&](SlotId id) { return element_count(slot(id).type.shape); };
    if (elements(weight) != elements(instruction.results[0])) return std::nullopt;
    return weight;
  }

  static std::vector<Traced> multiplied(llvm::ArrayRef<Traced> weights) {
    std::vector<Traced> after = weights.vec();
    for (Traced& weight : after) weight.is_multiplied = true;
    return after;
  }

  // A fused op is the ops of its body, on what they read of its operands.
  void read_body(const Instruction& fused, const std::map<SlotId, const Instruction*>& makers) {
    const FusedBody body = llvm::cantFail(fused_body(fused.attrs.get_string("body")));
    std::map<ValueId, SlotId> moved;  // values of the body that are an operand, perhaps converted or multiplied
    std::set<ValueId> products;       // of them, those that are multiplied
    for (size_t i = 0; i < fused.operands.size(); ++i) moved[body->inputs[i]] = fused.operands[i];
    const auto slot_of = [&](ValueId value) { return moved.count(value) ? moved[value] : SlotId{-1}; };
    const auto weights_of = [&](ValueId value) {
      return products.count(value) ? multiplied(trace(slot_of(value))) : trace(slot_of(value)).vec();
    };
    for (NodeId id : body->order()) {
      const Node& node = body->node(id);
      if (node.op->only_moves() && moved.count(node.operands[0])) {
        moved[node.results[0]] = moved[node.operands[0]];
        if (products.count(node.operands[0])) products.insert(node.results[0]);
      }
      if (node.op->only_moves() || fused.phase != Phase::Forward) continue;
      Instruction inner = fused;
      inner.op = node.op->name.str(), inner.attrs = node.attrs;
      inner.operands.clear();
      for (ValueId operand : node.operands) inner.operands.push_back(slot_of(operand));
      for (size_t i = 0; i < std::min(inner.operands.size(), node.op->operands.size()); ++i)
        for (const Traced& traced : weights_of(node.operands[i]))
          read(inner, node.op->operands[i].name, i, traced, makers);
      if (const auto weight = multiplied_weight(inner)) {
        moved[node.results[0]] = *weight;
        products.insert(node.results[0]);
      }
    }
    for (size_t r = 0; r < fused.results.size(); ++r)
      if (const auto traced = weights_of(body->outputs[r].value); !traced.empty()) traced_[fused.results[r]] = traced;
  }

  // Ops that only move or convert a weight, or put several side by side.
  bool passes_on(const Instruction& instruction) {
    const llvm::StringRef op = instruction.op;
    if (op == "dequantize" && instruction.attrs.get_int("given", 0) == 0) {  // codes are the weight, in another shape
      for (const Traced& codes : trace(instruction.operands[0]))
        traced_[instruction.results[0]].push_back({codes.state, {}});
      return true;
    }
    if (op == "to_f8" || op == "to_scaled_f8") return passes_on_codes(instruction);
    const bool joins = op == "concat";
    if (!joins && !get_op(op).only_moves()) return false;
    std::vector<Traced> moved;
    const llvm::ArrayRef<SlotId> operands(instruction.operands);
    for (SlotId operand : joins ? operands : operands.take_front()) llvm::append_range(moved, trace(operand));
    if (moved.empty()) return true;
    const size_t rank = slot(instruction.results[0]).type.shape.size();  // of all results
    for (Traced& to : moved) {
      if (op == "transpose" && to.dims.size() == rank) {
        const Traced from = to;
        const llvm::ArrayRef<int64_t> perm = instruction.attrs.get_ints("perm");
        for (size_t d = 0; d < perm.size(); ++d) to.dims[d] = from.dims[static_cast<size_t>(perm[d])];
      }
      if (op == "reshape" || rank != to.dims.size()) to.dims.clear();
    }
    for (SlotId result : instruction.results) traced_[result] = moved;
    return true;
  }

  // As the weight lies, and turned.
  bool passes_on_codes(const Instruction& to_f8) {
    const std::vector<Traced> as_is = trace(to_f8.operands[0]).vec();
    if (as_is.empty()) return true;
    std::vector<Traced> turned = as_is;
    for (Traced& each : turned) std::reverse(each.dims.begin(), each.dims.end());
    size_t result = 0;
    if (to_f8.attrs.get_int("rows", 0) != 0) traced_[to_f8.results[result++]] = as_is;
    if (to_f8.attrs.get_int("columns", 0) != 0) traced_[to_f8.results[result]] = turned;
    return true;
  }

  void read(const Instruction& instruction, llvm::StringRef port, size_t operand, const Traced& traced,
            const std::map<SlotId, const Instruction*>& makers) {
    const llvm::StringRef op = instruction.op;
    if (traced.is_multiplied) {
      if (is_norm(op) && port == "scale") set_constant(traced.state, 1);
      return;
    }
    const bool is_layer = makes_layer(op) || op == "conv_transpose";
    if (is_layer && (port == "w" || op == "matmul")) return draw_weight(instruction, operand, traced);
    if (is_layer && port == "bias") return draw_bias(instruction, traced);
    if (op == "linear_f8" && port == "w_scale") return;  // it is made with the codes
    if (op == "gather" && port == "x") return draw_embedding(traced);
    if (is_norm(op)) {
      if (port == "scale" || port == "var") return set_constant(traced.state, 1);
      if (port == "bias" || port == "mean") return set_constant(traced.state, 0);
    }
    if (op == "running_update" && port == "running") return draw_statistic(instruction, traced, makers);
    if (op == "prelu" && port == "slope") return set_constant(traced.state, 0.25);
    // An embedding whose rows are all wanted in order is its matrix.
    if (op == "add" && whole_of(traced.state).size() == 2 && ends_with(name_of(traced.state), ".weight"))
      return draw_embedding(traced);
    if (op == "add" && whole_of(traced.state).size() == 1) {
      if (const Instruction* layer = layer_behind(instruction.operands[1 - operand], makers))
        return draw_bias(*layer, traced);
    }
    FirstValue& value = values_[traced.state];
    if (value.kind == FirstValue::Kind::Unknown && value.reader.empty())
      value.reader = instruction.op + " that makes %" + slot(instruction.results[0]).name;
  }

  // The layer that makes the value, also where ranks add up what their parts of its weight make; null: another op.
  const Instruction* layer_behind(SlotId value, const std::map<SlotId, const Instruction*>& makers) const {
    if (value < 0) return nullptr;  // made inside a fused op
    auto maker = makers.find(plan_.storage_of(value));
    while (maker != makers.end() && get_op(maker->second->op).engine == Engine::Ranks &&
           !maker->second->operands.empty())
      maker = makers.find(plan_.storage_of(maker->second->operands[0]));
    if (maker == makers.end()) return nullptr;
    const llvm::StringRef op = maker->second->op;
    return makes_layer(op) ? maker->second : nullptr;
  }

  // Elements that make one element of the layer's result.
  double fan_in(const Instruction& layer, size_t operand, const Traced& traced) const {
    const Shape whole = whole_of(traced.state);
    size_t out = 0;  // which dimension of the operand counts the results
    const size_t rank = slot(layer.operands[operand]).type.shape.size();
    if ((layer.op == "linear" || layer.op == "linear_gelu") && layer.attrs.get_int("transpose_w") == 0) out = 1;
    if (layer.op == "matmul") out = operand == 1 ? rank - 1 : rank - 2;
    const bool known = out < traced.dims.size();
    const Shape& here = slot(layer.operands[operand]).type.shape;
    const int64_t results = known ? whole[static_cast<size_t>(traced.dims[out])] : out < rank ? here[out] : 1;
    return static_cast<double>(element_count(known ? llvm::ArrayRef<int64_t>(whole) : llvm::ArrayRef<int64_t>(here))) /
           static_cast<double>(std::max<int64_t>(results, 1));
  }

  void draw_weight(const Instruction& layer, size_t operand, const Traced& traced) {
    FirstValue& value = values_[traced.state];
    if (is_embedding_[traced.state]) return set_normal(traced.state, transformers_deviation);
    is_projection_[traced.state] = true;
    if (is_transformers_) return set_normal(traced.state, transformers_deviation);
    if (value.kind == FirstValue::Kind::Unknown)
      value = {FirstValue::Kind::Uniform, 1 / std::sqrt(fan_in(layer, operand, traced)), ""};
  }

  void draw_bias(const Instruction& layer, const Traced& traced) {
    const size_t operand = 1;
    const llvm::ArrayRef<Traced> weights = trace(layer.operands[operand]);
    if (is_transformers_) return set_constant(traced.state, 0);
    FirstValue& value = values_[traced.state];
    if (!weights.empty() && value.kind == FirstValue::Kind::Unknown)
      value = {FirstValue::Kind::Uniform, 1 / std::sqrt(fan_in(layer, operand, weights.front())), ""};
  }

  void draw_embedding(const Traced& traced) {
    is_embedding_[traced.state] = true;
    const bool small = is_projection_[traced.state] || is_transformers_;
    set_normal(traced.state, small ? transformers_deviation : 1);
  }

  // A running variance follows the third result of a batch norm, or is corrected by a count.
  void draw_statistic(const Instruction& update, const Traced& traced,
                      const std::map<SlotId, const Instruction*>& makers) {
    const auto maker = makers.find(update.operands[1]);
    const bool is_variance = update.attrs.has("count") || (maker != makers.end() && maker->second->results.size() > 2 &&
                                                           maker->second->results[2] == update.operands[1]);
    set_constant(traced.state, is_variance ? 1 : 0);
  }

  void set_constant(size_t state, double value) { values_[state] = {FirstValue::Kind::Constant, value, ""}; }
  void set_normal(size_t state, double deviation) { values_[state] = {FirstValue::Kind::Normal, deviation, ""}; }

  // As PEFT draws them: A as a linear layer's weight, rows of an embedding's B as those of nn.Embedding, and the other
  // one zeros.
  void draw_adapter(size_t i, AdapterMatrix matrix) {
    const Shape whole = whole_of(i);
    const double inputs = static_cast<double>(element_count(whole)) / static_cast<double>(whole[0]);
    if (matrix == AdapterMatrix::Magnitude) return set_constant(i, 1);  // sessions know the weight
    if (matrix == AdapterMatrix::A)
      values_[i] = {FirstValue::Kind::Uniform, 1 / std::sqrt(inputs), ""};
    else
      matrix == AdapterMatrix::EmbeddingB ? set_normal(i, 1) : set_constant(i, 0);
  }

  // What only the names tell.
  void by_name(size_t i) {
    const std::string& name = name_of(i);
    FirstValue& value = values_[i];
    const Shape whole = whole_of(i);
    if (const auto adapter = parse_adapter_weight(plan_.states[i].init.source)) return draw_adapter(i, adapter->matrix);
    if (ends_with(name, "in_proj_weight") && whole.size() == 2)
      value = {FirstValue::Kind::Uniform, std::sqrt(6.0 / static_cast<double>(whole[0] + whole[1])), ""};
    if (ends_with(name, "in_proj_bias") || ends_with(name, "self_attn.out_proj.bias")) set_constant(i, 0);
    if (has_source("modeling_gpt2.") && ends_with(name, "c_proj.weight")) {
      int64_t count = 0;
      for (const Plan* stage : whole_.stages())
        count += llvm::count_if(stage->states, [&](const PlanState& state) {
          return state.init.kind == StateInit::Kind::Weights && ends_with(state.init.source, "c_proj.weight");
        });
      set_normal(i, transformers_deviation / std::sqrt(static_cast<double>(count)));
    }
    if (ends_with(name, "position_ids")) value = {FirstValue::Kind::Index, 0, ""};
    if (ends_with(name, "token_type_ids") || ends_with(name, "num_batches_tracked")) set_constant(i, 0);
    if (value.kind == FirstValue::Kind::Unknown && value.reader.empty()) set_constant(i, 0);  // nobody reads it
  }

  const Plan& plan_;
  const Plan& whole_;
  bool is_transformers_;
  std::vector<FirstValue> values_;
  std::map<SlotId, std::vector<Traced>> traced_;
  std::map<size_t, bool> is_embedding_, is_projection_;
};

}  // namespace

llvm::StringMap<FirstValue> first_values_of(const Plan& plan) {
  llvm::StringMap<FirstValue> values;
  for (const Plan* stage : plan.stages()) {
    const std::vector<FirstValue> found = Finder(*stage, plan).find();
    for (const auto& [state, value] : llvm::zip(stage->states, found))
      if (state.init.kind == StateInit::Kind::Weights) values[state.init.source] = value;
  }
  return values;
}

}  // namespace plimsoll
