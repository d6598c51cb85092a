#include "ir/ops/common/samples.h"
#include "tests/kernels/kernel_run.h"

#include <omp.h>

#include <cstring>

// Shapes with remainders in every blocked dimension, and large enough for threads: what the records' small
// samples do not reach.

using namespace plimsoll;
using namespace plimsoll::testing;
using namespace plimsoll::samples;

namespace {

const CpuKernelTable& table() {
  static const CpuKernelTable shared;
  return shared;
}

void check(llvm::StringRef op, Attrs attrs, llvm::ArrayRef<SampleOperand> operands) {
  INFO(op.str());
  check_against_reference(table(), KernelCase(op, std::move(attrs), operands, 7));
}

SampleOperand rng() { return values({2}, {1234567, 3}, DType::I64); }

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("products with remainders") {
    check("linear", {}, {normal({5, 67, 131}), normal({131, 259}), normal({259})});
    check("linear", {{"transpose_w", int64_t{1}}}, {normal({67, 131}), normal({259, 131})});
    check("linear", {}, {normal({5, 67, 131}), normal({131, 259}), normal({259}), normal({5, 67, 259})});
    check("linear_dw", {}, {normal({3, 77, 65}), normal({3, 77, 130})});
    check("linear_dw", {}, {normal({3, 77, 65}), normal({3, 77, 130}), normal({65, 130})});
    check("linear_dw", {{"transpose_w", int64_t{1}}}, {normal({77, 65}), normal({77, 130})});
    check("linear_dw", {{"columns", int64_t{101}}}, {normal({77, 65}), normal({77, 130})});
    check("linear_dw", {{"columns", int64_t{101}}, {"transpose_w", int64_t{1}}},
          {normal({77, 65}), normal({77, 130}), normal({101, 65})});
    check("linear_dw", {{"bias", int64_t{1}}}, {normal({3, 77, 65}), normal({3, 77, 130})});
    check("matmul", {{"transpose_b", int64_t{1}}}, {normal({2, 3, 37, 65}), normal({3, 41, 65})});
    check("matmul", {{"transpose_a", int64_t{1}}}, {normal({4, 1, 65, 33}), normal({1, 2, 65, 47})});
    check("matmul", {}, {normal({1, 1}), normal({6, 1, 129})});
  }

  TEST_CASE("products without terms are zero, or the bias") {
    check("matmul", {}, {normal({2, 3, 0}), normal({2, 0, 4})});
    check("linear", {}, {normal({3, 0}), normal({0, 4}), normal({4})});
    check("linear", {}, {normal({3, 0}), normal({0, 4}), normal({4}), normal({3, 4})});
  }

  TEST_CASE("attention over several blocks of queries and keys") {
    auto attrs = [](int64_t heads, int64_t kv_heads, int64_t causal) {
      return Attrs{{"heads", heads}, {"kv_heads", kv_heads}, {"scale", 0.2}, {"causal", causal}};
    };
    check("attention", attrs(2, 2, 0), {normal({2, 101, 34}), normal({2, 131, 34}), normal({2, 131, 34})});
    check("attention", attrs(4, 2, 1), {normal({1, 150, 80}), normal({1, 150, 40}), normal({1, 150, 26})});
    check("attention", attrs(2, 1, 1),
          {normal({1, 70, 32}), normal({1, 130, 16}), normal({1, 130, 16}), bools({70, 130})});
    Attrs packed = attrs(4, 2, 1);
    packed.set("packed", int64_t{1});
    check("attention", packed, {normal({2, 150, 160}), absent(), absent()});
    check(
        "attention_grad", packed,
        {normal({2, 150, 160}), absent(), absent(), normal({2, 150, 80}), positive({2, 4, 150}), normal({2, 150, 80})});
    Attrs dropped = attrs(2, 2, 0);
    dropped.set("dropout", 0.25);
    dropped.set("id", int64_t{9});
    check("attention", dropped,
          {normal({1, 67, 16}), normal({1, 71, 16}), normal({1, 71, 16}), normal({1, 2, 1, 71}), rng()});
    for (int64_t causal : {0, 1})
      check("attention_grad", attrs(4, 2, causal),
            {normal({2, 100, 40}), normal({2, 131, 20}), normal({2, 131, 14}), normal({2, 100, 28}),
             positive({2, 4, 100}), normal({2, 100, 28})});
    check("attention_grad", dropped,
          {normal({1, 67, 16}), normal({1, 71, 16}), normal({1, 71, 16}), normal({1, 67, 16}), positive({1, 2, 67}),
           normal({1, 67, 16}), bools({1, 1, 67, 71}), rng()});
  }

