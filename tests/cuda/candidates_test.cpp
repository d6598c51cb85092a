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
    // Some samples of these are of integers, of nothing, of regions of interest, or of 8-bit floats in sizes that no
    // matrix unit takes.
    const std::set<llvm::StringRef> others{"linear_f8",  "matmul", "reduce_max",  "reduce_min", "reduce_prod",
                                           "reduce_sum", "resize", "resize_grad", "to_f8",      "to_scaled_f8"};
    for (const CudaCandidate* candidate : cuda_candidates())
      for (const Sample& sample : candidate->op.samples()) {
        INFO(candidate->op.name.str());
        CHECK((best_candidate(catalog, candidate->op, sample).name != "reference" || others.count(candidate->op.name)));
      }
  }

  TEST_CASE("heads side by side in one tensor are cuDNN's to attend to, forward and backward") {
    const CudaCatalog catalog(any_device());
    for (llvm::StringRef name : {"attention", "attention_grad"}) {
      int64_t packed = 0;
      for (const Sample& sample : get_op(name).samples()) {
        if (!sample.attrs.has("packed") || sample.operands[0].type.dtype != DType::BF16) continue;
        if (sample.attrs.has("softcap")) continue;
        const std::string best = best_candidate(catalog, get_op(name), sample).name;
        CHECK(best == (name == "attention" ? "cudnn" : "cudnn_ordered"));
        ++packed;
      }
      CHECK(packed > 0);
    }
  }

  TEST_CASE("16-bit attention that cuDNN does not take goes to the matrix units, with a prediction") {
    const CudaCatalog catalog(any_device());
    const Type x(DType::BF16, {64, 512, 128}), open(DType::Bool, {64, 1, 1, 512}), bias(DType::F32, {1, 2, 512, 512});
    const Attrs attrs{{"heads", int64_t{2}}, {"kv_heads", int64_t{2}}, {"scale", 0.125}};
    CHECK(names_of(catalog, "attention", attrs, {x, x, x}) == "cudnn mma flash reference ");
    CHECK(names_of(catalog, "attention", attrs, {x, x, x, open}) == "mma flash reference ");
    CHECK(names_of(catalog, "attention", attrs, {x, x, x, bias}) == "mma flash reference ");
    Attrs capped = attrs;
    capped.set("softcap", 50.0);
    CHECK(names_of(catalog, "attention", capped, {x, x, x}) == "mma flash reference ");
    CHECK(names_of(catalog, "attention", capped, {x, x, x, bias}) == "mma flash reference ");
    const Type lse(DType::F32, {64, 2, 512}), columns(DType::F32, {64, 1, 1, 512});
    CHECK(names_of(catalog, "attention_grad", capped, {x, x, x, x, lse, x, columns}) == "mma flash reference ");
    CHECK(names_of(catalog, "attention_grad", capped, {x, x, x, x, lse, x, bias}) == "mma flash reference ");
    const Type f32(DType::F32, {64, 512, 128}), other(DType::F16, {64, 1, 1, 512});
    CHECK(names_of(catalog, "attention", attrs, {f32, f32, f32}) == "flash reference ");
    CHECK(names_of(catalog, "attention", attrs, {x, x, x, other}) == "flash reference ");
    DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const std::vector<const Type*> types{&x, &x, &x, &open};
    const OpCall call(get_op("attention"), attrs, types);
    const auto candidates = CudaCatalog(h200).candidates(get_op("attention"), call, llvm::cantFail(infer(call)));
    CHECK(candidates[0].predicted_us > 0);
    CHECK(candidates[1].predicted_us > 2 * candidates[0].predicted_us);
  }

  TEST_CASE("gradients of attention take one pass on Hopper, and two launches elsewhere") {
    DeviceDescription device = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const Type lse(DType::F32, {64, 2, 512}), open(DType::Bool, {64, 1, 1, 512}), bias(DType::F32, {1, 2, 512, 512});
    auto names = [&](int64_t depth, const std::vector<Type>& masks, double softcap = 0) {
      const Type x(DType::BF16, {64, 512, 2 * depth});
      std::vector<Type> types{x, x, x, x, lse, x};
      types.insert(types.end(), masks.begin(), masks.end());
      return names_of(CudaCatalog(device), "attention_grad",
                      {{"heads", int64_t{2}}, {"kv_heads", int64_t{2}}, {"scale", 0.125}, {"softcap", softcap}}, types);
    };
    CHECK(names(64, {}) == "one_pass cudnn_ordered mma flash reference ");
    CHECK(names(64, {open}) == "one_pass mma flash reference ");
    CHECK(names(40, {open}) == "one_pass mma flash reference ");
    CHECK(names(64, {bias}) == "one_pass mma flash reference ");
    CHECK(names(64, {bias}, 50) == "mma flash reference ");
    CHECK(names(96, {}) == "one_pass cudnn_ordered mma flash reference ");
    CHECK(names(128, {open}) == "one_pass mma flash reference ");
    CHECK(names(128, {open}, 50) == "one_pass mma flash reference ");
    CHECK(names(256, {open}, 50) == "one_pass mma flash reference ");
    CHECK(names(256, {bias}) == "mma flash reference ");
    CHECK(names(32, {open}) == "one_pass mma flash reference ");
    CHECK(names(32, {bias}) == "one_pass mma flash reference ");
    auto with_slopes = [&](int64_t causal, int64_t kv_heads) {
      const Type x(DType::BF16, {64, 512, 128}), k(DType::BF16, {64, 512, 64 * kv_heads}), slopes(DType::F32, {2});
      const Attrs attrs{{"heads", int64_t{2}}, {"kv_heads", kv_heads}, {"scale", 0.125}, {"causal", causal}};
      const std::vector<const Type*> types{&x, &k, &k, &x, &lse, &x, nullptr, nullptr, &slopes};
      const OpCall call(get_op("attention_grad"), attrs, types);
      return CudaCatalog(device).candidates(call.op, call, llvm::cantFail(infer(call)))[0].name;
    };
    CHECK(with_slopes(1, 2) == "one_pass");
    CHECK(with_slopes(0, 2) == "mma");  // distances to both sides
    CHECK(with_slopes(1, 1) == "mma");  // two slopes for a key head
    auto with_columns = [&](int64_t kv_heads) {
      const Type x(DType::BF16, {64, 512, 128}), k(DType::BF16, {64, 512, 64 * kv_heads});
      return names_of(CudaCatalog(device), "attention_grad",
                      {{"heads", int64_t{2}}, {"kv_heads", kv_heads}, {"scale", 0.125}, {"causal", int64_t{1}}},
                      {x, k, k, x, lse, x, Type(DType::F32, {1, 2, 1, 512})});
    };
    // Rows that end within a word of 16 bytes come from a copy in the workspace.
    auto with_rows_of = [&](int64_t columns) {
      const Type x(DType::BF16, {64, 512, 128}), k(DType::BF16, {64, columns, 128}),
          mask(DType::BF16, {1, 2, 512, columns});
      const Attrs attrs{{"heads", int64_t{2}}, {"kv_heads", int64_t{2}}, {"scale", 0.125}};
      const std::vector<const Type*> types{&x, &k, &k, &x, &lse, &x, &mask};
      const OpCall call(get_op("attention_grad"), attrs, types);
      return CudaCatalog(device).candidates(call.op, call, llvm::cantFail(infer(call)))[0];
    };
    CHECK(with_rows_of(499).name == "one_pass");
    CHECK(with_rows_of(499).workspace_bytes == with_rows_of(504).workspace_bytes + 2 * 512 * 504 * 2);
    CHECK(with_columns(2) == "one_pass mma flash reference ");
    CHECK(with_columns(1) == "mma flash reference ");  // numbers of two heads for a key head
    auto with_mask = [&](int64_t depth, double softcap = 0) {
      const Type x(DType::BF16, {64, 512, 2 * depth});
      return names_of(CudaCatalog(device), "attention_grad_with_mask",
                      {{"heads", int64_t{2}}, {"kv_heads", int64_t{2}}, {"scale", 0.125}, {"softcap", softcap}},
                      {x, x, x, x, lse, x, bias});
    };
    CHECK(with_mask(64, 50) == "mma flash reference ");
    CHECK(with_mask(64) == "one_pass stored_scores mma flash stored_scores_lean reference ");
    CHECK(with_mask(96) == "stored_scores mma flash stored_scores_lean reference ");
    CHECK(with_mask(32) == "one_pass mma flash reference ");
    device.compute_capability = 89;
    CHECK(with_mask(64) == "mma flash reference ");
    CHECK(names(64, {}) == "cudnn_ordered mma flash reference ");
    CHECK(names(64, {open}) == "mma flash reference ");
  }

  TEST_CASE("a cap and a bias with rows both count where the gradient of attention is predicted") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const Type bias(DType::F32, {1, 12, 1024, 1024}), lse(DType::F32, {16, 12, 1024});
    for (const char* name : {"attention_grad", "attention_mask_grad", "attention_grad_with_mask"})
      for (int64_t depth : {32, 64, 128, 256}) {
        CAPTURE(name);
        CAPTURE(depth);
        const OpDef& op = get_op(name);
        const Type x(DType::BF16, {16, 1024, 12 * depth});
        auto predicted_us = [&](llvm::StringRef kernel, bool has_bias, double softcap) {
          const Attrs attrs{{"heads", int64_t{12}}, {"kv_heads", int64_t{12}}, {"scale", 0.125}, {"softcap", softcap}};
          const std::vector<const Type*> types{&x, &x, &x, &x, &lse, &x, has_bias ? &bias : nullptr};
          const OpCall call(op, attrs, types);
          for (const KernelCandidate& candidate : CudaCatalog(h200).candidates(op, call, llvm::cantFail(infer(call))))
            if (candidate.name == kernel) return candidate.predicted_us;
          return 0.0;
        };
        const double us = predicted_us("mma", true, 50), biased_us = predicted_us("mma", true, 0);
        CHECK(us > biased_us);
        CHECK(us < 2 * biased_us);
        if (op.name != "attention_mask_grad") CHECK(predicted_us("flash", true, 50) > 4 * us);
        if (op.name == "attention_grad") CHECK(us > predicted_us("mma", false, 50));
      }
  }

  TEST_CASE("attention's gradients in one pass are predicted as an H200 measured them") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    struct Call {
      int64_t batch, rows, heads, kv_heads, depth, causal, window;
      double softcap, dropout, us;
      std::vector<Type> mask = {};
    };
    const Type bias(DType::F32, {1, 12, 512, 512}), own_bias(DType::BF16, {16, 12, 512, 512});
    for (const Call& c : std::vector<Call>{{16, 1024, 12, 12, 64, 1, 0, 0, 0, 216},
                                           {16, 1024, 12, 12, 64, 1, 0, 0, 0.1, 258},
                                           {64, 512, 12, 12, 64, 0, 0, 0, 0, 408},
                                           {4, 2048, 32, 8, 64, 1, 0, 0, 0, 456},
                                           {16, 512, 12, 12, 64, 0, 0, 0, 0, 121},
                                           {4, 2048, 16, 8, 128, 1, 0, 0, 0, 407},
                                           {4, 2048, 32, 32, 128, 1, 0, 0, 0, 847},
                                           {1, 8192, 32, 8, 128, 1, 4096, 0, 0, 2344},
                                           {1, 4096, 8, 4, 256, 1, 0, 50, 0, 579},
                                           {4, 2048, 8, 4, 256, 1, 0, 50, 0, 563},
                                           {4, 2048, 16, 16, 256, 1, 0, 0, 0, 1200},
                                           {2, 2048, 4, 1, 256, 1, 512, 0, 0, 99},
                                           {2, 2048, 4, 1, 256, 1, 0, 0, 0, 203},
                                           {16, 512, 12, 12, 64, 0, 0, 0, 0, 195, {bias}},
                                           {16, 512, 12, 12, 64, 0, 0, 0, 0.1, 223, {bias}},
                                           {16, 512, 12, 12, 64, 0, 0, 0, 0, 158, {own_bias}},
                                           {16, 512, 12, 12, 64, 0, 0, 0, 0.1, 180, {own_bias}}}) {
      const Type seed(DType::I64, {2});
      const Type x(DType::BF16, {c.batch, c.rows, c.heads * c.depth}), lse(DType::F32, {c.batch, c.heads, c.rows});
      const Type k(DType::BF16, {c.batch, c.rows, c.kv_heads * c.depth});
      Attrs attrs{{"heads", c.heads},   {"kv_heads", c.kv_heads}, {"scale", 0.125},
                  {"causal", c.causal}, {"window", c.window},     {"softcap", c.softcap}};
      if (c.dropout > 0) {
        attrs.set("dropout", c.dropout);
        attrs.set("id", int64_t{1});
      }
      std::vector<const Type*> types{&x, &k, &k, &x, &lse, &x};
      types.push_back(c.mask.empty() ? nullptr : &c.mask[0]);
      types.push_back(c.dropout > 0 ? &seed : nullptr);
      const OpDef& op = get_op(c.mask.empty() ? "attention_grad" : "attention_grad_with_mask");
      const OpCall call(op, attrs, types);
      const KernelCandidate first = CudaCatalog(h200).candidates(op, call, llvm::cantFail(infer(call)))[0];
      INFO(c.rows, " rows, ", c.heads, " heads of ", c.depth);
      CHECK(first.name == "one_pass");
      CHECK(first.predicted_us == doctest::Approx(c.us).epsilon(0.12));
    }
  }

  TEST_CASE("attention's forward of short heads is predicted as an H200 measured it") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    struct Call {
      int64_t batch, rows, heads, kv_heads, causal, window;
      double dropout, us;
      std::vector<Type> mask = {};
    };
    const Type bias(DType::F32, {1, 12, 512, 512}), own_bias(DType::BF16, {16, 12, 512, 512}),
        padding(DType::F32, {64, 1, 1, 512});
    for (const Call& c : std::vector<Call>{{64, 512, 12, 12, 0, 0, 0, 123},
                                           {64, 512, 12, 12, 0, 0, 0.1, 194},
                                           {64, 512, 12, 12, 0, 0, 0.1, 207, {padding}},
                                           {16, 1024, 12, 12, 1, 0, 0, 75},
                                           {16, 1024, 12, 12, 1, 0, 0.1, 121},
                                           {4, 2048, 32, 8, 1, 0, 0, 171},
                                           {64, 197, 16, 16, 0, 0, 0, 58},
                                           {8, 2048, 12, 12, 0, 0, 0, 229},
                                           {8, 2048, 12, 12, 0, 65, 0, 41},
                                           {16, 512, 12, 12, 0, 0, 0, 55, {bias}},
                                           {16, 512, 12, 12, 0, 0, 0.1, 69, {bias}},
                                           {16, 512, 12, 12, 0, 0, 0, 55, {own_bias}},
                                           {16, 512, 12, 12, 0, 0, 0.1, 72, {own_bias}}}) {
      const Type seed(DType::I64, {2});
      const Type x(DType::BF16, {c.batch, c.rows, c.heads * 64}), k(DType::BF16, {c.batch, c.rows, c.kv_heads * 64});
      Attrs attrs{{"heads", c.heads}, {"kv_heads", c.kv_heads}, {"scale", 0.125}, {"causal", c.causal}};
      attrs.set("window", c.window);
      if (c.dropout > 0) {
        attrs.set("dropout", c.dropout);
        attrs.set("id", int64_t{1});
      }
      std::vector<const Type*> types{&x, &k, &k, c.mask.empty() ? nullptr : &c.mask[0]};
      types.push_back(c.dropout > 0 ? &seed : nullptr);
      const OpDef& op = get_op("attention");
      const OpCall call(op, attrs, types);
      INFO(c.rows, " rows, ", c.heads, " heads");
      for (const KernelCandidate& kernel : CudaCatalog(h200).candidates(op, call, llvm::cantFail(infer(call))))
        if (kernel.name == "mma") CHECK(kernel.predicted_us == doctest::Approx(c.us).epsilon(0.1));
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

  TEST_CASE("on Hopper most weight gradients with a bias are our own kernel's") {
    const DeviceCatalog devices = llvm::cantFail(DeviceCatalog::builtin());
    const DeviceDescription h100 = llvm::cantFail(devices.find("h100")), a100 = llvm::cantFail(devices.find("a100"));
    const Attrs bias{{"bias", int64_t{1}}, {"dtype", DType::F32}};
    struct Shape {
      int64_t rows, m, n;
      double us;  // what one card measured
    };
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
      CHECK(first.predicted_us == doctest::Approx(s.us).epsilon(0.12));
      CHECK(first.workspace_bytes <= h100.product_workspace_bytes);
    }
    const std::string library = "cublaslt cublaslt_2 cublaslt_3 cublaslt_4 ", sums = "cublaslt_bgrad cublaslt_bgrad_2 ",
                      ours = "warpgroup_bgrad ";
    const Type wide(DType::BF16, {8192, 4096}), x(DType::F16, {16384, 768}), odd(DType::F16, {16384, 769});
    CHECK(names_of(CudaCatalog(h100), "linear_dw", bias, {wide, wide}) == library + sums + ours + "reference ");
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

  TEST_CASE("the gradient of attention of whole heads is predicted as measured on an H200") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    struct Call {
      int64_t batch, rows, heads, depth, causal;
      double us;
    };
    for (const Call& c : std::vector<Call>{{64, 197, 16, 64, 0, 117.6},
                                           {256, 197, 6, 64, 0, 170.8},
                                           {8, 197, 12, 64, 0, 20.4},
                                           {64, 180, 16, 64, 0, 93.7},
                                           {128, 128, 12, 64, 0, 86.8},
                                           {256, 77, 8, 64, 1, 70.3},
                                           {256, 50, 12, 64, 0, 50.1},
                                           {256, 197, 16, 32, 0, 407.4}}) {
      const Type x(DType::BF16, {c.batch, c.rows, c.heads * c.depth}), lse(DType::F32, {c.batch, c.heads, c.rows});
      const Attrs attrs{{"heads", c.heads}, {"kv_heads", c.heads}, {"scale", 0.125}, {"causal", c.causal}};
      const Type* types[] = {&x, &x, &x, &x, &lse, &x};
      const OpCall call(get_op("attention_grad"), attrs, types);
      const KernelCandidate first = CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call)))[0];
      INFO(c.rows, " rows, ", c.heads, " heads of ", c.depth);
      CHECK(first.name == "whole_heads");
      CHECK(first.workspace_bytes == 0);
      CHECK(first.predicted_us == doctest::Approx(c.us).epsilon(0.1));
    }
  }

  TEST_CASE("attention's predictions know Hopper's warpgroups and small windows") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    auto predicted_us = [&](const DeviceDescription& device, const Attrs& attrs, llvm::ArrayRef<Type> operands) {
      llvm::SmallVector<const Type*, 7> types;  // a number stands for an absent operand
      for (const Type& type : operands) types.push_back(type.rank() > 0 ? &type : nullptr);
      const OpCall call(get_op("attention"), attrs, types);
      for (const KernelCandidate& kernel :
           CudaCatalog(device).candidates(get_op("attention"), call, llvm::cantFail(infer(call))))
        if (kernel.name == "mma") return kernel.predicted_us;
      return 0.0;
    };
    const Attrs heads{{"heads", int64_t{3}}, {"kv_heads", int64_t{3}}, {"scale", 0.125}};
    const Type long_heads(DType::BF16, {8, 1024, 384}), bias(DType::F32, {1, 3, 1024, 1024});
    DeviceDescription older = h200;
    older.compute_capability = 80;
    CHECK(predicted_us(h200, heads, {long_heads, long_heads, long_heads, bias}) <
          predicted_us(older, heads, {long_heads, long_heads, long_heads, bias}));
    // 154 MB at 0.72 of a copy's speed; a mask of each window's own goes to the kernel for any mask.
    const Type windows(DType::BF16, {4096, 49, 96}), shared(DType::F32, {1, 3, 49, 49}),
        own(DType::F32, {4096, 1, 49, 49});
    const double us = predicted_us(h200, heads, {windows, windows, windows, shared});
    CHECK(us > 45);
    CHECK(us < 65);
    CHECK(predicted_us(h200, heads, {windows, windows, windows, own}) > 1.5 * us);
    // Shifted windows have segments, too.
    const Type none(DType::F32, {}), segments(DType::I64, {4096, 49});
    CHECK(predicted_us(h200, heads, {windows, windows, windows, shared, none, none, segments}) == us);
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
    CHECK(best({2, 7, 7, 18}, {2, 14, 14, 18}, "asymmetric", "ceil") == "gather");
    CHECK(best({2, 4, 4, 18}, {2, 10, 10, 18}, "asymmetric", "floor") == "gather");
    CHECK(best({2, 14, 14, 18}, {2, 7, 7, 18}, "asymmetric", "floor") == "gather");
    CHECK(best({2, 7, 7, 18}, {4, 7, 14, 18}, "asymmetric", "floor") == "gather");
    CHECK(best({2, 7, 7, 18}, {2, 140, 140, 18}, "asymmetric", "floor") == "gather");
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
