#include "ir/ops/common/divide.h"
#include "ir/ops/common/reference_math.h"

// matmul multiplies two batches of matrices, either of which may be read transposed.
// The gradients are matmuls again, so no transpose is ever materialised.

namespace plimsoll {
namespace {

// The last two dimensions of an operand, as the matmul sees them.
struct Matrix {
  int64_t rows, columns;
  Matrix(const Type& type, bool transposed)
      : rows(type.shape[type.rank() - (transposed ? 1 : 2)]), columns(type.shape[type.rank() - (transposed ? 2 : 1)]) {}
};

llvm::ArrayRef<int64_t> batch_of(const Type& type) { return llvm::ArrayRef<int64_t>(type.shape).drop_back(2); }

Result<Types> infer_matmul(const OpCall& call) {
  const Type &a = call["a"], &b = call["b"];
  if (!is_float(a.dtype) && !is_integer(a.dtype))
    return model_error("operand 0 is " + to_string(a) + ", it must be a float or an integer");
  if (Status s = need_same_dtype(call, "a", "b")) return s;
  if (Status s = need_min_rank(call, "a", 2)) return s;
  if (Status s = need_min_rank(call, "b", 2)) return s;
  Matrix left(a, call.get_int("transpose_a")), right(b, call.get_int("transpose_b"));
  if (left.columns != right.rows)
    return model_error("inner sizes differ: " + llvm::Twine(left.columns) + " and " + llvm::Twine(right.rows) + " in " +
                       to_string(a) + " x " + to_string(b));
  std::optional<Shape> shape = broadcast_shapes(batch_of(a), batch_of(b));
  if (!shape) return model_error("leading dimensions do not broadcast: " + to_string(a) + " x " + to_string(b));
  shape->append({left.rows, right.columns});
  Result<DType> dtype = sum_dtype(call);
  if (!dtype) return dtype.takeError();
  return Types{Type(*dtype, *shape)};
}

Attrs flags(bool transpose_a, bool transpose_b) {
  Attrs attrs;
  if (transpose_a) attrs.set("transpose_a", 1);
  if (transpose_b) attrs.set("transpose_b", 1);
  return attrs;
}

// A rank-2 view of a batch of matrices, one under another.
ValueId stacked(GradContext& g, ValueId x) {
  const Type type = g.type(x);
  return g.b.reshape(x, {element_count(llvm::ArrayRef<int64_t>(type.shape).drop_back()), type.shape.back()});
}

// dy in the dtype of the operands it is multiplied with.
ValueId matmul_grad(GradContext& g) { return g.b.cast(g.out_grad(), g.type(g["a"]).dtype); }

ValueId right_gradient(GradContext& g, bool transpose_a, bool transpose_b) {
  ValueId a = g["a"], dy = matmul_grad(g);
  const Shape shape = g.type(g["b"]).shape;
  // One b for the whole batch: the sum over the batch belongs to one long matmul.
  bool one_b = element_count(batch_of(g.type(g["b"]))) == 1;
  bool stack = one_b && !transpose_a && g.type(a).rank() == g.type(dy).rank();
  if (stack) {
    a = stacked(g, a);
    dy = stacked(g, dy);
  }
  ValueId db = transpose_b ? g.b.emit("matmul", {dy, a}, flags(true, transpose_a))
                           : g.b.emit("matmul", {a, dy}, flags(!transpose_a, false));
  return stack ? g.b.reshape(db, shape) : g.b.sum_to_shape(db, shape);
}

void matmul_gradient(GradContext& g) {
  bool transpose_a = g.attrs().get_int("transpose_a"), transpose_b = g.attrs().get_int("transpose_b");
  if (g.wants("a")) {
    ValueId dy = matmul_grad(g), b = g["b"];
    ValueId da = transpose_a ? g.b.emit("matmul", {b, dy}, flags(transpose_b, true))
                             : g.b.emit("matmul", {dy, b}, flags(false, !transpose_b));
    g.add("a", g.b.sum_to_shape(da, Shape(g.type(g["a"]).shape)));
  }
  if (g.wants("b")) g.add("b", right_gradient(g, transpose_a, transpose_b));
}

double matmul_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  Matrix left(call["a"], call.get_int("transpose_a"));
  return 2.0 * static_cast<double>(results[0].elements()) * static_cast<double>(left.columns);
}

// For every matrix of the result, the number of the operand's matrix it is made from.
std::vector<int64_t> batch_map(llvm::ArrayRef<int64_t> result_batch, llvm::ArrayRef<int64_t> operand_batch) {
  std::vector<int64_t> map(static_cast<size_t>(element_count(result_batch)));
  Shape strides = row_major_strides(operand_batch);
  size_t shift = result_batch.size() - operand_batch.size();
  for (size_t n = 0; n < map.size(); ++n) {
    auto rest = static_cast<int64_t>(n);
    for (size_t d = result_batch.size(); d-- > shift; rest /= result_batch[d])
      if (operand_batch[d - shift] != 1) map[n] += rest % result_batch[d] * strides[d - shift];
  }
  return map;
}

// T is double, or uint64_t for integers, which wrap.
template <typename T>
std::vector<T> multiply(const OpCall& call, std::vector<T> a, std::vector<T> b, const Type& result) {
  bool transpose_a = call.get_int("transpose_a"), transpose_b = call.get_int("transpose_b");
  Matrix left(call["a"], transpose_a), right(call["b"], transpose_b);
  int64_t rows = left.rows, inner = left.columns, columns = right.columns;
  if (transpose_a) a = transposed(a, inner, rows);
  if (transpose_b) b = transposed(b, columns, inner);
  std::vector<int64_t> a_of = batch_map(batch_of(result), batch_of(call["a"]));
  std::vector<int64_t> b_of = batch_map(batch_of(result), batch_of(call["b"]));
  std::vector<T> y(static_cast<size_t>(result.elements()));
  for (size_t n = 0; n < a_of.size(); ++n) {
    const T *matrix_a = a.data() + a_of[n] * rows * inner, *matrix_b = b.data() + b_of[n] * inner * columns;
    T* matrix_y = y.data() + static_cast<int64_t>(n) * rows * columns;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < inner; ++k)
        for (int64_t c = 0; c < columns; ++c)
          matrix_y[r * columns + c] += matrix_a[r * inner + k] * matrix_b[k * columns + c];
  }
  return y;
}