  TEST_CASE("attention with caps, slopes, segments, sinks and windows over several blocks") {
    Attrs capped{{"heads", int64_t{4}}, {"kv_heads", int64_t{2}}, {"scale", 0.2}, {"causal", int64_t{1}}};
    capped.set("softcap", 1.5);
    const SampleOperand slopes = values({4}, {0.25, 0.0625, 0.015625, 0.00390625});
    const SampleOperand q = normal({2, 150, 80}), kv = normal({2, 150, 40}), dy = normal({2, 150, 80});
    const SampleOperand documents = integers({2, 150}, 0, 3), same_documents = integers({1, 150}, 0, 3);
    check("attention", capped, {q, kv, kv, absent(), absent(), slopes, documents, normal({4})});
    check("attention", capped, {q, kv, kv, bools({2, 1, 1, 150}), absent(), absent(), same_documents, normal({4})});
    check("attention_grad", capped, {q, kv, kv, dy, positive({2, 4, 150}), dy, absent(), absent(), slopes, documents});
    for (const char* op : {"attention_mask_grad", "attention_grad_with_mask"})
      check(op, capped,
            {q, kv, kv, dy, positive({2, 4, 150}), dy, normal({1, 4, 150, 150}), absent(), slopes, same_documents});
    for (int64_t causal : {0, 1}) {
      Attrs near{{"heads", int64_t{4}}, {"kv_heads", int64_t{2}}, {"scale", 0.2}, {"causal", causal}};
      near.set("window", int64_t{20});
      check("attention", near, {q, kv, kv});
      check("attention_grad", near, {q, kv, kv, dy, positive({2, 4, 150}), dy});
    }
    check("attention_sinks_grad", {}, {dy, positive({2, 4, 150}), dy, normal({4})});
  }

  TEST_CASE("norms of rows and channels") {
    const Attrs rows{{"axis", int64_t{1}}, {"eps", 1e-5}};
    check("layer_norm", rows, {normal({131, 771}), normal({771}), normal({771})});
    check("rms_norm", rows, {normal({131, 771}), normal({771})});
    const Attrs both{{"axis", int64_t{1}}, {"has_scale", int64_t{1}}, {"has_bias", int64_t{1}}};
    check("layer_norm_grad", both,
          {normal({131, 171}), normal({131, 171}), normal({131, 1}), positive({131, 1}), normal({171})});
    check("rms_norm_grad", {{"axis", int64_t{1}}, {"has_scale", int64_t{1}}},
          {normal({131, 171}), normal({131, 171}), positive({131, 1}), normal({171})});
    check("layer_norm_grad", both,
          {normal({131, 171}), normal({131, 171}), normal({131, 1}), positive({131, 1}), normal({171}),
           normal({131, 171})});
    check("rms_norm_grad", {{"axis", int64_t{1}}},
          {normal({131, 171}), normal({131, 171}), positive({131, 1}), absent(), normal({131, 171})});
    check("batch_norm", {{"eps", 1e-5}}, {normal({3, 37, 15, 17}), normal({37}), normal({37})});
    check("batch_moments", {}, {normal({3, 37, 15, 17})});
    check("merge_moments", {}, {positive({3, 2, 37})});
    check("batch_norm_given", {{"eps", 1e-5}, {"activation", std::string("relu")}},
          {normal({3, 37, 15, 17}), normal({37}), normal({37}), normal({37}), positive({37}), normal({3, 37, 15, 17})});
    check("batch_norm_sums", {{"eps", 1e-5}},
          {normal({3, 37, 15, 17}), normal({3, 37, 15, 17}), normal({37}), normal({37}), positive({37}), normal({37})});
    check("batch_norm_dx", {{"eps", 1e-5}, {"ranks", 3}},
          {normal({3, 37, 15, 17}), normal({3, 37, 15, 17}), normal({37}), normal({37}), positive({37}),
           normal({2, 37}), normal({37})});
    check("batch_norm_grad", {{"eps", 1e-5}},
          {normal({3, 37, 255}), normal({3, 37, 255}), normal({37}), normal({37}), positive({37})});
    check("batch_norm", {{"eps", 1e-5}, {"activation", std::string("relu")}},
          {normal({3, 37, 15, 17}), normal({37}), normal({37}), normal({3, 37, 15, 17})});
    check("batch_norm_grad", {{"eps", 1e-5}},
          {normal({3, 37, 255}), normal({3, 37, 255}), normal({37}), normal({37}), positive({37}), normal({37})});
    check("batch_norm_grad", {{"eps", 1e-5}},
          {normal({3, 37, 255}), normal({3, 37, 255}), normal({37}), normal({37}), positive({37}), absent(),
           normal({3, 37, 255}), normal({3, 37, 255})});
    check("group_norm_grad", {{"groups", int64_t{6}}, {"has_scale", int64_t{1}}, {"has_bias", int64_t{1}}},
          {normal({3, 30, 111}), normal({3, 30, 111}), normal({3, 6}), positive({3, 6}), normal({30})});
  }

