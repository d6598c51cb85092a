#include "ir/ops/common/divide.h"
#include "ir/ops/common/reference_math.h"

// matmul_sum is the gradient of a weight that multiplies every matrix of a batch from the left: products of two batches
// that are summed over the batch, so that no product of one matrix is ever in memory.

namespace plimsoll {
namespace {

Result<Types> infer_matmul_sum(const OpCall& call) {
  const Type &a = call["a"], &b = call["b"];
  if (Status s = need_float(call, "a")) return s;
  if (Status s = need_same_dtype(call, "a", "b")) return s;
  if (Status s = need_min_rank(call, "a", 2)) return s;
  if (Status s = need_min_rank(call, "b", 2)) return s;
  Type expected = a;
  expected.shape[a.shape.size() - 2] = b.shape[b.shape.size() - 2];
  if (Status s = need_type(call, "b", expected)) return s;
  Result<DType> dtype = sum_dtype(call);
  if (!dtype) return dtype.takeError();
  const int64_t rows = a.shape[a.shape.size() - 2];
  const Type y(*dtype, {rows, b.shape[b.shape.size() - 2]});
  if (call.get_int("row_sums")) return Types{y, Type(*dtype, {rows})};
  return Types{y};
}

double matmul_sum_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  return 2.0 * static_cast<double>(call["a"].elements()) * static_cast<double>(results[0].shape[1]);
}

void matmul_sum_reference(const ReferenceCall& call) {
  const Type& y = call.out("y").type;
  const int64_t rows = y.shape[0], columns = y.shape[1], inner = call["a"].shape.back();
  const std::vector<double> a = call.load("a"), b = call.load("b");
  const int64_t batch = element_count(llvm::ArrayRef<int64_t>(call["a"].shape).drop_back(2));
  std::vector<double> sums(static_cast<size_t>(rows * columns)), row_sums(static_cast<size_t>(rows));
  for (int64_t n = 0; n < batch; ++n)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < inner; ++k) {
        const double left = a[(n * rows + r) * inner + k];
        row_sums[r] += left;
        for (int64_t c = 0; c < columns; ++c) sums[r * columns + c] += left * b[(n * columns + c) * inner + k];
      }
  call.store(sums, "y");
  if (call.gives("row_sums")) call.store(row_sums, "row_sums");
}

std::optional<ChunkCall> matmul_sum_chunk(const OpCall& call, Chunk) {
  if (call["a"].rank() < 3) return std::nullopt;
  ChunkCall made = cut_operands(call, {"a", "b"});
  made.combine = {Combine::Sum, Combine::Sum};
  return made;
}

std::vector<Sample> matmul_sum_samples() {
  using namespace samples;
  return {
      {{normal({2, 3, 4}), normal({2, 5, 4})}},
      {{normal({3, 4}), normal({5, 4})}, {{"row_sums", 1}}},
      {{normal({2, 3, 2, 8}, DType::BF16), normal({2, 3, 5, 8}, DType::BF16)},
       {{"dtype", DType::F32}, {"row_sums", 1}}},
      {{normal({3, 7, 24}, DType::BF16), normal({3, 9, 24}, DType::BF16)}, {{"row_sums", 1}}},
      {{normal({3, 130, 72}, DType::F16), normal({3, 33, 72}, DType::F16)}, {{"dtype", DType::F32}}},
      {{normal({2, 5, 40}, DType::F16), normal({2, 210, 40}, DType::F16)}, {{"row_sums", 1}}},
  };
}

}  // namespace

constinit const OpDef op_matmul_sum{
    .name = "matmul_sum",
    .summary =
        "a[..., M, K] x b[..., N, K]^T summed over all leading dims, rounded to {dtype} when given; with {row_sums} "
        "also the sums of a's rows",
    .operands = {"a", "b"},
    .results = {"y", "row_sums?row_sums"},
    .attrs = {sum_dtype_attr, {"row_sums", 0}},
    .infer = infer_matmul_sum,
    .gradient = no_second_derivative,
    .flops = matmul_sum_flops,
    .chunk = matmul_sum_chunk,
    .linear = {"sum(a * b)", "sum(a)"},
    .reference = matmul_sum_reference,
    .samples = matmul_sum_samples,
};

}  // namespace plimsoll
