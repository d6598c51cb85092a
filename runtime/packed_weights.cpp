#include "runtime/packed_weights.h"

#include "ir/op_def.h"
#include "runtime/cpu/pack_weight.h"

#include <cstring>
#include <map>

namespace plimsoll {
namespace {

// States behind the slots of one plan, past copies from the host, gathers of pieces and views.
class StatesBehind {
 public:
  explicit StatesBehind(const Plan& plan) : plan_(plan) {
    for (const PlanState& state : plan.states) states_[state.slot] = &state;
    for (const PlanFunction& function : plan.functions)
      for (const Instruction& instruction : function.instructions) {
        const OpDef& op = get_op(instruction.op);
        const bool passes_on = op.only_moves() || instruction.op == "gather_pieces";
        if (passes_on)
          for (SlotId result : instruction.results) from_[result] = instruction.operands[0];
      }
  }

  const PlanState* find(SlotId slot) const {
    for (int steps = 0; slot >= 0 && steps < 16; ++steps) {
      if (const auto state = states_.find(slot); state != states_.end()) return state->second;
      if (const auto state = states_.find(plan_.storage_of(slot)); state != states_.end()) return state->second;
      const auto before = from_.find(slot);
      slot = before == from_.end() ? -1 : before->second;
    }
    return nullptr;
  }

  Type whole_type(const PlanState& state) const {
    const Type& own = plan_.slots[static_cast<size_t>(state.slot)].type;
    return Type(own.dtype, whole_shape(state.divisions, own.shape));
  }

 private:
  const Plan& plan_;
  std::map<SlotId, const PlanState*> states_;
  std::map<SlotId, SlotId> from_;
};

}  // namespace

// A product that reads codes of a weight as they are stored, with one scale.
static void add_operand(std::map<std::string, PackedWeight>& weights, const StatesBehind& states,
                        const Instruction& product) {
  const PlanState *codes = states.find(product.operands[1]), *scale = states.find(product.operands[3]);
  if (!codes || !scale || product.attrs.get_int("packed", 0) == 0) return;
  PackedWeight& weight = weights[codes->init.source];
  weight.source = codes->init.source, weight.codes_type = states.whole_type(*codes);
  weight.scales = scale->init.source, weight.scales_type = states.whole_type(*scale);
  weight.format = "fp8";
  weight.shape = weight.codes_type.shape;
  weight.block = weight.codes_type.elements();
  weight.transposed = product.attrs.get_int("transposed", 0) != 0;
}

std::vector<PackedWeight> packed_weights_of(const Plan& plan) {
  std::map<std::string, PackedWeight> weights;
  for (const Plan* stage : plan.stages()) {
    const StatesBehind states(*stage);
    for (const PlanFunction& function : stage->functions)
      for (const Instruction& instruction : function.instructions) {
        if (instruction.op == "linear_f8") add_operand(weights, states, instruction);
        if (instruction.op != "dequantize" || instruction.attrs.get_int("given", 0) != 0) continue;
        const PlanState* parts[4] = {};
        for (size_t i = 0; i < instruction.operands.size(); ++i) parts[i] = states.find(instruction.operands[i]);
        if (!parts[0] || !parts[1]) continue;
        PackedWeight& weight = weights[parts[0]->init.source];
        weight.source = parts[0]->init.source;
        weight.codes_type = states.whole_type(*parts[0]);
        weight.scales = parts[1]->init.source;
        weight.scales_type = states.whole_type(*parts[1]);
        if (parts[2] && parts[3]) {
          weight.scale_scales = parts[2]->init.source;
          weight.scale_scales_type = states.whole_type(*parts[2]);
          weight.offset = parts[3]->init.source;
        }
        weight.format = instruction.attrs.get_string("format").str();
        weight.block = instruction.attrs.get_int("block");
        weight.dtype = instruction.attrs.get_dtype("dtype");
        const llvm::ArrayRef<int64_t> shape = instruction.attrs.get_ints("shape");
        weight.shape.assign(shape.begin(), shape.end());
        weight.transposed = instruction.attrs.get_int("transposed", 0) != 0;
      }
  }
  std::vector<PackedWeight> list;
  for (auto& [source, weight] : weights) list.push_back(std::move(weight));
  return list;
}

WeightPacker::WeightPacker(const Plan& plan, Load load, TypeOf type_of)
    : weights_(packed_weights_of(plan)), load_(std::move(load)), type_of_(std::move(type_of)) {
  for (size_t i = 0; i < weights_.size(); ++i)
    for (const std::string& part :
         {weights_[i].source, weights_[i].scales, weights_[i].scale_scales, weights_[i].offset})
      if (!part.empty()) by_part_[part] = i;
}

Status WeightPacker::make(const PackedWeight& weight) {
  const std::optional<Type> stored = type_of_ ? type_of_(weight.source) : std::nullopt;
  made_.clear();
  if (stored && *stored == weight.codes_type) {
    packed_ = {Tensor(weight.codes_type), Tensor(weight.scales_type), Tensor(weight.scale_scales_type),
               Tensor(Type(DType::F32, {1}))};
    if (Status s = load_(weight.source, packed_.codes.view())) return s;
    if (Status s = load_(weight.scales, packed_.scales.view())) return s;
    if (!weight.scale_scales.empty()) {
      if (Status s = load_(weight.scale_scales, packed_.scale_scales.view())) return s;
      if (Status s = load_(weight.offset, packed_.offset.view())) return s;
    }
  } else {
    const TensorView numbers{weight.model_type(), numbers_.at_least(weight.model_type().elements())};
    if (Status s = load_(weight.source, numbers)) return s;
    packed_ = pack(weight, numbers, turned_);
  }
  made_ = weight.source;
  return Status::success();
}

Status WeightPacker::load(llvm::StringRef name, const TensorView& into) {
  const PackedWeight& weight = weights_[by_part_.lookup(name)];
  if (made_ != weight.source)
    if (Status s = make(weight)) return s;
  const Tensor& part = name == weight.source   ? packed_.codes
                       : name == weight.scales ? packed_.scales
                       : name == weight.offset ? packed_.offset
                                               : packed_.scale_scales;
  std::memcpy(into.data, part.data(), static_cast<size_t>(into.type.bytes()));
  return Status::success();
}

}  // namespace plimsoll