  TEST_CASE("reductions over every place an axis can have") {
    for (llvm::StringRef op : {"reduce_sum", "reduce_mean", "reduce_max"})
      for (const Ints& axes : {Ints{0}, Ints{1}, Ints{2}, Ints{0, 2}, Ints{1, 2}, Ints{0, 1}, Ints{0, 1, 2}})
        check(op, {{"axes", axes}, {"keep_dims", int64_t{0}}}, {normal({67, 33, 131})});
    check("reduce_sum", {{"axes", Ints{0, 2}}}, {normal({3, 5, 7, 70})});
    check("sum_squares", {}, {normal({70001})});
    check("sum_squares", {}, {normal({70001}), normal({3}), normal({0}), normal({300, 700})});
  }

  TEST_CASE("softmax, cross-entropy and their gradients") {
    for (int64_t axis : {0, 1, 2}) {
      for (llvm::StringRef op : {"softmax", "log_softmax"}) check(op, {{"axis", axis}}, {normal({7, 133, 70})});
      for (llvm::StringRef op : {"softmax_grad", "log_softmax_grad"})
        check(op, {{"axis", axis}}, {unit({7, 133, 70}), normal({7, 133, 70})});
    }
    const Attrs attrs{{"label_smoothing", 0.1}, {"ignore_index", int64_t{3}}};
    check("cross_entropy", attrs, {normal({65, 1003}), integers({65}, 0, 1002)});
    check("cross_entropy", attrs, {normal({2, 21, 9, 17}), integers({2, 9, 17}, 0, 20), positive({21})});
    check("cross_entropy_grad", attrs,
          {normal({2, 21, 153}), integers({2, 153}, 0, 20), positive({2, 153}), positive({}), normal({})});
    check("cross_entropy_with_grad", attrs, {normal({65, 1003}), integers({65}, 0, 1002), normal({})});
    check("cross_entropy_with_grad", attrs,
          {normal({2, 21, 9, 17}), integers({2, 9, 17}, 0, 20), normal({}), positive({21}), normal({2, 9, 17})});
  }

  TEST_CASE("elementwise functions with every kind of broadcasting") {
    check("add", {}, {normal({130, 257}), normal({257})});
    check("mul", {}, {normal({130, 257}), normal({130, 1})});
    check("sub", {}, {normal({}), normal({40001})});
    check("div", {}, {normal({5, 1, 33, 17}), positive({9, 1, 17})});
    check("where", {}, {bools({33, 1, 70}), normal({9, 70}), normal({33, 9, 1})});
    check("greater", {}, {normal({33, 70}), normal({33, 1})});
    check("gelu", {}, {normal({50001})});
    check("gelu_grad", {}, {normal({50001}), normal({50001})});
    check("dropout", {{"ratio", 0.3}, {"id", int64_t{5}}}, {normal({50003}), rng()});
    for (DType from : {DType::F32, DType::BF16, DType::F16, DType::I64})
      for (DType to : {DType::F32, DType::BF16, DType::F16, DType::I32, DType::Bool})
        check("cast", {{"to", to}}, {is_float(from) ? normal({20001}, from) : integers({20001}, -9, 9, from)});
  }

  TEST_CASE("16-bit floats run through the f32 kernels, rounded once") {
    for (DType narrow : {DType::BF16, DType::F16}) {
      const KernelCase product("linear", {}, {normal({67, 131}, narrow), normal({131, 259}, narrow)}, 7);
      const auto types = product.types();
      const OpCall call(product.op, product.attrs, types);
      const Types results = llvm::cantFail(infer(call));
      const CpuCandidate first = table().candidates(product.op, call, results).front();
      CHECK(first.name() == "onednn.widened");
      CHECK(first.workspace_bytes(call, results) >= 4 * (67 * 131 + 131 * 259 + 67 * 259));
      CHECK(table().find(get_op("linear"), first.name()).has_value());
      check("linear_dw", {{"dtype", DType::F32}}, {normal({77, 65}, narrow), normal({77, 130}, narrow)});
      check("reduce_sum", {{"axes", Ints{0}}, {"dtype", DType::F32}}, {normal({777, 65}, narrow)});
      check("add", {}, {normal({130, 257}, narrow), normal({257}, narrow)});
      check("layer_norm", {{"axis", int64_t{1}}, {"eps", 1e-5}},
            {normal({131, 771}, narrow), normal({771}), normal({771})});
      check("cross_entropy_grad", {},
            {normal({65, 1003}, narrow), integers({65}, 0, 1002), positive({65}), positive({}), normal({})});
      check("cross_entropy_with_grad", {}, {normal({65, 1003}, narrow), integers({65}, 0, 1002), normal({})});
    }
  }

