#include "ir/fused_body.h"
#include "ir/ops/common/samples.h"
#include "ir/text.h"
#include "runtime/cuda/compiled_kernels.h"
#include "tests/kernels/kernel_run.h"

#include "doctest/doctest.h"
#include "llvm/ADT/STLExtras.h"

// Bodies with every op that may be in one, a few ops at a time: the CPU's kernel agrees with the reference, and NVRTC
// compiles what is generated for a GPU.

using namespace plimsoll;
using namespace plimsoll::testing;

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

std::vector<KernelCase> cases(DType dtype) {
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
  return all;
}

constexpr DType dtypes[] = {DType::F32, DType::BF16, DType::F16};

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("the CPU's kernel of fused ops has every op of a body") {
    const CpuKernelTable table;
    for (DType dtype : dtypes)
      for (const KernelCase& c : cases(dtype)) {
        INFO(c.attrs.get_string("body").str());
        const auto types = c.types();
        CHECK(table.candidates(c.op, OpCall(c.op, c.attrs, types), result_types_of(c)).front().name() == "blocks");
        check_against_reference(table, c);
      }
  }

  TEST_CASE("long rows and columns of fused ops cross the CPU's blocks") {
    const CpuKernelTable table;
    const Attrs attrs{{"body", std::string("graph @body(%x0: f32[], %x1: bf16[], %x2: f32[]) { %v0 = mul(%x0, %x2) "
                                           "%v1 = cast(%x1) {to=f32} %v2 = add(%v0, %v1) return %v2 }")}};
    using namespace samples;
    check_against_reference(
        table, KernelCase("fused", attrs, {normal({7, 1500}), normal({1500}, DType::BF16), normal({7, 1})}, 1));
    check_against_reference(
        table, KernelCase("fused", attrs, {normal({30, 5, 33}), normal({5, 1}, DType::BF16), normal({30, 1, 33})}, 2));
  }
}

TEST_SUITE("unit") {
  TEST_CASE("NVRTC compiles what is generated for every op of a body") {
    if (!has_nvrtc()) {
      MESSAGE("skipped: NVRTC is not here");
      return;
    }
    std::vector<FusedSource> sources;
    auto add = [&](const KernelCase& c) {
      const auto types = c.types();
      sources.push_back(fused_source(OpCall(c.op, c.attrs, types), result_types_of(c)));
    };
    for (DType dtype : dtypes)
      for (const KernelCase& c : cases(dtype)) add(c);
    uint32_t seed = 1;
    for (const Sample& sample : get_op("fused").samples())
      add(KernelCase("fused", sample.attrs, sample.operands, seed++));
    Result<std::vector<KernelCode>> codes = compile_kernels(sources, 90);
    if (!codes) FAIL(llvm::toString(codes.takeError()));
    for (size_t i = 0; i < sources.size(); ++i) {
      CHECK((*codes)[i].name == sources[i].name);
      CHECK(llvm::StringRef((*codes)[i].cubin)
                .startswith("\x7f"
                            "ELF"));
    }
  }

  TEST_CASE("bodies that no kernel has are refused") {
    auto refusal = [](llvm::StringRef body) {
      Result<FusedBody> made = fused_body(body);
      return made ? std::string() : llvm::toString(made.takeError());
    };
    const auto says = [&](llvm::StringRef body, llvm::StringRef what) {
      const std::string why = refusal(body);
      INFO(why);
      CHECK(llvm::StringRef(why).contains(what));
    };
    says("graph @body(%x: f32[2]) { %y = exp(%x) return %y }", "operand x of a body is f32[2]");
    says("graph @body(%x: f32[]) { return %x }", "a result of a body is its operand");
    says("graph @body(%x: i64[]) { %y = add(%x, %x) return %y }", "add of these types cannot be in a body");
    says("graph @body(%x: f32[]) { %y = reduce_sum(%x) {axes=[], keep_dims=0} return %y }", "cannot be in a body");
    says("graph @body(%x: f32[]) state(%s: f32[] parameter) { %y = mul(%x, %s) return %y }", "a body has no states");
    says("graph @body(%x: f32[], %r: i64[2]) { %y = dropout(%x, %r) {first_draw=4, id=1, ratio=0.5} return %y }",
         "says where random numbers begin");
    says("graph @body(%x: f32[]) { %y = ", "body:1:");
  }
}
