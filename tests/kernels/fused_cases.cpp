#include "tests/kernels/fused_cases.h"

#include "ir/fused_body.h"
#include "ir/ops/common/samples.h"
#include "ir/text.h"

namespace plimsoll::testing {
namespace {

constexpr size_t ops_per_body = 5;

SampleOperand stored(SampleOperand operand, DType dtype) {
  if (operand.type.dtype == DType::F32) operand.type.dtype = dtype;
  return operand;
}

// Ops side by side, each on operands of its own, as text.
class BodyOfMany {
 public:
  // Does the op fit at all?
  bool add(const OpDef& op, DType dtype) {
    const Sample sample = op.samples().front();
    std::vector<Type> types;
    for (const SampleOperand& operand : sample.operands) types.emplace_back(stored(operand, dtype).type.dtype, Shape{});
    if (op.name == "dropout") types[1] = Type(DType::I64, {2});
    llvm::SmallVector<const Type*, 4> pointers;
    for (const Type& type : types) pointers.push_back(&type);
    Result<Types> results = infer(OpCall(op, sample.attrs, pointers));
    if (!results) return llvm::consumeError(results.takeError()), false;
    if (!fits_fused_body(op, pointers, *results)) return false;
    std::string operands;
    for (size_t i = 0; i < types.size(); ++i) {
      const std::string name = "%x" + std::to_string(operands_.size());
      inputs_ += (operands_.empty() ? "" : ", ") + name + ": " + to_string(types[i]);
      operands += (i ? ", " : "") + name;
      operands_.push_back(shaped(stored(sample.operands[i], dtype), i));
    }
    const std::string result = "%v" + std::to_string(count_);
    Attrs attrs = sample.attrs;
    attrs.erase("first_draw");
    const std::string attributes = to_text(attrs);
    nodes_ +=
        " " + result + " = " + op.name.str() + "(" + operands + ")" + (attributes.empty() ? "" : " " + attributes);
    results_ += (count_++ ? ", " : " ") + result;
    return true;
  }

  size_t count() const { return count_; }
  KernelCase take(uint32_t seed) const {
    Attrs attrs;
    attrs.set("body", "graph @body(" + inputs_ + ") {" + nodes_ + " return" + results_ + " }");
    return KernelCase("fused", attrs, operands_, seed);
  }

 private:
  // The first operand has every element, others repeat along one dimension or the other.
  static SampleOperand shaped(SampleOperand operand, size_t i) {
    if (operand.type.dtype == DType::I64 && operand.fill == SampleOperand::Fill::Values) return operand;
    if (operand.fill == SampleOperand::Fill::Values) operand.fill = SampleOperand::Fill::Normal;
    const Shape shapes[] = {{6, 40}, {6, 40}, {40}, {6, 1}};
    operand.type.shape = shapes[i % 4];
    return operand;
  }

