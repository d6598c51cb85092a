#include "runtime/kernels/few_rows_matmul.h"

#include "runtime/kernels/matmul.h"

namespace plimsoll {

std::optional<cuda::FewRows> few_rows_of(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr int64_t least_matrices = 256;
  const Type &a = call["a"], &b = call["b"], &y = results[0];
  const auto batch_of = [](const Type& type) { return llvm::ArrayRef<int64_t>(type.shape).drop_back(2); };
  if (!is_16_bit_float(a.dtype) || b.dtype != a.dtype || y.dtype != a.dtype || batch_of(a) != batch_of(b))
    return std::nullopt;
  const bool turns_a = call.get_int("transpose_a") != 0, turns_b = call.get_int("transpose_b") != 0;
  const int64_t batch = element_count(batch_of(y)), rows = y.shape[y.rank() - 2], columns = y.shape.back(),
                inner = turns_a ? a.shape[a.rank() - 2] : a.shape.back();
  const auto sizes = [&](cuda::FewRowsForm form, int64_t few, int64_t down, int64_t across) {
    constexpr int64_t most = INT32_MAX;
    return cuda::FewRows{form, batch, static_cast<int>(std::min(few, most)), static_cast<int>(std::min(down, most)),
                         static_cast<int>(std::min(across, most))};
  };
  if (batch < least_matrices || (turns_a && turns_b)) return std::nullopt;
  const cuda::FewRows made = turns_a   ? sizes(cuda::FewRowsForm::Outer, inner, rows, columns)
                             : turns_b ? sizes(cuda::FewRowsForm::Turned, rows, columns, inner)
                                       : sizes(cuda::FewRowsForm::Plain, rows, inner, columns);
  return fits(made) ? std::optional(made) : std::nullopt;
}

bool accepts_few_rows_product(const OpCall& call, llvm::ArrayRef<Type> results) {
  return few_rows_of(call, results).has_value();
}

// Of a copy's time, by form: fitted to 9 products of 4 rows by matrices of 16 columns, which are within 15 % of this on
// an H200, and roughly to 9 by wider ones.
double few_rows_product_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double narrow_times[] = {1.37, 1.12, 1.37}, wide_times[] = {1.5, 1.75, 1.5};
  if (device.memory_gb_per_s <= 0) return 0;
  const cuda::FewRows sizes = *few_rows_of(call, llvm::cantFail(infer(call)));
  const auto bytes = static_cast<double>(sizes.elements() * dtype_bytes(call["a"].dtype));
  const double times =
      (sizes.across == cuda::FewRows::tile ? narrow_times : wide_times)[static_cast<size_t>(sizes.form)];
  return times * bytes / (device.memory_gb_per_s * 1e3) + device.launch_us + device.kernel_us;
}

}  // namespace plimsoll
