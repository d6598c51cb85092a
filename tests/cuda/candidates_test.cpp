#include "kernels/cuda/loss/class_planes.h"
#include "kernels/cuda/reduce/reduce_plan.h"
#include "runtime/kernels/norm.h"
#include "tests/support/kernel_candidates.h"

#include <set>

// What planning learns of the CUDA kernels, with no device present: which ops have one for what their samples ask.

using namespace plimsoll;
using namespace plimsoll::testing;

TEST_SUITE("unit") {
  TEST_CASE("an op with a CUDA kernel has one for each of its samples") {
    const CudaCatalog catalog(any_device());
    // Some samples of these are of integers, of sizes that Hopper's kernels alone take, of nothing, of regions of
    // interest, or of 8-bit floats in sizes that no matrix unit takes.
    const std::set<llvm::StringRef> others{"linear_f8",   "matmul",      "matmul_sum",  "reduce_max",
                                           "reduce_min",  "reduce_prod", "reduce_sum",  "resize",
                                           "resize_grad", "to_f8",       "to_scaled_f8"};
    for (const CudaCandidate* candidate : cuda_candidates())
      for (const Sample& sample : candidate->op.samples()) {
        INFO(candidate->op.name.str());
        CHECK((best_candidate(catalog, candidate->op, sample).name != "reference" || others.count(candidate->op.name)));
      }
  }

  TEST_CASE("products of odd rows are predicted as roughly as they vary") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    const auto check = [&](const Shape& a, const Shape& b, const Attrs& attrs, double measured_us) {
      const Type left(DType::BF16, a), right(DType::BF16, b);
      const Type* const operands[] = {&left, &right};
      const OpCall call(get_op("matmul"), attrs, operands);
      const double us = h200.candidates(call.op, call, llvm::cantFail(infer(call))).front().predicted_us;
      CAPTURE(us);
      CHECK(us > measured_us / 2);
      CHECK(us < measured_us * 2.4);
    };
    check({16384, 27, 128}, {16384, 27, 128}, {{"transpose_b", int64_t{1}}}, 185);
    check({16384, 27, 27}, {16384, 27, 128}, {}, 220);
    check({8, 8, 499, 64}, {1, 8, 64, 997}, {}, 99);
    check({8, 8, 499, 997}, {1, 8, 64, 997}, {{"transpose_b", int64_t{1}}}, 241);
    check({8, 8, 499, 64}, {8, 8, 499, 997}, {{"transpose_a", int64_t{1}}}, 73);
  }

  TEST_CASE("predictions of products know split sums, sums for a bias and odd rows") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    auto predicted_us = [&](llvm::StringRef op, const Attrs& attrs, llvm::ArrayRef<Type> operands) {
      llvm::SmallVector<const Type*, 4> types;
      for (const Type& type : operands) types.push_back(&type);
      const OpCall call(get_op(op), attrs, types);
      const Types results = llvm::cantFail(call.op.infer(call));
      for (const KernelCandidate& kernel : CudaCatalog(h200).candidates(call.op, call, results))
        if (kernel.name == "cublaslt") return kernel.predicted_us;
      return 0.0;
    };
    auto gradient_us = [&](int64_t rows, int64_t m, int64_t n, int64_t bias) {
      return predicted_us("linear_dw", {{"bias", bias}, {"transpose_w", int64_t{1}}, {"dtype", DType::F32}},
                          {Type(DType::BF16, {rows, m}), Type(DType::BF16, {rows, n})});
    };
    auto linear_us = [&](int64_t rows, int64_t k, int64_t n) {
      return predicted_us("linear", {{"transpose_w", int64_t{1}}},
                          {Type(DType::BF16, {rows, k}), Type(DType::BF16, {n, k})});
    };
    // What one card measured.
    CHECK(gradient_us(16384, 768, 768, 0) == doctest::Approx(40.0).epsilon(0.15));
    CHECK(gradient_us(50432, 384, 1536, 1) == doctest::Approx(135.7).epsilon(0.15));
    CHECK(gradient_us(8192, 4096, 4096, 0) == doctest::Approx(403.4).epsilon(0.15));
    CHECK(gradient_us(8192, 650, 2600, 1) == doctest::Approx(183.3).epsilon(0.25));
    CHECK(linear_us(32768, 3072, 768) == doctest::Approx(200.0).epsilon(0.15));
    CHECK(linear_us(50432, 384, 1536) == doctest::Approx(109.1).epsilon(0.15));
    CHECK(linear_us(8192, 650, 2600) == doctest::Approx(216.9).epsilon(0.35));
  }

  TEST_CASE("on Hopper layers of short sums over many rows are our own kernel's") {
    const DeviceCatalog devices = llvm::cantFail(DeviceCatalog::builtin());
    const DeviceDescription h200 = llvm::cantFail(devices.find("h200")), a100 = llvm::cantFail(devices.find("a100"));
    const auto first_of = [](const DeviceDescription& device, int64_t rows, int64_t depth, int64_t columns) {
      const Type x(DType::BF16, {rows, depth}), w(DType::BF16, {depth, columns}), bias(DType::BF16, {columns});
      const Type* types[] = {&x, &w, &bias};
      const Attrs attrs;
      const OpCall call(get_op("linear"), attrs, types);
      return CudaCatalog(device).candidates(call.op, call, llvm::cantFail(call.op.infer(call))).front();
    };
    struct Shape {
      int64_t rows, depth, columns;
      double us;  // what an H200 measured
    };
    for (const Shape& s : {Shape{262144, 48, 144, 47.6},
                           {401408, 64, 128, 54.8},
                           {401408, 64, 192, 60.9},
                           {401408, 96, 192, 79.3},
                           {262144, 96, 288, 79.1},
                           {401408, 96, 288, 119.6},
                           {262144, 96, 96, 34.3},
                           {401408, 96, 96, 49.4},
                           {172032, 64, 192, 29.4}}) {
      CAPTURE(s.rows);
      CAPTURE(s.columns);
      const KernelCandidate first = first_of(h200, s.rows, s.depth, s.columns);
      CHECK(first.name == "warpgroup");
      CHECK(first.predicted_us == doctest::Approx(s.us).epsilon(0.2));
    }
    for (const Shape& s : {Shape{401408, 24, 24, 26}, {65536, 88, 264, 34}, {12544, 768, 768, 26}})
      CHECK(first_of(h200, s.rows, s.depth, s.columns).name == "cublaslt");
    CHECK(first_of(a100, 401408, 64, 128).name == "cublaslt");
  }

  TEST_CASE("on Hopper most weight gradients with a bias are our own kernel's") {
    const DeviceCatalog devices = llvm::cantFail(DeviceCatalog::builtin());
    const DeviceDescription h100 = llvm::cantFail(devices.find("h100")), a100 = llvm::cantFail(devices.find("a100"));
    const Attrs bias{{"bias", int64_t{1}}, {"dtype", DType::F32}};
    struct Shape {
      int64_t rows, m, n;
      double us;  // what one card measured, alone
    };
    constexpr double hidden_us = 4;  // of that in a step, where the kernel begins while the one ahead drains
    for (const Shape& s : {Shape{16384, 768, 2304, 92.1},
                           {16384, 768, 3072, 108.9},
                           {32768, 3072, 768, 223.0},
                           {50432, 384, 384, 49.5},
                           {50432, 384, 1536, 93.8},
                           {19712, 512, 512, 32.3},
                           {98304, 384, 200, 64.6},
                           {8192, 1600, 4800, 196.4}}) {
      CAPTURE(s.rows);
      CAPTURE(s.n);
      const Type x(DType::BF16, {s.rows, s.m}), dy(DType::BF16, {s.rows, s.n});
      const Type* types[] = {&x, &dy};
      const OpCall call(get_op("linear_dw"), bias, types);
      const Types results = llvm::cantFail(call.op.infer(call));
      const KernelCandidate first = CudaCatalog(h100).candidates(call.op, call, results).front();
      CHECK(first.name == "warpgroup_bgrad");
      CHECK(first.predicted_us == doctest::Approx(s.us - hidden_us).epsilon(0.15));
      CHECK(first.workspace_bytes <= h100.product_workspace_bytes);
    }
    const std::string library = "cublaslt cublaslt_2 cublaslt_3 cublaslt_4 ", sums = "cublaslt_bgrad cublaslt_bgrad_2 ",
                      ours = "warpgroup_bgrad ";
    const Type wide(DType::BF16, {8192, 4096}), x(DType::F16, {16384, 768}), odd(DType::F16, {16384, 769});
    CHECK(names_of(CudaCatalog(h100), "linear_dw", bias, {wide, wide}) == library + ours + sums + "reference ");
    CHECK(names_of(CudaCatalog(h100), "linear_dw", bias, {x, x}) == ours + library + sums + "reference ");
    CHECK(names_of(CudaCatalog(h100), "linear_dw", bias, {x, odd}) == library + "reference ");
    CHECK(names_of(CudaCatalog(a100), "linear_dw", bias, {x, x}) == library + sums + "reference ");
  }

  TEST_CASE("on Hopper large gradients of gelu with their products are our own kernel's, in both forms") {
    const DeviceCatalog devices = llvm::cantFail(DeviceCatalog::builtin());
    const DeviceDescription h100 = llvm::cantFail(devices.find("h100")), a100 = llvm::cantFail(devices.find("a100"));
    const Attrs tanh_form{{"approximate", std::string("tanh")}, {"transpose_w", int64_t{1}}},
        exact_form{{"transpose_w", int64_t{1}}};
    struct Shape {
      int64_t rows, depth, columns;
      double tanh_us, exact_us;  // means of four runs on one kind of card, some hotter than others
    };
    for (const Shape& s : {Shape{16384, 768, 3072, 146.0, 156.9},
                           {32768, 768, 3072, 288.5, 310.8},
                           {12608, 1024, 4096, 182.8, 189.8},
                           {50432, 384, 1536, 171.2, 182.4},
                           {25088, 768, 3072, 226.6, 244.1}}) {
      CAPTURE(s.rows);
      const Type dy(DType::BF16, {s.rows, s.depth}), w(DType::BF16, {s.columns, s.depth}),
          x(DType::BF16, {s.rows, s.columns});
      const Type* types[] = {&dy, &w, &x};
      for (const auto& [attrs, us] : {std::pair{tanh_form, s.tanh_us}, {exact_form, s.exact_us}}) {
        const OpCall call(get_op("linear_gelu_grad"), attrs, types);
        const KernelCandidate first =
            CudaCatalog(h100).candidates(call.op, call, llvm::cantFail(call.op.infer(call))).front();
        CHECK(first.name == "warpgroup_gelu");
        CHECK(first.predicted_us == doctest::Approx(us).epsilon(0.1));
        CHECK(first.workspace_bytes == 0);
      }
    }
    // Few columns have tiles that are not much wider.
    const DeviceDescription h200 = llvm::cantFail(devices.find("h200"));
    struct Narrow {
      int64_t rows, depth, columns;
      double us, grad_us;  // what an H200 measured
    };
    for (const Narrow& s : {Narrow{401408, 24, 96, 58.6, 67.0},
                            {401408, 64, 192, 102.8, 130.8},
                            {200704, 96, 288, 91.6, 103.2},
                            {401408, 96, 384, 211.1, 266.7},
                            {50176, 192, 576, 46.3, 60.9}}) {
      CAPTURE(s.columns);
      const Type x(DType::BF16, {s.rows, s.depth}), y(DType::BF16, {s.rows, s.columns}),
          w(DType::BF16, {s.columns, s.depth}), bias(DType::BF16, {s.columns});
      const auto first_of = [&](const char* op, llvm::ArrayRef<const Type*> types) {
        const OpCall call(get_op(op), exact_form, types);
        return CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(call.op.infer(call))).front();
      };
      CHECK(first_of("linear_gelu", {&x, &w, &bias}).predicted_us == doctest::Approx(s.us).epsilon(0.12));
      CHECK(first_of("linear_gelu_grad", {&x, &w, &y}).predicted_us == doctest::Approx(s.grad_us).epsilon(0.12));
    }
    const std::string dgelu = "cublaslt_dgelu cublaslt_dgelu_2 ", ours = "warpgroup_gelu ", pair = "cublaslt ";
    const Type dy(DType::F16, {16384, 768}), w(DType::F16, {3072, 768}), x(DType::F16, {16384, 3072}),
        odd_w(DType::F16, {3073, 768}), odd_x(DType::F16, {16384, 3073});
    CHECK(names_of(CudaCatalog(h100), "linear_gelu_grad", tanh_form, {dy, w, x}) == ours + dgelu + pair + "reference ");
    CHECK(names_of(CudaCatalog(h100), "linear_gelu_grad", exact_form, {dy, w, x}) == ours + pair + "reference ");
    CHECK(names_of(CudaCatalog(h100), "linear_gelu_grad", exact_form, {dy, odd_w, odd_x}) == pair + "reference ");
    CHECK(names_of(CudaCatalog(a100), "linear_gelu_grad", tanh_form, {dy, w, x}) == dgelu + pair + "reference ");
    const Type bias(DType::F16, {3072}), few(DType::F16, {512, 768}), odd_bias(DType::F16, {3073});
    const std::string products = "cublaslt cublaslt_2 cublaslt_3 cublaslt_4 ";
    CHECK(names_of(CudaCatalog(h100), "linear_gelu", exact_form, {dy, w, bias}) == ours + products + "reference ");
    CHECK(names_of(CudaCatalog(h100), "linear_gelu", tanh_form, {few, w, bias}) == products + ours + "reference ");
    CHECK(names_of(CudaCatalog(h100), "linear_gelu", tanh_form, {dy, odd_w, odd_bias}) == products + "reference ");
    CHECK(names_of(CudaCatalog(a100), "linear_gelu", tanh_form, {dy, w, bias}) == products + "reference ");
    CHECK(CudaCatalog(h100).preferences().exact_gelu_epilogues);
    CHECK_FALSE(CudaCatalog(a100).preferences().exact_gelu_epilogues);
  }

  TEST_CASE("an odd number of columns of aligned rows is a product of most of them and one of the rest") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const CudaCatalog catalog(h200);
    auto names = [&](int64_t columns, int64_t transpose_w, const Type& x, const Type& dy) {
      return names_of(catalog, "linear_dw", {{"columns", columns}, {"transpose_w", transpose_w}, {"dtype", DType::F32}},
                      {x, dy});
    };
    const Type x(DType::BF16, {16384, 768}), dy(DType::BF16, {16384, 50304}), odd_dy(DType::BF16, {16384, 50303});
    const std::string plain = "cublaslt cublaslt_2 cublaslt_3 cublaslt_4 ";
    for (int64_t transpose_w : {0, 1})
      CHECK(names(50257, transpose_w, x, dy) ==
            "cublaslt_split cublaslt_split_2 cublaslt_split_3 cublaslt_split_4 " + plain + "reference ");
    CHECK(names(50256, 1, x, dy) == plain + "reference ");
    CHECK(names(50257, 1, x, odd_dy) == plain + "reference ");
    CHECK(names(50257, 1, Type(DType::F32, x.shape), Type(DType::F32, dy.shape)) == plain + "reference ");
    const Attrs attrs{{"columns", int64_t{50257}}, {"transpose_w", int64_t{1}}, {"dtype", DType::F32}};
    const Type* types[] = {&x, &dy};
    const OpCall call(get_op("linear_dw"), attrs, types);
    const Types results = llvm::cantFail(call.op.infer(call));
    const std::vector<KernelCandidate> candidates = catalog.candidates(call.op, call, results);
    CHECK(candidates[0].predicted_us == doctest::Approx(1640).epsilon(0.05));
    CHECK(candidates[4].predicted_us == doctest::Approx(2865).epsilon(0.05));
  }

  TEST_CASE("epilogues are candidates where cuBLASLt has them: 16-bit rows at 16-byte borders, gelu's tanh form") {
    const CudaCatalog catalog(any_device());
    const Type dy(DType::BF16, {6, 16}), w(DType::BF16, {16, 8}), x(DType::BF16, {6, 8}), odd_w(DType::BF16, {16, 9}),
        odd_x(DType::BF16, {6, 9});
    const Attrs tanh_form{{"approximate", std::string("tanh")}}, bias{{"bias", int64_t{1}}, {"dtype", DType::F32}};
    CHECK(names_of(catalog, "linear_gelu_grad", tanh_form, {dy, w, x}) ==
          "cublaslt_dgelu cublaslt_dgelu_2 cublaslt reference ");
    CHECK(names_of(catalog, "linear_gelu_grad", {}, {dy, w, x}) == "cublaslt reference ");
    CHECK(names_of(catalog, "linear_gelu_grad", tanh_form, {dy, odd_w, odd_x}) == "cublaslt reference ");
    CHECK(names_of(catalog, "linear_dw", bias, {x, dy}) ==
          "cublaslt cublaslt_2 cublaslt_3 cublaslt_4 cublaslt_bgrad cublaslt_bgrad_2 few_rows reference ");
    CHECK(names_of(catalog, "linear_dw", bias, {odd_x, dy}) == "cublaslt cublaslt_2 cublaslt_3 cublaslt_4 reference ");
    CHECK(names_of(catalog, "linear_dw", {}, {x, dy}) ==
          "cublaslt cublaslt_2 cublaslt_3 cublaslt_4 few_rows reference ");
  }

  TEST_CASE("resampling has CUDA kernels but for regions of interest") {
    const CudaCatalog catalog(any_device());
    for (llvm::StringRef name : {"resize", "resize_grad"})
      for (const Sample& sample : get_op(name).samples()) {
        const bool crops = sample.attrs.get_string("coordinate") == "tf_crop_and_resize";
        CHECK((best_candidate(catalog, get_op(name), sample).name == "reference") == crops);
      }
  }

  TEST_CASE("whole repetitions have kernels of their own") {
    const CudaCatalog catalog(any_device());
    const auto best = [&](const Shape& from, const Shape& to, llvm::StringRef coordinate, llvm::StringRef nearest) {
      Floats scales;
      for (size_t d = 0; d < from.size(); ++d)
        scales.push_back(static_cast<double>(to[d]) / static_cast<double>(from[d]));
      const Attrs attrs{{"mode", std::string("nearest")},
                        {"coordinate", coordinate.str()},
                        {"nearest", nearest.str()},
                        {"sizes", Ints(to.begin(), to.end())},
                        {"scales", scales}};
      const Type x(DType::BF16, from);
      const Type* operands[] = {&x};
      const OpCall call(get_op("resize"), attrs, operands);
      return catalog.candidates(get_op("resize"), call, *infer(call)).front().name;
    };
    CHECK(best({2, 7, 7, 18}, {2, 14, 28, 18}, "asymmetric", "floor") == "repeats");
    CHECK(best({2, 18, 7, 7}, {2, 18, 14, 14}, "half_pixel", "round_prefer_floor") == "repeats");
    CHECK(best({2, 7, 7, 18}, {2, 7, 21, 18}, "tf_half_pixel_for_nn", "floor") == "repeats");
    CHECK(best({2, 7, 7, 18}, {2, 14, 14, 18}, "asymmetric", "ceil") == "channels");
    CHECK(best({2, 4, 4, 18}, {2, 10, 10, 18}, "asymmetric", "floor") == "channels");
    CHECK(best({2, 14, 14, 18}, {2, 7, 7, 18}, "asymmetric", "floor") == "channels");
    CHECK(best({2, 7, 7, 18}, {4, 7, 14, 18}, "asymmetric", "floor") == "gather");
    CHECK(best({2, 4, 4, 16}, {2, 10, 10, 16}, "asymmetric", "floor") == "gather");
    CHECK(best({2, 7, 7, 18}, {2, 140, 140, 18}, "asymmetric", "floor") == "channels");
  }

  TEST_CASE("gradients of resizes go by channels where pixels have several and few give to each") {
    const CudaCatalog catalog(any_device());
    const auto best = [&](llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> y) {
      Floats scales;
      for (size_t d = 0; d < x.size(); ++d) scales.push_back(static_cast<double>(y[d]) / static_cast<double>(x[d]));
      const Attrs attrs{{"mode", std::string("linear")},
                        {"shape", Ints(x.begin(), x.end())},
                        {"sizes", Ints(y.begin(), y.end())},
                        {"scales", scales}};
      const Type dy(DType::BF16, y);
      const Type* operands[] = {&dy};
      const OpCall call(get_op("resize_grad"), attrs, operands);
      return catalog.candidates(get_op("resize_grad"), call, *infer(call)).front().name;
    };
    CHECK(best({2, 12, 12, 64}, {2, 24, 24, 64}) == "channels");
    CHECK(best({2, 12, 12, 18}, {2, 24, 24, 18}) == "channels");
    CHECK(best({2, 12, 12, 21}, {2, 24, 24, 21}) == "gather");
    CHECK(best({2, 1, 1, 64}, {2, 64, 64, 64}) == "gather");
    CHECK(best({2, 64, 12, 12}, {2, 64, 24, 24}) == "gather");
  }

  TEST_CASE("reductions of floats have CUDA kernels, over any axes and in two stages where few outputs are left") {
    const CudaCatalog catalog(any_device());
    const Type x(DType::BF16, {8, 16, 128, 32});
    const Type* operands[] = {&x};
    auto best = [&](llvm::ArrayRef<int64_t> axes) {
      const Attrs attrs{{"axes", Ints(axes.begin(), axes.end())}};
      const OpCall call(get_op("reduce_sum"), attrs, operands);
      return catalog.candidates(get_op("reduce_sum"), call, *infer(call)).front();
    };
    for (Ints axes : {Ints{}, Ints{0}, Ints{3}, Ints{1, 3}, Ints{0, 2}, Ints{0, 1, 2, 3}})
      CHECK(best(axes).name == "two_stages");
    CHECK(best({3}).workspace_bytes == 0);          // 16384 rows of 32
    CHECK(best({0, 2, 3}).workspace_bytes == 512);  // 8 planes of each of 16 channels
  }

  TEST_CASE("sums over a few rows and maxima of windows are predicted as an H200 measured them") {
    using Form = cuda::ReductionPlan::Form;
    const auto form = [](int64_t outer, int64_t length, int64_t inner) {
      cuda::AlternatingShape shape;
      shape.add(outer, false), shape.add(length, true), shape.add(inner, false);
      return cuda::ReductionPlan(shape, 2).form;
    };
    CHECK(form(256, 2, 200704) == Form::FewRows);
    CHECK(form(262144, 12, 12) == Form::FewRows);
    CHECK(form(64, 128, 2048) == Form::FewRows);
    CHECK(form(64, 129, 2048) == Form::Columns);
    CHECK(form(4, 128, 2048) == Form::Columns);  // too few threads
    const CudaCatalog catalog(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    const auto check = [&](llvm::StringRef op, const Attrs& attrs, const Type& x, double us) {
      const Type* operands[] = {&x};
      const OpCall call(get_op(op), attrs, operands);
      INFO(op.str(), " of ", to_string(x));
      CHECK(catalog.candidates(call.op, call, *infer(call)).front().predicted_us == doctest::Approx(us).epsilon(0.25));
    };
    const Attrs middle{{"axes", Ints{1}}};
    check("reduce_sum", middle, Type(DType::BF16, {262144, 12, 12}), 23.6);
    check("reduce_sum", middle, Type(DType::BF16, {401408, 14, 14}), 58.0);
    check("reduce_sum", middle, Type(DType::BF16, {200704, 28, 28}), 83.0);
    check("reduce_sum", middle, Type(DType::BF16, {128, 4, 524288}), 154.1);
    check("reduce_mean", middle, Type(DType::F32, {128, 14, 5376}), 12.0);
    Attrs window{{"kernel", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}};
    check("max_pool", window, Type(DType::BF16, {128, 192, 56, 56}), 303.6);
    window.set("channels_last", int64_t{1});
    check("max_pool", window, Type(DType::BF16, {256, 112, 112, 64}), 252.7);
  }

  TEST_CASE("short rows in many slabs are added up as columns, by words of what columns divide into") {
    using Form = cuda::ReductionPlan::Form;
    const auto plan = [](int64_t lead, int64_t outer, int64_t length) {
      cuda::AlternatingShape shape;
      shape.add(lead, true), shape.add(outer, false), shape.add(length, true);
      return cuda::ReductionPlan(shape, 4);
    };
    CHECK(plan(32768, 6, 30).form == Form::Slabs);
    CHECK(plan(32768, 6, 30).parts() == 30 * plan(32768, 6, 30).splits);
    CHECK(plan(32768, 6, 30).splits > 100);
    CHECK(plan(31, 6, 30).form == Form::Rows);
    CHECK(plan(64, 6, 4097).form == Form::Rows);
    const auto of_columns = [](int64_t columns) {
      cuda::AlternatingShape shape;
      shape.add(50000, true), shape.add(columns, false);
      return cuda::ReductionPlan(shape, 2).columns_at_once(2);
    };
    CHECK(of_columns(96) == 8);
    CHECK(of_columns(108) == 4);
    CHECK(of_columns(150) == 2);
    CHECK(of_columns(63) == 1);
  }

  TEST_CASE("broadcasts, sums and losses of odd lines are predicted as an H200 measured them") {
    const CudaCatalog catalog(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    const auto check = [&](llvm::StringRef op, const Attrs& attrs, llvm::ArrayRef<Type> operands, double us) {
      llvm::SmallVector<const Type*, 4> types;
      for (const Type& type : operands) types.push_back(&type);
      const OpCall call(get_op(op), attrs, types);
      INFO(op.str(), " of ", to_string(operands[0]));
      CHECK(catalog.candidates(call.op, call, *infer(call)).front().predicted_us == doctest::Approx(us).epsilon(0.15));
    };
    const auto bf16 = [](Shape shape) { return Type(DType::BF16, std::move(shape)); };
    check("mul", {}, {bf16({196608, 64, 1}), bf16({196608, 1, 9})}, 104.7);
    check("mul", {}, {Type(DType::F32, {196608, 64, 1}), Type(DType::F32, {196608, 1, 9})}, 183.1);
    check("add", {}, {bf16({24, 64, 64, 64, 1}), bf16({24, 64, 64, 1, 64})}, 331.9);
    check("add", {}, {bf16({4096, 8, 8, 12, 1}), bf16({4096, 8, 8, 1, 12})}, 38.6);
    check("add", {}, {bf16({1, 3, 49, 49}), bf16({5776, 1, 49, 49})}, 52.0);
    check("mul", {}, {bf16({256, 2, 512, 7, 7}), bf16({256, 2, 512, 1, 1})}, 16.6);
    check("add", {}, {bf16({8192, 3072}), bf16({3072})}, 26.7);
    check("gather", {{"axis", int64_t{2}}}, {bf16({64, 384, 520, 1}), Type(DType::I64, {9, 512})}, 92.5);
    const Attrs around{{"axes", Ints{0, 1, 3}}, {"dtype", DType::F32}};
    check("reduce_sum", around, {Type(DType::F32, {512, 64, 6, 30})}, 12.6);
    check("reduce_sum", around, {bf16({8, 2048, 24, 64})}, 17.8);
    check("reduce_sum", {{"axes", Ints{0}}, {"dtype", DType::F32}}, {bf16({589824, 150})}, 85.3);
    check("reduce_sum", {{"axes", Ints{0}}}, {bf16({8192, 3072})}, 17.7);
    check("reduce_mean", {{"axes", Ints{1, 2, 3}}, {"dtype", DType::F32}}, {bf16({16, 16, 56, 56, 54})}, 41.9);
    check("reduce_mean", {{"axes", Ints{3, 5}}, {"dtype", DType::F32}}, {bf16({16, 768, 3, 6, 3, 6})}, 75.7);
    check("cross_entropy_with_grad", {{"reduction", std::string("mean")}},
          {bf16({16, 150, 384, 384}), Type(DType::I64, {16, 384, 384}), Type(DType::F32, {})}, 449);
    check("cross_entropy_with_grad", {{"reduction", std::string("mean")}},
          {bf16({8, 2, 512, 512}), Type(DType::I64, {8, 512, 512}), Type(DType::F32, {})}, 55.5);
    check("fused",
          {{"body", std::string("graph @body(%x0: bf16[196608,64,9], %x1: bf16[196608,64,1]) { %v0 = mul(%x1, %x0) "
                                "%v1 = reduce_sum(%v0) {axes=[1], keep_dims=1} return %v1 }")}},
          {bf16({196608, 64, 9}), bf16({196608, 64, 1})}, 123.5);
  }

  TEST_CASE("scores of pixels wait in shared memory by whole words of planes") {
    const cuda::ClassPlanes scene(150, 384 * 384, 2);
    CHECK(scene.words == 64);
    CHECK(scene.tiles == 384 * 384 / 128);
    CHECK(scene.shared_bytes(150) == 38400);
    CHECK(cuda::ClassPlanes(2, 512 * 512, 2).words == 256);
    CHECK(cuda::ClassPlanes(1000, 56 * 56, 2).words == 32);
    CHECK(cuda::ClassPlanes(10, 100, 4).words == 128);  // a plane of 100 words
    CHECK(cuda::ClassPlanes(2000, 64, 2).words == 0);   // too many classes
    CHECK(cuda::ClassPlanes(10, 63, 2).words == 0);     // no whole words
    CHECK(cuda::ClassPlanes(10, 1, 4).words == 0);      // rows of classes
  }

  TEST_CASE("without positions, channels are last wherever they stand") {
    const auto is_last = [](Shape shape) {
      return channels_of(Type(DType::BF16, std::move(shape)), false).channels_last;
    };
    CHECK(is_last({50176, 256}));
    CHECK(is_last({128, 256, 1, 1}));
    CHECK_FALSE(is_last({128, 256, 7, 7}));
  }

  TEST_CASE("what runs on the host is not predicted to take what a kernel would") {
    const Type q(DType::BF16, {128, 32, 9408});
    const Type* operands[] = {&q, &q, &q};
    const Attrs attrs{{"heads", int64_t{3}}, {"kv_heads", int64_t{3}}, {"causal", int64_t{0}}, {"scale", 1.0}};
    const OpCall call(get_op("attention"), attrs, operands);
    const KernelCandidate first = CudaCatalog(any_device()).candidates(call.op, call, *infer(call)).front();
    CHECK(first.name == "reference");
    CHECK(first.predicted_us > 1e6);
  }

  TEST_CASE("a sum of squares over many tensors has a part for each 8192 elements of each of them") {
    const CudaCatalog catalog(any_device());
    const Type large(DType::F32, {20000}), small(DType::F32, {7}), other(DType::BF16, {7});
    const Attrs none;
    auto best = [&](llvm::ArrayRef<const Type*> operands) {
      const OpCall call(get_op("sum_squares"), none, operands);
      return catalog.candidates(get_op("sum_squares"), call, *infer(call)).front();
    };
    CHECK(best({&large, &small, &small}).name == "two_stages");
    CHECK(best({&large, &small, &small}).workspace_bytes == 4 * (3 + 1 + 1));
    CHECK(best({&large, &other}).name == "reference");
  }

  TEST_CASE("what no CUDA kernel accepts runs by its reference") {
    const CudaCatalog catalog(any_device());
    const Type f8(DType::F8E4M3, {4});
    const Type* operands[] = {&f8, &f8};
    const Attrs none;
    CHECK(catalog.candidates(get_op("add"), OpCall(get_op("add"), none, operands), {f8}).front().name == "reference");
  }

  TEST_CASE("8-bit products with scales of rows and blocks are the library's on Hopper alone, in the pairs it takes") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")),
                            ada = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("rtx4090"));
    const Attrs bf16{{"dtype", DType::BF16}};
    const Type x(DType::F8E4M3, {2, 128, 512}), w(DType::F8E4M3, {384, 512});
    const auto scales = [](llvm::ArrayRef<int64_t> shape) { return Type(DType::F32, shape); };
    const Type rows_of_x = scales({256}), rows_of_w = scales({384}), blocks_of_x = scales({4, 256}),
               blocks_of_w = scales({4, 384}), tiles_of_w = scales({3, 4}), tiles_of_x = scales({2, 4}),
               one = scales({});
    const auto names = [&](const DeviceDescription& device, const Type& of_x, const Type& of_w) {
      return names_of(CudaCatalog(device), "linear_f8", bf16, {x, w, of_x, of_w});
    };
    const std::string many = "cublaslt_scales cublaslt_scales_2 cublaslt_scales_3 cublaslt_scales_4 reference ";
    CHECK(names(h200, rows_of_x, rows_of_w) == many);
    CHECK(names(h200, blocks_of_x, tiles_of_w) == many);
    CHECK(names(h200, blocks_of_x, blocks_of_w) == many);
    CHECK(names(h200, tiles_of_x, blocks_of_w) == many);
    CHECK(names(h200, tiles_of_x, tiles_of_w) == "reference ");
    CHECK(names(h200, one, rows_of_w) == "reference ");
    CHECK(names(h200, blocks_of_x, rows_of_w) == "reference ");
    CHECK(names(h200, one, one) == "cublaslt cublaslt_2 cublaslt_3 cublaslt_4 reference ");
    CHECK(names(ada, rows_of_x, rows_of_w) == "reference ");
  }

  TEST_CASE("codes by rows take 16 numbers at once, blocks and tiles whole ones") {
    const CudaCatalog catalog(any_device());
    const auto names = [&](const char* by, llvm::ArrayRef<int64_t> shape, int64_t columns) {
      return names_of(catalog, "to_scaled_f8", {{"to", DType::F8E4M3}, {"by", by}, {"rows", 1}, {"columns", columns}},
                      {Type(DType::BF16, shape)});
    };
    CHECK(names("rows", {3, 48}, 0) == "rows reference ");
    CHECK(names("rows", {3, 48}, 1) == "reference ");
    CHECK(names("rows", {3, 40}, 0) == "reference ");
    CHECK(names("blocks", {2, 64, 384}, 1) == "blocks reference ");
    CHECK(names("blocks", {64, 384}, 0) == "reference ");
    CHECK(names("tiles", {128, 384}, 1) == "tiles reference ");
  }
}