  std::vector<SampleOperand> operands_;
  std::string inputs_, nodes_, results_;
  size_t count_ = 0;
};

}  // namespace

std::vector<KernelCase> fused_element_cases(DType dtype) {
  std::vector<KernelCase> all;
  BodyOfMany body;
  auto finish = [&] {
    if (body.count() > 0) all.push_back(body.take(static_cast<uint32_t>(all.size() + 1)));
    body = BodyOfMany();
  };
  for (const OpDef* op : all_ops()) {
    if (op->name == "fused") continue;
    body.add(*op, dtype);
    if (body.count() == ops_per_body) finish();
  }
  finish();
  // Sines of multiples of pi, and of more than their own kernels reduce.
  for (const char* op : {"sin", "cos"}) {
    const Attrs attrs{
        {"body", "graph @body(%x0: " + dtype_name(dtype).str() + "[]) { %v0 = " + op + "(%x0) return %v0 }"}};
    const SampleOperand large =
        samples::values({9}, {0, 3.140625, -6.28125, 157.5, -22016, 32640, 33024, -60000, 65000}, dtype);
    all.emplace_back("fused", attrs, llvm::ArrayRef(large), static_cast<uint32_t>(all.size() + 1));
  }
  // What a constant alone makes has no operands.
  const Attrs of_nothing{{"body", "graph @body() { %c = constant() {value=f32[]<3.0>} %v = exp(%c) return %v }"}};
  if (dtype == DType::F32) all.emplace_back("fused", of_nothing, llvm::ArrayRef<SampleOperand>(), 1);
  return all;
}

std::vector<KernelCase> fused_line_cases() {
  using namespace samples;
  std::vector<KernelCase> all;
  auto add = [&](const std::string& body, const Ints& parts, llvm::ArrayRef<SampleOperand> operands) {
    Attrs attrs{{"body", "graph @body(" + body + " }"}, {"first_draw", int64_t{12}}};
    if (!parts.empty()) attrs.set("parts", parts);
    all.emplace_back("fused", attrs, operands, static_cast<uint32_t>(all.size() + 1));
  };
  const SampleOperand rng = values({2}, {1234567, 5}, DType::I64);
  // Lines of one number of a plane, of a row, and both; longer and shorter than a run of 8.
  for (const Shape& sizes :
       {Shape{11, 6, 49}, Shape{300, 7, 9}, Shape{40, 5, 30}, Shape{57, 33, 5}, Shape{5, 3, 1001}, Shape{129, 2, 3}})
    for (DType dtype : {DType::BF16, DType::F32}) {
      const std::string type = dtype == DType::F32 ? "f32" : "bf16";
      add("%x0: " + type + "[], %x1: " + type + "[], %x2: f32[], %x3: i64[2], %x4: " + type +
              "[]) { %v0 = mul(%x0, %x1) %v1 = dropout(%v0, %x3) {id=3, ratio=0.25} %v2 = cast(%v1) {to=f32} %v3 = "
              "add(%v2, %x2) %v4 = sub(%v1, %x4) return %v3, %v4",
          {},
          {normal(sizes, dtype), normal({sizes[1], 1}, dtype), normal({sizes[0], 1, sizes[2]}), rng,
           normal({sizes[2]}, dtype)});
      // What lines alone make is computed once each.
      add("%x0: " + type +
              "[], %x1: f32[], %x2: f32[], %x3: f32[]) { %c0 = constant() {value=f32[]<0.5>} %v1 = "
              "div(%x1, %x2) %v2 = add(%v1, %c0) %v3 = exp(%v2) %v4 = mul(%v3, %x3) %v5 = cast(%x0) {to=f32} %v6 = "
              "mul(%v5, %v4) %v7 = add(%v6, %v2) return %v7",
          {}, {normal(sizes, dtype), normal({sizes[1], 1}), positive({sizes[0], sizes[1], 1}), normal({1, 1, 1})});
    }
  // Neighbours of one row of a longer one, as relative positions have them.
  add("%x0: bf16[], %x1: f32[]) { %v0 = cast(%x0) {to=f32} %v1 = add(%v0, %x1) return %v1", {0, 2, 3, 16},
      {normal({7, 9, 31}, DType::BF16), normal({9, 16})});
  add("%x0: bf16[], %x1: bf16[]) { %v0 = mul(%x0, %x1) return %v0", {0, 2, 2, 13},
      {normal({7, 9, 31}, DType::BF16), normal({7, 1, 13}, DType::BF16)});
  return all;
}

std::vector<KernelCase> fused_reduction_cases() {
  using namespace samples;
  std::vector<KernelCase> all;
  auto add = [&](const std::string& body, llvm::ArrayRef<SampleOperand> operands) {
    Attrs attrs{{"body", "graph @body(" + body + " }"}, {"first_draw", int64_t{12}}};
    all.emplace_back("fused", attrs, operands, static_cast<uint32_t>(all.size() + 1));
  };
  const SampleOperand rng = values({2}, {1234567, 5}, DType::I64);
  for (const char* shape : {"37,70,24", "3,1100,5", "2,9,1300"}) {
    Shape sizes;
    llvm::SmallVector<llvm::StringRef, 3> parts;
    llvm::StringRef(shape).split(parts, ',');
    for (llvm::StringRef part : parts) sizes.push_back(std::stoll(part.str()));
    const std::string whole = "[" + std::string(shape) + "]", inner = std::to_string(sizes[2]);
    const std::string totals = "[" + std::to_string(sizes[0]) + ",1," + inner + "]";
    // One total for each column of each image, and one for each column.
    add("%x0: bf16" + whole + ", %x1: f32[" + inner + "]) { %v0 = cast(%x0) {to=f32} %v1 = mul(%v0, %x1) " +
            "%v2 = reduce_mean(%v1) {axes=[1], keep_dims=1} %v3 = silu(%v2) %v4 = reduce_max(%v1) {axes=[1], " +
            "keep_dims=1} return %v1, %v3, %v4",
        {normal(sizes, DType::BF16), normal({sizes[2]})});
    add("%x0: f32" + whole + ", %x1: i64[2], %x2: f32" + totals + ") { %v0 = dropout(%x0, %x1) {id=3, ratio=0.25} " +
            "%v1 = sub(%v0, %x2) %v2 = reduce_sum(%v1) {axes=[0,1], keep_dims=1} return %v1, %v2",
        {normal(sizes), rng, normal({sizes[0], 1, sizes[2]})});
    // A softmax of rows, a norm in 16 bits, and the sum of all.
    add("%x0: f32" + whole + ") { %v0 = reduce_max(%x0) {axes=[2], keep_dims=1} %v1 = sub(%x0, %v0) %v2 = exp(%v1) " +
            "%v3 = reduce_sum(%v2) {axes=[2], keep_dims=1} %v4 = div(%v2, %v3) return %v4, %v3",
        {normal(sizes)});
    add("%x0: bf16" + whole + ", %x1: f32[" + inner + "]) { %v0 = cast(%x0) {to=f32} %v1 = mul(%v0, %v0) " +
            "%v2 = reduce_mean(%v1) {axes=[1,2], keep_dims=1} %v3 = rsqrt(%v2) %v4 = mul(%v0, %v3) %v5 = mul(%v4, "
            "%x1) " +
            "%v6 = cast(%v5) {to=bf16} return %v6, %v3",
        {normal(sizes, DType::BF16), normal({sizes[2]})});
    add("%x0: f32" + whole + ", %x1: f32" + whole +
            ") { %v0 = sub(%x0, %x1) %v1 = mul(%v0, %v0) %v2 = reduce_sum(%v1) " +
            "{axes=[0,1,2], keep_dims=1} %v3 = sqrt(%v2) return %v3",
        {normal(sizes), normal(sizes)});
  }
  // What is reduced is read by nothing else, and other elements follow.
  add("%x0: f32[6,40,9]) { %v0 = exp(%x0) %v1 = reduce_sum(%v0) {axes=[1], keep_dims=1} %v2 = neg(%x0) %v3 = tanh(%v2) "
      "return %v3, %v1",
      {normal({6, 40, 9})});
  // Few rows of so many columns that a thread has all rows of its own.
  add("%x0: bf16[45100,3,24], %x1: bf16[45100,3,1]) { %v0 = mul(%x0, %x1) %v1 = reduce_sum(%v0) {axes=[1], dtype=f32, "
      "keep_dims=1} return %v1",
      {normal({45100, 3, 24}, DType::BF16), normal({45100, 3, 1}, DType::BF16)});
  add("%x0: f32[136000,5,4]) { %v0 = exp(%x0) %v1 = reduce_max(%v0) {axes=[1], keep_dims=1} %v2 = neg(%v1) return %v0, "
      "%v2",
      {normal({136000, 5, 4})});
  // Many images of few columns, which a warp has each, and so many short rows that a thread has each.
  add("%x0: bf16[4300,70,4], %x1: f32[4300,1,4]) { %v0 = cast(%x0) {to=f32} %v1 = div(%v0, %x1) %v2 = reduce_sum(%v1) "
      "{axes=[1], keep_dims=1} %v3 = cast(%v1) {to=bf16} return %v3, %v2",
      {normal({4300, 70, 4}, DType::BF16), positive({4300, 1, 4})});
  add("%x0: bf16[4225,31,9], %x1: bf16[4225,31,1]) { %v0 = mul(%x0, %x1) %v1 = reduce_max(%v0) {axes=[1], keep_dims=1} "
      "%v2 = reduce_sum(%v0) {axes=[1], keep_dims=1} return %v1, %v2",
      {normal({4225, 31, 9}, DType::BF16), normal({4225, 31, 1}, DType::BF16)});
  add("%x0: bf16[2120,64,9], %x1: bf16[2120,1,9]) { %v0 = mul(%x0, %x1) %v1 = reduce_sum(%v0) {axes=[2], dtype=f32, "
      "keep_dims=1} return %v1",
      {normal({2120, 64, 9}, DType::BF16), normal({2120, 1, 9}, DType::BF16)});
  add("%x0: f32[135180,7]) { %v0 = reduce_max(%x0) {axes=[1], keep_dims=1} %v1 = sub(%x0, %v0) %v2 = exp(%v1) %v3 = "
      "reduce_sum(%v2) {axes=[1], keep_dims=1} %v4 = div(%v2, %v3) return %v4",
      {normal({135180, 7})});
  // Without a reduction: more is read for columns than for elements, as in a norm of channels.
  for (const Shape& sizes : {Shape{5, 90, 24}, Shape{333, 1, 40}, Shape{2, 1000, 512}})
    add("%x0: bf16[], %x1: f32[], %x2: f32[], %x3: f32[], %x4: bf16[], %x5: i64[2]) { %v0 = cast(%x0) {to=f32} "
        "%v1 = sub(%v0, %x1) %v2 = mul(%v1, %x2) %v3 = add(%v2, %x3) %v4 = cast(%v3) {to=bf16} %v5 = silu(%v4) "
        "%v6 = mul(%v5, %x4) %v7 = dropout(%v6, %x5) {id=3, ratio=0.5} return %v7",
        {normal(sizes, DType::BF16), normal({sizes[2]}), positive({sizes[2]}), normal({sizes[2]}),
         normal({sizes[0], 1, sizes[2]}, DType::BF16), rng});
  return all;
}

}  // namespace plimsoll::testing
