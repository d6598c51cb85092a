#include "ir/fused_body.h"
#include "ir/ops/common/samples.h"
#include "ir/support/strings.h"
#include "ir/text.h"
#include "runtime/cuda/compiled_kernels.h"
#include "tests/kernels/fused_cases.h"

#include "doctest/doctest.h"
#include "llvm/ADT/STLExtras.h"

// Bodies with every op that may be in one, a few ops at a time: the CPU's kernel agrees with the reference, and NVRTC
// compiles what is generated for a GPU.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

constexpr DType dtypes[] = {DType::F32, DType::BF16, DType::F16};

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("the CPU's kernel of fused ops has every op of a body") {
    const CpuKernelTable table;
    for (DType dtype : dtypes)
      for (const KernelCase& c : fused_element_cases(dtype)) {
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

  TEST_CASE("fused ops over odd lines and parts of operands, and with reductions over rows of any length") {
    const CpuKernelTable table;
    for (const std::vector<KernelCase>& cases : {fused_line_cases(), fused_reduction_cases()})
      for (const KernelCase& c : cases) {
        INFO(c.attrs.get_string("body").str());
        const auto types = c.types();
        CHECK(table.candidates(c.op, OpCall(c.op, c.attrs, types), result_types_of(c)).front().name() == "blocks");
        check_against_reference(table, c);
      }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("generated kernels write whole words of odd lines, and share out short rows and few columns") {
    using namespace samples;
    const auto blocks = [](const std::string& body, llvm::ArrayRef<SampleOperand> operands, const Ints& parts = {}) {
      Attrs attrs{{"body", "graph @body(" + body + " }"}};
      if (!parts.empty()) attrs.set("parts", parts);
      const KernelCase c("fused", attrs, operands, 1);
      const auto types = c.types();
      return fused_source(OpCall(c.op, c.attrs, types), result_types_of(c)).blocks;
    };
    const SampleOperand maps = normal({64, 512, 7, 7}, DType::BF16), gates = normal({64, 512, 1, 1}, DType::BF16);
    CHECK(blocks("%x0: bf16[], %x1: bf16[]) { %v0 = mul(%x0, %x1) return %v0", {maps, gates}) ==
          64 * 512 * 49 / 8 / 256);
    CHECK(blocks("%x0: bf16[]) { %v0 = exp(%x0) return %v0", {normal({512, 1023}, DType::BF16)}, {0, 1, 1, 512}) ==
          512 * 512 / 8 / 256);
    // A thread for each row of 9, and a warp for all rows of 4 columns.
    CHECK(blocks("%x0: bf16[2120,64,9]) { %v0 = exp(%x0) %v1 = reduce_sum(%v0) {axes=[2], dtype=f32, keep_dims=1} "
                 "return %v1",
                 {normal({2120, 64, 9}, DType::BF16)}) == 530);
    CHECK(blocks("%x0: f32[8000,196,4]) { %v0 = exp(%x0) %v1 = reduce_sum(%v0) {axes=[1], keep_dims=1} return %v1",
                 {normal({8000, 196, 4})}) == 1000);
  }

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
      for (const KernelCase& c : fused_element_cases(dtype)) add(c);
    for (const KernelCase& c : fused_line_cases()) add(c);
    for (const KernelCase& c : fused_reduction_cases()) add(c);
    uint32_t seed = 1;
    for (const Sample& sample : get_op("fused").samples())
      add(KernelCase("fused", sample.attrs, sample.operands, seed++));
    Result<std::vector<KernelCode>> codes = compile_kernels(sources, 90);
    if (!codes) FAIL(llvm::toString(codes.takeError()));
    for (size_t i = 0; i < sources.size(); ++i) {
      CHECK((*codes)[i].name == sources[i].name);
      CHECK(starts_with((*codes)[i].cubin, "\177ELF"));
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
    says("graph @body(%x: f32[4,8]) { %y = reduce_sum(%x) {axes=[1], keep_dims=0} return %y }", "cannot be in a body");
    says("graph @body(%x: f32[4,8,2]) { %y = reduce_sum(%x) {axes=[0,2], keep_dims=1} return %y }",
         "the dimensions that a body reduces are not neighbours: [4,8,2] to [1,8,1]");
    says(
        "graph @body(%x: f32[4,8]) { %a = reduce_sum(%x) {axes=[1], keep_dims=1} %b = reduce_sum(%x) {axes=[0], "
        "keep_dims=1} return %a, %b }",
        "reduces [4,8] to [1,8], another reduction [4,8] to [4,1]");
    says("graph @body(%x: f32[4,8]) { %a = reduce_sum(%x) {axes=[0], keep_dims=1} %b = div(%x, %a) return %b }",
         "is made of elements and of totals over rows");
    says(
        "graph @body(%x: f32[4,8], %s: f32[8]) { %a = reduce_sum(%x) {axes=[0], keep_dims=1} %b = exp(%s) "
        "return %a, %b }",
        "result b of a body has neither its elements nor its totals");
    says(
        "graph @body(%x: f32[4,8], %s: f32[3,4,8]) { %y = reduce_sum(%x) {axes=[1], keep_dims=1} %z = exp(%s) return "
        "%y "
        "}",
        "operand s is f32[3,4,8], which does not repeat over [4,8]");
    says("graph @body(%x: f32[]) state(%s: f32[] parameter) { %y = mul(%x, %s) return %y }", "a body has no states");
    says("graph @body(%x: f32[], %r: i64[2]) { %y = dropout(%x, %r) {first_draw=4, id=1, ratio=0.5} return %y }",
         "says where random numbers begin");
    says("graph @body(%x: f32[]) { %y = ", "body:1:");
  }
}
