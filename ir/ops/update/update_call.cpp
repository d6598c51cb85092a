#include "ir/ops/update/update_call.h"

#include "ir/ops/update/update_block.h"

#include <algorithm>
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

void add_norms(const OpCall& call, Types& results) {
  if (!call.get_int("norms")) return;
  const Type& grad = call["grad"];
  results.push_back(
      Type(grad.dtype == DType::F64 ? DType::F64 : DType::F32, {(grad.elements() + update_block - 1) / update_block}));
}

void write_norms(const ReferenceCall& call) {
  if (!call.gives("norms")) return;
  const TensorView &grad = call.in("grad"), &norms = call.out("norms");
  for (int64_t block = 0; block < norms.elements(); ++block) {
    double squares = 0;
    for (int64_t i = block * update_block; i < std::min((block + 1) * update_block, grad.elements()); ++i)
      squares += grad.get(i) * grad.get(i);
    norms.set(block, std::sqrt(squares));
  }
}

double ten_each(const OpCall&, llvm::ArrayRef<Type> results) { return 10 * static_cast<double>(results[0].elements()); }

}  // namespace plimsoll
