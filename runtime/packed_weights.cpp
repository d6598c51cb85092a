#include "runtime/packed_weights.h"

#include "ir/op_def.h"
#include "runtime/cpu/pack_weight.h"
#include "runtime/data/read_pieces.h"

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

Status pack(const PackedWeight& weight, NumbersOf numbers, llvm::MutableArrayRef<FloatBuffer> buffers,
            const TensorView& codes, Packed& packed) {
  constexpr int64_t numbers_at_once = int64_t{1} << 18;
  const int64_t count = weight.shape[0] * weight.shape[1], smallest = smallest_piece(weight),
                piece = smallest * std::max<int64_t>(1, numbers_at_once / smallest);
  Tensor scales(Type(DType::F32, {(count + weight.block - 1) / weight.block}));
  if (Status s = read_in_pieces(count, piece, [&](int64_t first, int64_t now, int thread) -> Status {
        Result<const float*> x = numbers(first, now, buffers[static_cast<size_t>(thread)]);
        if (!x) return x.takeError();
        pack_piece(weight, *x, first, now, codes.as<uint8_t>(), scales.view().as<float>());
        return Status::success();
      }))
    return s;
  if (weight.scale_scales.empty())
    packed.scales = std::move(scales);
  else
    pack_scales(weight, scales, packed);
  return Status::success();
}

Status pack(const PackedWeight& weight, const TensorView& numbers, llvm::MutableArrayRef<FloatBuffer> buffers,
            const TensorView& codes, Packed& packed) {
  const float* const x = numbers.as<float>();
  const int64_t rows = weight.shape[0], columns = weight.shape[1];
  return pack(
      weight,
      [&](int64_t first, int64_t count, FloatBuffer& buffer) -> Result<const float*> {
        if (!weight.transposed) return x + first;
        turn_rows(buffer.at_least(count), x, count / columns, columns, rows, first / columns);
        return buffer.at_least(count);
      },
      buffers, codes, packed);
}

WeightPacker::WeightPacker(const Plan& plan, Load load, LoadRange load_range, TypeOf type_of)
    : weights_(packed_weights_of(plan)),
      load_(std::move(load)),
      load_range_(std::move(load_range)),
      type_of_(std::move(type_of)),
      buffers_(static_cast<size_t>(reading_threads())) {
  for (size_t i = 0; i < weights_.size(); ++i)
    for (const std::string& part :
         {weights_[i].source, weights_[i].scales, weights_[i].scale_scales, weights_[i].offset})
      if (!part.empty()) by_part_[part] = i;
}

Status WeightPacker::take_stored(const PackedWeight& weight, const TensorView& codes) {
  packed_.scales = Tensor(weight.scales_type);
  if (Status s = load_(weight.source, codes)) return s;
  if (Status s = load_(weight.scales, packed_.scales.view())) return s;
  if (weight.scale_scales.empty()) return Status::success();
  packed_.scale_scales = Tensor(weight.scale_scales_type), packed_.offset = Tensor(Type(DType::F32, {1}));
  if (Status s = load_(weight.scale_scales, packed_.scale_scales.view())) return s;
  return load_(weight.offset, packed_.offset.view());
}

// A weight that the file has as its transpose is turned out of one copy of all its numbers.
Status WeightPacker::make(const PackedWeight& weight, const TensorView& codes) {
  const std::optional<Type> stored = type_of_ ? type_of_(weight.source) : std::nullopt;
  if (stored && *stored == weight.codes_type) return take_stored(weight, codes);
  const Type type = weight.model_type();
  if (load_range_ && !weight.transposed)
    return pack(
        weight,
        [&](int64_t first, int64_t count, FloatBuffer& buffer) -> Result<const float*> {
          const TensorView piece{Type(DType::F32, {count}), buffer.at_least(count)};
          if (Status s = load_range_(weight.source, type, first, piece)) return s;
          return piece.as<float>();
        },
        buffers_, codes, packed_);
  const TensorView numbers{type, numbers_.at_least(type.elements())};
  if (Status s = load_(weight.source, numbers)) return s;
  return pack(weight, numbers, buffers_, codes, packed_);
}

Status WeightPacker::load(llvm::StringRef name, const TensorView& into) {
  const PackedWeight& weight = weights_[by_part_.lookup(name)];
  const bool asks_for_codes = name == weight.source;
  if (made_ != weight.source || (asks_for_codes && !packed_.codes.data())) {
    made_.clear();
    packed_ = {};
    if (!asks_for_codes) packed_.codes = Tensor(weight.codes_type);
    const TensorView codes = asks_for_codes ? TensorView{weight.codes_type, into.data} : packed_.codes.view();
    if (Status s = make(weight, codes)) return s;
    made_ = weight.source;
    if (asks_for_codes) return Status::success();
  }
  const Tensor& part = asks_for_codes          ? packed_.codes
                       : name == weight.scales ? packed_.scales
                       : name == weight.offset ? packed_.offset
                                               : packed_.scale_scales;
  std::memcpy(into.data, part.data(), static_cast<size_t>(into.type.bytes()));
  return Status::success();
}

}  // namespace plimsoll