  TEST_CASE("moves of every element size") {
    for (DType dtype : {DType::F32, DType::F16, DType::I64, DType::Bool}) {
      auto tensor = [&](llvm::ArrayRef<int64_t> shape) {
        return is_float(dtype) ? normal(shape, dtype) : integers(shape, 0, 1, dtype);
      };
      for (const Ints& perm : {Ints{0, 2, 1, 3}, Ints{3, 2, 1, 0}, Ints{0, 1, 3, 2}, Ints{2, 0, 3, 1}})
        check("transpose", {{"perm", perm}}, {tensor({3, 37, 35, 41})});
      // Sides that are whole words of four elements, shorter and longer than a tile.
      check("transpose", {{"perm", Ints{1, 0}}}, {tensor({132, 260})});
      check("transpose", {{"perm", Ints{0, 3, 2, 1}}}, {tensor({2, 72, 5, 136})});
      check("expand", {{"shape", Ints{5, 33, 70}}}, {tensor({33, 1})});
      check("slice", {{"starts", Ints{70, 1}}, {"steps", Ints{-2, 3}}, {"sizes", Ints{35, 20}}}, {tensor({71, 60})});
      check("concat", {{"axis", int64_t{1}}}, {tensor({40, 3, 5}), tensor({40, 100, 5}), tensor({40, 1, 5})});
      check("gather", {{"axis", int64_t{0}}}, {tensor({50, 67}), integers({300}, -50, 49)});
    }
    check("gather_grad", {{"axis", int64_t{0}}, {"size", int64_t{50}}}, {integers({300}, -50, 49), normal({300, 67})});
  }

  TEST_CASE("convolutions and pools") {
    const Attrs attrs{{"strides", Ints{2, 1}}, {"pads", Ints{1, 2, 0, 1}}, {"dilations", Ints{1, 2}}};
    check("conv", attrs, {normal({2, 19, 17, 23}), normal({33, 19, 3, 3}), normal({33})});
    Attrs grouped = attrs;
    grouped.set("groups", int64_t{6});
    check("conv", grouped, {normal({2, 18, 17, 23}), normal({12, 3, 3, 3})});
    Attrs depthwise = attrs;
    depthwise.set("groups", int64_t{19});
    check("conv", depthwise, {normal({2, 19, 17, 23}), normal({19, 1, 3, 3})});
    Attrs dx = grouped, dw = grouped;
    dx.set("shape", Ints{2, 18, 17, 23});
    dw.set("shape", Ints{12, 3, 3, 3});
    check("conv_dx", dx, {normal({2, 12, 8, 22}), normal({12, 3, 3, 3})});
    check("conv_dw", dw, {normal({2, 18, 17, 23}), normal({2, 12, 8, 22})});
    const Attrs window{{"kernel", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}};
    check("max_pool", window, {distinct({2, 19, 33, 35})});
    check("max_pool_grad", window, {distinct({2, 19, 33, 35}), normal({2, 19, 17, 18})});
    check("average_pool", window, {normal({2, 19, 33, 35})});
    Attrs choosing = window, of_choices = window;
    choosing.set("choices", int64_t{1});
    of_choices.set("shape", Ints{2, 19, 33, 35});
    check("max_pool", choosing, {distinct({2, 19, 33, 35})});
    check("max_pool_grad", of_choices, {integers({2, 19, 17, 18}, 0, 9, DType::U8), normal({2, 19, 17, 18})});
    check("max_pool", {{"kernel", Ints{2, 3}}}, {distinct({1, 2, 3, 1200})});
  }

  TEST_CASE("resizing up and down in every mode") {
    for (const char* mode : {"nearest", "linear", "cubic"}) {
      Attrs attrs{{"mode", std::string(mode)},
                  {"sizes", Ints{2, 5, 39, 17}},
                  {"scales", Floats{1, 1, 3, 0.5}},
                  {"coordinate", std::string("half_pixel")}};
      check("resize", attrs, {normal({2, 5, 13, 35})});
      attrs.set("shape", Ints{2, 5, 13, 35});
      check("resize_grad", attrs, {normal({2, 5, 39, 17})});
    }
  }

