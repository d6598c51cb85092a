#include "ir/ops/update/update_call.h"

#include "ir/ops/common/reference_math.h"
#include "ir/ops/update/update_block.h"
#include "ir/support/philox.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace plimsoll {

Status need_like_parameter(const OpCall& call, PortKey i) {
  if (!call.has(i)) return Status::success();
  if (Status s = need_float(call, i)) return s;
  return need_type(call, i, Type(call[i].dtype, call["param"].shape));
}

Status need_float_scalar(const OpCall& call, PortKey i) {
  if (Status s = need_float(call, i)) return s;
  return need_rank(call, i, 0);
}

double scale_of(const ReferenceCall& call) { return call.has("scale") ? call.in("scale").get(0) : 1; }

bool skips(const ReferenceCall& call, std::initializer_list<llvm::StringRef> states) {
  if (!call.has("skip") || call.in("skip").get_int(0) == 0) return false;
  for (llvm::StringRef state : states)
    if (call.has(state)) copy_elements(call.out(state), 0, call.in(state), 0, call[state].elements());
  return true;
}

Status need_rounding(const OpCall& call) {
  if (Status s = need_first_draw(call.attrs)) return s;
  const DType dtype = call["param"].dtype;  // f64 stands for any float where a reference is looked at closely
  if (call.get_int("rounding_id") == 0 || dtype == DType::BF16 || dtype == DType::F64) return Status::success();
  return model_error("param is " + dtype_name(call["param"].dtype) + ", only bf16 is rounded stochastically");
}

double rounded(const ReferenceCall& call, int64_t i, double value) {
  const int64_t id = call.get_int("rounding_id");
  if (id == 0) return value;
  const RandomStream stream{0, call.in("step").get_int(0), id, call.get_int("first_draw")};
  const uint32_t word = stream.block(i / 4)[static_cast<size_t>(i % 4)];
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if ((bits & 0x7f800000) == 0x7f800000) return value;
  return std::bit_cast<float>((bits + (word >> 16)) & 0xffff0000);
}

Status need_copy_dtype(const OpCall& call) {
  if (!call.gives("copy")) return Status::success();
  const DType param = call["param"].dtype, copy = call.attrs.get_dtype("copy_dtype");
  if (param == DType::F64 && is_float(copy)) return Status::success();  // it stands for any float, as above
  if (param == DType::F32 && is_16_bit_float(copy)) return Status::success();
  return model_error("copy_dtype is " + dtype_name(copy) + " of a parameter in " + dtype_name(param) +
                     ", it must be bf16 or f16 of one in f32");
}

void add_copy(const OpCall& call, Types& results) {
  if (!call.gives("copy")) return;
  results.push_back(Type(call.attrs.get_dtype("copy_dtype"), call["param"].shape));
}

void write_copy(const ReferenceCall& call) {
  if (!call.gives("copy")) return;
  const TensorView &param = call.out("param"), &copy = call.out("copy");
  for (int64_t i = 0; i < param.elements(); ++i) copy.set(i, param.get(i));
}

std::optional<ChunkCall> cut_update(const OpCall& call, Chunk chunk, std::initializer_list<PortKey> operands) {
  const int64_t elements = call["param"].elements();
  if (call.get_int("norms") && elements % (chunk.count * update_block) != 0) return std::nullopt;
  ChunkCall cut = cut_operands(call, operands);
  if (call.attrs.get_int("rounding_id") == 0) return cut;
  return with_chunk_of_draws(std::move(cut), elements, chunk);
}

void add_norms(const OpCall& call, Types& results) {
  if (!call.get_int("norms")) return;
  const Type& grad = call["grad"];
  results.push_back(
      Type(grad.dtype == DType::F64 ? DType::F64 : DType::F32, {(grad.elements() + update_block - 1) / update_block}));
}

void write_norms(const ReferenceCall& call) {
  if (!call.gives("norms")) return;
  const std::vector<double> grad = call.load("grad");
  const TensorView& norms = call.out("norms");
  const auto elements = static_cast<int64_t>(grad.size());
  for (int64_t block = 0; block < norms.elements(); ++block) {
    double squares = 0;
    for (int64_t i = block * update_block; i < std::min((block + 1) * update_block, elements); ++i)
      squares += grad[static_cast<size_t>(i)] * grad[static_cast<size_t>(i)];
    norms.set(block, std::sqrt(squares));
  }
}

double ten_each(const OpCall&, llvm::ArrayRef<Type> results) { return 10 * static_cast<double>(results[0].elements()); }

}  // namespace plimsoll
