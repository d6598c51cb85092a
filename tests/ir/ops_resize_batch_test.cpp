// Tests single records beyond the shared contract: how shapes in attributes follow the batch, and the errors of
// inference for operands that do not fit.

#include "ir/op_def.h"
#include "ir/text.h"

#include "doctest/doctest.h"

using namespace plimsoll;

namespace {

Type f32(llvm::ArrayRef<int64_t> shape) { return Type(DType::F32, shape); }

// Returns the attributes after operand 0 changed its shape, or the error.
std::string for_batch(llvm::StringRef op, const Attrs& attrs, Shape before, Shape after) {
  const Type from = f32(before), now = f32(after);
  const llvm::SmallVector<const Type*, 1> operands{&from}, changed{&now};
  Result<Attrs> result = get_op(op).attrs_for_batch(OpCall(get_op(op), attrs, operands), changed);
  return result ? to_text(*result) : llvm::toString(result.takeError());
}

Attrs shape_attr(Ints shape) { return {{"shape", std::move(shape)}}; }

// Returns the inferred result types, or the error.
std::string inferred(llvm::StringRef op, const Attrs& attrs, llvm::ArrayRef<Type> operands) {
  llvm::SmallVector<const Type*, 4> pointers;
  for (const Type& type : operands) pointers.push_back(&type);
  Result<Types> types = infer(OpCall(get_op(op), attrs, pointers));
  if (!types) return llvm::toString(types.takeError());
  std::string text;
  for (const Type& type : *types) text += (text.empty() ? "" : " ") + to_string(type);
  return text;
}

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("a reshape follows a batch that leads its group of dimensions") {
    CHECK(for_batch("reshape", shape_attr({8, 16}), {2, 4, 16}, {3, 4, 16}) == "{shape=[12,16]}");
    CHECK(for_batch("reshape", shape_attr({2, 4, 4, 4}), {8, 16}, {12, 16}) == "{shape=[3,4,4,4]}");
    CHECK(for_batch("reshape", shape_attr({1, 2, 64}), {2, 4, 16}, {6, 4, 16}) == "{shape=[1,6,64]}");
    CHECK(for_batch("reshape", shape_attr({1, 4, 2, 8}), {1, 4, 16}, {5, 4, 16}) == "{shape=[5,4,2,8]}");
    CHECK(for_batch("reshape", shape_attr({8}), {2, 4}, {2, 4}) == "{shape=[8]}");
  }

  TEST_CASE("a reshape refuses a batch inside a group") {
    CHECK(for_batch("reshape", shape_attr({8, 16}), {4, 2, 16}, {4, 3, 16}) ==
          "reshape from [4,2,16] to [8,16] cannot follow dimension 1 from 2 to 3: the batch does not lead "
          "its group of "
          "dimensions");
    // Eight rows hold two samples; nine rows hold no whole number of samples.
    CHECK(llvm::StringRef(for_batch("reshape", shape_attr({2, 4, 4, 4}), {8, 16}, {9, 16})).contains("cannot follow"));
  }

  TEST_CASE("expand and slice follow dimensions they leave whole") {
    CHECK(for_batch("expand", shape_attr({5, 2, 7}), {2, 1}, {3, 1}) == "{shape=[5,3,7]}");
    CHECK(for_batch("expand", shape_attr({4, 7}), {1, 7}, {3, 7}) ==
          "expand to [4,7] cannot follow dimension 0 from 1 to 3");
    Attrs slice{{"starts", Ints{3, 1}}, {"steps", Ints{-1, 1}}, {"sizes", Ints{4, 2}}};
    CHECK(for_batch("slice", slice, {4, 8}, {6, 8}) == "{sizes=[6,2], starts=[5,1], steps=[-1,1]}");
    CHECK(for_batch("slice", slice, {4, 8}, {4, 9}) ==
          "takes a part of dimension 1, which changes from 8 to 9 with the batch");
  }

  TEST_CASE("inference names what does not fit") {
    CHECK(inferred("add", {}, {f32({2, 3}), f32({4, 1, 3})}) == "f32[4,2,3]");
    CHECK(inferred("add", {}, {f32({2, 3}), f32({2, 4})}) == "shapes do not broadcast: [2,3] and [2,4]");
    CHECK(inferred("add", {}, {f32({2}), Type(DType::I64, {2})}) == "operands 0 and 1 differ in dtype: f32 and i64");
    CHECK(inferred("exp", {}, {Type(DType::I64, {2})}) == "operand 0 is i64[2], it must be a float");
    CHECK(inferred("exp", {{"alpha", 1.0}}, {f32({2})}) == "unknown attribute 'alpha'");
    CHECK(inferred("elu", {}, {f32({2})}) == "attribute 'alpha' is missing");
    CHECK(inferred("elu", {{"alpha", std::string("1")}}, {f32({2})}) == "attribute 'alpha' must be a number");
    CHECK(inferred("reshape", shape_attr({4, 2}), {f32({2, 3})}) == "f32[2,3] has 6 elements, shape [4,2] has 8");
    CHECK(inferred("transpose", {{"perm", Ints{0, 0}}}, {f32({2, 3})}) == "perm [0,0] is no permutation");
    CHECK(inferred("slice", {{"starts", Ints{3}}, {"steps", Ints{2}}, {"sizes", Ints{3}}}, {f32({6})}) ==
          "dimension 0: indices 3 to 7 of a dimension of 6");
    CHECK(inferred("split", {{"axis", int64_t{0}}, {"sizes", Ints{2, 3}}}, {f32({6})}) ==
          "sizes add up to 5, dimension 0 is 6");
    CHECK(inferred("reduce_sum", {{"axes", Ints{2}}}, {f32({2, 3})}) == "axis 2 is outside the rank 2");
    CHECK(inferred("gather", {{"axis", int64_t{1}}}, {f32({2, 3}), f32({2})}) ==
          "operand 1 is f32[2], it must be i32 or i64");
    CHECK(inferred("top_k", {{"axis", int64_t{0}}, {"k", int64_t{7}}}, {f32({6})}) == "k is 7 of 6 elements");
  }
}
