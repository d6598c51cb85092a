#include "kernels/cuda/attention/one_pass_sizes.h"
#include "kernels/cuda/attention/short_forward_sizes.h"
#include "tests/support/kernel_candidates.h"

// What planning learns of the CUDA kernels of attention, with no device present.

using namespace plimsoll;
using namespace plimsoll::testing;

TEST_SUITE("unit") {
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

  TEST_CASE(
      "heads of 32 elements go to cuDNN forward where it is predicted to take less, and take as long as measured") {
    const auto on_h200 = [](int64_t batch, int64_t heads, int64_t rows) {
      const Type x(DType::BF16, {batch, rows, 3 * heads * 32});
      const Attrs attrs{{"heads", heads}, {"kv_heads", heads}, {"packed", int64_t{1}}, {"scale", 0.17677669}};
      return candidates_on_h200("attention", attrs, {x});
    };
    CHECK(predicted_us(on_h200(2048, 4, 144), "cudnn") == doctest::Approx(477).epsilon(0.1));
    CHECK(predicted_us(on_h200(128, 16, 144), "cudnn") == doctest::Approx(125).epsilon(0.1));
    CHECK(predicted_us(on_h200(64, 12, 512), "cudnn") == doctest::Approx(134).epsilon(0.1));
    for (int64_t rows : {144, 512}) CHECK(on_h200(64, 12, rows).front().name == "mma");
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

  TEST_CASE("blocks of four tiles of rows share columns where few of them have no rows, and all begin at once") {
    CHECK(cuda::shares_columns(64 * 12, 512, 132));
    CHECK(cuda::shares_columns(64 * 16, 197, 132));
    CHECK_FALSE(cuda::shares_columns(32 * 16, 577, 132));  // 10 tiles in 3 blocks of 4
    CHECK_FALSE(cuda::shares_columns(256 * 12, 128, 132));
    CHECK_FALSE(cuda::shares_columns(8 * 12, 512, 132));  // 192 blocks on 132 multiprocessors
    DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const Type x(DType::BF16, {64, 512, 768});
    auto predicted_us = [&](int64_t window) {
      const Attrs attrs{{"heads", int64_t{12}}, {"kv_heads", int64_t{12}}, {"scale", 0.125}, {"window", window}};
      const std::vector<const Type*> types{&x, &x, &x};
      const OpCall call(get_op("attention"), attrs, types);
      double us = 0;
      for (const KernelCandidate& kernel : CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call))))
        if (kernel.name == "mma") us = kernel.predicted_us;
      return us;
    };
    // A window that closes nothing has rows of its own columns all the same.
    CHECK(predicted_us(0) > 100);
    CHECK(predicted_us(0) == doctest::Approx(cuda::of_shared_columns * predicted_us(1024)));
  }

  TEST_CASE("heads of up to 192 elements have tiles of their own in one pass") {
    CHECK(cuda::one_pass_depth(160, false) == 192);
    CHECK(cuda::one_pass_depth(192, true) == 192);
    CHECK(cuda::one_pass_depth(193, false) == 256);
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
                                           {2, 2048, 16, 16, 192, 1, 0, 0, 0, 505},
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
    constexpr double start_us = 6;  // in a step, beside what a call takes behind calls like it
    for (const Call& c : std::vector<Call>{{64, 512, 12, 12, 0, 0, 0, 111},
                                           {64, 512, 12, 12, 0, 0, 0.1, 194},
                                           {64, 512, 12, 12, 0, 0, 0.1, 207, {padding}},
                                           {16, 1024, 12, 12, 1, 0, 0, 75},
                                           {16, 1024, 12, 12, 1, 0, 0.1, 121},
                                           {4, 2048, 32, 8, 1, 0, 0, 171},
                                           {64, 197, 16, 16, 0, 0, 0, 50},
                                           {16, 1024, 16, 16, 0, 0, 0, 130},
                                           {8, 2048, 12, 12, 0, 0, 0, 179},
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
        if (kernel.name == "mma") CHECK(kernel.predicted_us == doctest::Approx(c.us + start_us).epsilon(0.1));
    }
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

  TEST_CASE("the kernel of whole heads drops probabilities of one tile, as measured on an H200") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const auto first_of = [&](int64_t batch, int64_t rows, int64_t heads, int64_t depth) {
      const Type x(DType::BF16, {batch, rows, heads * depth}), lse(DType::F32, {batch, heads, rows}),
          rng(DType::I64, {2});
      const Attrs attrs{{"heads", heads}, {"kv_heads", heads}, {"scale", 0.125}, {"dropout", 0.1}, {"id", int64_t{1}}};
      const Type* types[] = {&x, &x, &x, &x, &lse, &x, nullptr, &rng};
      const OpCall call(get_op("attention_grad"), attrs, types);
      return CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call)))[0];
    };
    CHECK(first_of(4096, 63, 16, 8).name == "whole_heads");
    CHECK(first_of(4096, 63, 16, 8).predicted_us == doctest::Approx(844).epsilon(0.1));
    CHECK(first_of(512, 64, 12, 64).predicted_us == doctest::Approx(104).epsilon(0.1));
    CHECK(first_of(64, 197, 12, 64).name != "whole_heads");
  }

  TEST_CASE("many small windows of short heads go to their own kernel and not to cuDNN's, as measured on an H200") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const Type x(DType::BF16, {4096, 63, 128}), lse(DType::F32, {4096, 16, 63});
    const Attrs attrs{{"heads", int64_t{16}}, {"kv_heads", int64_t{16}}, {"scale", 0.354}};
    const Type* types[] = {&x, &x, &x, &x, &lse, &x};
    const OpCall call(get_op("attention_grad"), attrs, types);
    const KernelCandidate first = CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call)))[0];
    CHECK(first.name == "mma");
    CHECK(first.predicted_us == doctest::Approx(793).epsilon(0.1));
  }

  TEST_CASE("few small windows of many heads are predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    const auto check = [&](int64_t windows, int64_t heads, int64_t rows, double y_us, double grad_us, double mask_us) {
      const Type qkv(DType::BF16, {windows, rows, 96 * heads}), y(DType::BF16, {windows, rows, 32 * heads}),
          lse(DType::F32, {windows, heads, rows}), bias(DType::F32, {1, heads, rows, rows});
      const Attrs attrs{{"heads", heads}, {"kv_heads", heads}, {"packed", int64_t{1}}, {"scale", 0.1768}};
      const auto predicted_us = [&](llvm::StringRef op, llvm::ArrayRef<const Type*> operands) {
        const OpCall call(get_op(op), attrs, operands);
        return h200.candidates(call.op, call, llvm::cantFail(infer(call))).front().predicted_us;
      };
      INFO(windows, " windows of ", rows, " rows, ", heads, " heads");
      CHECK(predicted_us("attention", {&qkv, nullptr, nullptr, &bias}) == doctest::Approx(y_us).epsilon(0.12));
      const Type* backward[] = {&qkv, nullptr, nullptr, &y, &lse, &y, &bias};
      CHECK(predicted_us("attention_grad", backward) == doctest::Approx(grad_us).epsilon(0.12));
      CHECK(predicted_us("attention_grad_with_mask", backward) == doctest::Approx(mask_us).epsilon(0.12));
    };
    check(64, 24, 49, 11.7, 15.4, 20.1);
    check(128, 24, 49, 17.1, 25.1, 29.8);
    check(256, 12, 49, 16.7, 25.3, 29.1);
    check(512, 12, 49, 26.6, 43.4, 47.7);
    check(256, 12, 64, 19.4, 31.1, 36.1);
    check(4096, 3, 49, 50.4, 84.8, 95.0);
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
    // 154 MB at nearly a copy's speed behind a start; a mask of each window's own goes to the kernel for any mask.
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
}
