#pragma once

// Op records share these checks for inference and this index arithmetic for references.

#include "ir/builder.h"

#include <array>
#include <cstring>

namespace plimsoll {

// Every registered record, so that its definition has external linkage.
#define PLIMSOLL_OP(name) extern const OpDef op_##name;
#include "ir/ops/ops.def"
#undef PLIMSOLL_OP

// Moves or makes data, computes nothing.
double no_flops(const OpCall& call, llvm::ArrayRef<Type> results);

// ---- Inference ----

// The operand, by name or by place, must be of that kind. An absent operand passes.
Status need_float(const OpCall& call, PortKey operand);
Status need_integer(const OpCall& call, PortKey operand);
Status need_index(const OpCall& call, PortKey operand);  // i32 or i64
Status need_bool(const OpCall& call, PortKey operand);
Status need_number(const OpCall& call, PortKey operand);  // anything but bool
Status need_rank(const OpCall& call, PortKey operand, int64_t rank);
Status need_type(const OpCall& call, PortKey operand, const Type& type);
// Of any shape with so many elements.
Status need_elements(const OpCall& call, PortKey operand, DType dtype, int64_t count);
Status need_same_dtype(const OpCall& call, PortKey a, PortKey b);
// The integer attribute `name` must be an axis of a tensor of that rank.
Status need_axis(const Attrs& attrs, llvm::StringRef name, int64_t rank);
// The attribute must be a list of `rank` integers.
Status need_length(const Attrs& attrs, llvm::StringRef name, int64_t rank);
// A string attribute must be one of these; an absent one passes.
Status need_choice(const Attrs& attrs, llvm::StringRef name, llvm::ArrayRef<llvm::StringLiteral> choices);

// Long sums may round to another float than they read: {dtype}, such as an f32 weight gradient from bf16 operands.
// Without it, operand 0's dtype.
inline constexpr AttrSpec sum_dtype_attr{"dtype", AttrKind::DType, AttrNeed::Optional};
// What a sum is rounded to: its {dtype}, or the type of the operand at that place, which it sums.
Result<DType> sum_dtype(const OpCall& call, size_t summed = 0);

Result<Types> one_result(DType dtype, llvm::ArrayRef<int64_t> shape);
// One result of operand 0's type.
Result<Types> infer_same(const OpCall& call);
// The same, all operands floats.
Result<Types> infer_same_float(const OpCall& call);
// Numpy broadcasting of all present operands' shapes.
Result<Shape> broadcast_operands(const OpCall& call);

// f64 for f64, else f32: what statistics, losses and long sums are kept in.
DType stat_dtype(DType dtype);
// `shape` with the axes set to 1, or taken out.
Shape reduced_shape(llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> axes, bool keep_dims);
bool contains(llvm::ArrayRef<int64_t> list, int64_t value);

// A node that draws random numbers for a chunk of a batch begins at that number of its stream, a multiple of 4.
inline constexpr AttrSpec first_draw_attr{"first_draw", 0};
// Where ranks take different rows of the batch, each begins so many numbers behind the rank before; 0: all draw alike.
inline constexpr AttrSpec draws_per_rank_attr{"draws_per_rank", 0};
// The same where ranks along the tensor axis take different parts of a value.
inline constexpr AttrSpec draws_per_part_attr{"draws_per_part", 0};
Status need_first_draw(const Attrs& attrs);
// What an op that drops elements has of them: {ratio}, {first_draw} and the operand rng = (seed, step).
Status need_dropout(const OpCall& call);

// ---- Chunks of the batch ----

// Each chunk reads its chunk of these operands, where they are present.
ChunkCall cut_operands(const OpCall& call, std::initializer_list<PortKey> operands);
// Rows of operand 0 make rows of every result.
std::optional<ChunkCall> chunk_of_first(const OpCall& call, Chunk chunk);
// The same unless the op works along {axis} = 0.
std::optional<ChunkCall> chunk_across_axis(const OpCall& call, Chunk chunk);
// The attribute `name` is a shape whose first dimension is cut too; gives none where the chunks would not be equal.
std::optional<ChunkCall> with_chunk_of_shape(ChunkCall made, llvm::StringRef name, Chunk chunk);

// A node that draws `draws` numbers for the whole batch begins each chunk where the one before ends. Gives none where
// the chunks are not equal, whole blocks.
std::optional<ChunkCall> with_chunk_of_draws(ChunkCall made, int64_t draws, Chunk chunk);

// ---- Gradient rules ----

// The value of a one-element `constant`.
std::optional<double> scalar_constant(const Graph& graph, ValueId value);
// Adds a gradient of the broadcast shape to the operand, summed to the operand's own shape.
void add_broadcast(GradContext& g, PortKey operand, ValueId grad);
ValueId zeros(Builder& b, const Type& type);

// ---- References ----

// Strides with which a tensor of shape `from` is read at the indices of `to`: 0 along broadcast dimensions.
Shape broadcast_strides(llvm::ArrayRef<int64_t> from, llvm::ArrayRef<int64_t> to);

// Visits every index of `shape` in row-major order: visit(i, at), where i counts and at[n] is
// at[n]'s first value plus the index times strides[n].
template <size_t N, typename Visit>
void walk(llvm::ArrayRef<int64_t> shape, const std::array<Shape, N>& strides, std::array<int64_t, N> at, Visit visit) {
  Shape index(shape.size(), 0);
  int64_t count = element_count(shape);
  for (int64_t i = 0; i < count; ++i) {
    visit(i, at);
    for (size_t d = shape.size(); d-- > 0;) {
      for (size_t n = 0; n < N; ++n) at[n] += strides[n][d];
      if (++index[d] < shape[d]) break;
      for (size_t n = 0; n < N; ++n) at[n] -= strides[n][d] * shape[d];
      index[d] = 0;
    }
  }
}

// A strided window on a dense tensor: index x sits at base + sum(x * strides).
struct Window {
  TensorView tensor;
  Shape strides;
  int64_t base = 0;
};
Window dense(const TensorView& tensor);
// Moves the elements at all indices of `shape`, bit by bit.
void copy_window(llvm::ArrayRef<int64_t> shape, const Window& to, const Window& from);

// Moves `count` consecutive elements of equal dtype, bit by bit.
inline void copy_elements(const TensorView& to, int64_t to_index, const TensorView& from, int64_t from_index,
                          int64_t count = 1) {
  int64_t bytes = dtype_bytes(to.type.dtype);
  std::memcpy(to.as<char>() + to_index * bytes, from.as<char>() + from_index * bytes,
              static_cast<size_t>(count * bytes));
}
void fill_zero(const TensorView& tensor);

// A tensor seen as [outer, axis, inner].
struct AxisView {
  int64_t outer, length, inner;
  int64_t at(int64_t o, int64_t k, int64_t i) const { return (o * length + k) * inner + i; }
};
AxisView along_axis(llvm::ArrayRef<int64_t> shape, int64_t axis);

}  // namespace plimsoll