Status matmul_reference(const ReferenceCall& call) {
  const TensorView &a = call.in("a"), &b = call.in("b"), &y = call.out("y");
  if (is_float(y.type.dtype)) {
    call.store(multiply(call, call.load("a"), call.load("b"), y.type), "y");
    return Status::success();
  }
  auto bits = [](const TensorView& view) {
    std::vector<uint64_t> values(static_cast<size_t>(view.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint64_t>(view.get_int(static_cast<int64_t>(i)));
    return values;
  };
  std::vector<uint64_t> out = multiply(call, bits(a), bits(b), y.type);
  for (size_t i = 0; i < out.size(); ++i) y.set_int(static_cast<int64_t>(i), static_cast<int64_t>(out[i]));
  return Status::success();
}

// A batch of matrices is cut, or the rows of a single one: those of the result, or of both operands if these are what
// is summed over.
std::optional<ChunkCall> matmul_chunk(const OpCall& call, Chunk) {
  const Type &a = call["a"], &b = call["b"];
  const int64_t rank = std::max(a.rank(), b.rank());
  if (rank == 2 && !call.get_int("transpose_a")) return cut_operands(call, {"a"});
  if (rank == 2 && call.get_int("transpose_b")) return std::nullopt;
  if (rank == 2) return ChunkCall{{true, true}, {Combine::Sum}, call.attrs};
  const int64_t batch = std::max(a.rank() == rank ? a.shape[0] : 1, b.rank() == rank ? b.shape[0] : 1);
  ChunkCall made{{a.rank() == rank && a.shape[0] == batch, b.rank() == rank && b.shape[0] == batch}, {}, call.attrs};
  return made;
}

std::optional<DividedCall> matmul_divide(const OpCall& call, llvm::ArrayRef<Type> results, const CutAt& known,
                                         int64_t) {
  const int64_t rank = results[0].rank();
  const std::string batch = pass_through(rank - 2);
  // Repeated dimensions of a batch are not cut.
  auto batch_letters = [&](const Type& operand) {
    std::string letters;
    for (int64_t d = 0; d + 2 < operand.rank(); ++d) {
      const auto of_result = static_cast<size_t>(d + rank - operand.rank());
      const bool whole = operand.shape[static_cast<size_t>(d)] == results[0].shape[of_result];
      letters += whole ? batch[of_result] : '.';
    }
    return letters;
  };
  const DimLetters dims{{batch_letters(call["a"]) + (call.get_int("transpose_a") ? "km" : "mk"),
                         batch_letters(call["b"]) + (call.get_int("transpose_b") ? "nk" : "kn")},
                        {batch + "mn"}};
  std::optional<DividedCall> made = divide_letters(call, dims, known);
  if (made) made->may_be_uneven = true;
  return made;
}

std::vector<Sample> matmul_samples() {
  using namespace samples;
  return {
      {{normal({3, 4}), normal({4, 2})}},
      {{normal({2, 4, 3}), normal({4, 2})}, {{"transpose_a", 1}}},
      {{normal({2, 3, 4}), normal({5, 4})}, {{"transpose_b", 1}}},
      {{normal({2, 1, 4, 3}), normal({3, 2, 4})}, {{"transpose_a", 1}, {"transpose_b", 1}}},
      {{normal({3, 4}), normal({2, 1, 4, 2})}},
      {{integers({2, 3}, -9, 9), integers({3, 2}, -9, 9)}},
      {{normal({3, 4}, DType::BF16), normal({4, 2}, DType::BF16)}},
      {{normal({5, 3}, DType::BF16), normal({5, 2}, DType::BF16)}, {{"transpose_a", 1}, {"dtype", DType::F32}}},
      {{normal({2, 5, 3}, DType::F16), normal({2, 5, 2}, DType::F16)}, {{"transpose_a", 1}, {"dtype", DType::F32}}},
  };
}

}  // namespace

constinit const OpDef op_matmul{
    .name = "matmul",
    .summary =
        "a[..., M, K] x b[..., K, N], leading dims broadcast; {transpose_a, transpose_b} swap the last two; "
        "{dtype}: what the sums are rounded to",
    .operands = {"a", "b"},
    .attrs = {{"transpose_a", 0}, {"transpose_b", 0}, sum_dtype_attr},
    .infer = infer_matmul,
    .gradient = Gradient::rule(matmul_gradient),
    .precision = Precision::Low,
    .flops = matmul_flops,
    .chunk = matmul_chunk,
    .divide = matmul_divide,
    .linear = {"sum(a * b)"},
    .reference = matmul_reference,
    .samples = matmul_samples,
};

}  // namespace plimsoll