  TEST_CASE("updates of long parameters") {
    const SampleOperand lr = values({}, {0.01}), step = values({}, {3}, DType::I64);
    check("adamw", {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.1}},
          {normal({70003}), normal({70003}), normal({70003}), positive({70003}), step, lr, values({}, {0.25})});
    check("sgd", {{"momentum", 0.9}, {"nesterov", int64_t{1}}},
          {normal({70003}), normal({70003}), lr, normal({70003})});
    check("sgd", {{"norms", int64_t{1}}}, {normal({70003}), normal({70003}), lr});
    check("adamw", {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"norms", int64_t{1}}},
          {normal({70003}), normal({70003}), normal({70003}), positive({70003}), step, lr, values({}, {0.25})});
    const SampleOperand codes = integers({70003}, 0, 255, DType::U8);
    check("adamw_8bit", {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"norms", int64_t{1}}},
          {normal({70003}), normal({70003}), codes, codes, positive({274, 2}), step, lr, values({}, {0.25})});
    for (DType grad : {DType::F32, DType::BF16})
      check("adamw", {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}},
            {normal({70003}), normal({70003}, grad), normal({70003}, DType::BF16), positive({70003}, DType::BF16), step,
             lr});
  }

  TEST_CASE("an index or label outside its range is an error, not a crash") {
    auto message = [](const KernelCase& c) {
      const auto types = c.types();
      const OpCall call(c.op, c.attrs, types);
      const Types results = llvm::cantFail(infer(call));
      std::vector<Tensor> out;
      for (const Type& type : results) out.emplace_back(type);
      llvm::SmallVector<TensorView, 4> operands, views;
      for (const Tensor& tensor : c.tensors) operands.push_back(tensor.view());
      for (const Tensor& tensor : out) views.push_back(tensor.view());
      Tensor workspace(Type(DType::U8, {4096}));
      const CpuCandidate kernel = table().candidates(c.op, call, results).front();
      return llvm::toString(kernel.launch({{call, operands, views, workspace.data()}, nullptr}));
    };
    CHECK(message(KernelCase("gather", {{"axis", int64_t{0}}}, {normal({4, 3}), values({2}, {1, 4}, DType::I64)}, 1)) ==
          "an index is outside a dimension of 4");
    CHECK(message(KernelCase("cross_entropy", {}, {normal({2, 3}), values({2}, {1, 3}, DType::I64)}, 1)) ==
          "label 3 at position 1 names none of the 3 classes");
  }

  TEST_CASE("own kernels give the same bits with any number of threads") {
    const KernelCase cases[] = {
        {"layer_norm_grad",
         {{"axis", int64_t{1}}, {"has_scale", int64_t{1}}, {"has_bias", int64_t{1}}},
         {normal({131, 171}), normal({131, 171}), normal({131, 1}), positive({131, 1}), normal({171})},
         1},
        {"attention_grad",
         {{"heads", int64_t{4}}, {"kv_heads", int64_t{2}}, {"scale", 0.3}, {"causal", int64_t{1}}},
         {normal({1, 100, 40}), normal({1, 131, 20}), normal({1, 131, 14}), normal({1, 100, 28}), positive({1, 4, 100}),
          normal({1, 100, 28})},
         1},
        {"reduce_sum", {{"axes", Ints{0, 2}}}, {normal({30, 33, 131})}, 1},
        {"sum_squares", {}, {normal({200001})}, 1},
        {"gather_grad", {{"axis", int64_t{0}}, {"size", int64_t{9}}}, {integers({300}, -9, 8), normal({300, 267})}, 1},
    };
    const int threads = omp_get_max_threads();
    for (const KernelCase& c : cases) {
      INFO(c.op.name.str());
      const auto types = c.types();
      const OpCall call(c.op, c.attrs, types);
      const CpuCandidate kernel = table().candidates(c.op, call, llvm::cantFail(infer(call))).front();
      omp_set_num_threads(1);
      const std::vector<Tensor> one = run_kernel(kernel, c, {});
      omp_set_num_threads(3);
      const std::vector<Tensor> three = run_kernel(kernel, c, {});
      for (size_t r = 0; r < one.size(); ++r) CHECK(one[r] == three[r]);
    }
    omp_set_num_threads(threads);
  }
}
