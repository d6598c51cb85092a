#include "tests/support/divided_step.h"
#include "ir/support/strings.h"
#include "passes/rewrite/match.h"
#include "tests/support/random_training.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

// Steps of all ranks of a divided program, interpreted together, equal those of the program that one rank runs.

namespace plimsoll {
namespace {

using namespace testing;

TEST_SUITE("unit") {
  TEST_CASE("ranks that share a batch train as one rank does: attention, dropout, a tied embedding, ignored labels") {
    for (int64_t ranks : {2, 4})
      for (int64_t accumulate : {1, 3})
        for (double clip : {0.0, 0.05}) {
          CAPTURE(ranks);
          CAPTURE(accumulate);
          TrainingRequest request = request_of(ranks);
          request.accumulate = accumulate;
          request.clip_grad_norm = clip;
          check_divided(parsed(tied_attention), request, 1e-9);
        }
  }

  TEST_CASE("ranks share a batch whose samples do not divide: three and four ranks, filled up, count what one does") {
    // Seven samples are three and three and one, or two each and one; some labels are ignored, dropouts draw by sample.
    std::string seven = tied_attention.str();
    for (const auto& [from, to] :
         {std::pair("[4,", "[7,"), {"[12,9]", "[21,9]"}, {"[12]", "[21]"}, {"f64[12]", "f64[21]"}})
      for (size_t at = 0; (at = seven.find(from, at)) != std::string::npos; at += std::strlen(to))
        seven.replace(at, std::strlen(from), to);
    for (int64_t ranks : {2, 3, 4})
      for (int64_t accumulate : {1, 3})
        for (int zero : {0, 1, 3}) {
          CAPTURE(ranks);
          CAPTURE(accumulate);
          CAPTURE(zero);
          TrainingRequest request = request_of(ranks);
          request.accumulate = accumulate, request.zero = zero;
          request.clip_grad_norm = accumulate == 1 ? 0.05 : 0;
          check_divided(parsed(seven), request, 1e-9);
        }
    // A mean over rows without weights, and labels of which none is ignored.
    constexpr llvm::StringLiteral means = R"(
graph @means(%x: f64[5,6], %t: f64[5,4], %labels: i64[5]) state(%w: f64[6,4] parameter trained, %s: f64[4] parameter trained) {
  %h = linear(%x, %w) : f64[5,4]
  %n, %mean, %rstd = layer_norm(%h, %s) {axis=1, eps=0.001} : f64[5,4], f64[5,1], f64[5,1]
  %d = sub(%n, %t) : f64[5,4]
  %q = mul(%d, %d) : f64[5,4]
  %m = reduce_mean(%q) {axes=[0,1], keep_dims=0} : f64[]
  %ce, %lse, %weight = cross_entropy(%n, %labels) {reduction="mean"} : f64[], f64[5], f64[]
  %loss = add(%m, %ce) : f64[]
  return loss=%loss
}
)";
    for (int64_t ranks : {2, 3}) {
      CAPTURE(ranks);
      check_divided(parsed(means), request_of(ranks), 1e-9);
    }
  }

  // The gradient of the sum is the same on all ranks, and so is what they make of it for %shift, whose gradient is a
  // summand by their own rows all the same. That of %both joins it with one that differs from rank to rank.
  TEST_CASE("parameters that are added to each row of a sum over the batch, by themselves and as a part of another") {
    constexpr llvm::StringLiteral alone = R"(
graph @alone(%x: f64[6,4]) state(%scale: f64[1,4] parameter trained, %shift: f64[1,4] parameter trained) {
  %scaled = mul(%x, %scale) : f64[6,4]
  %rows = add(%scaled, %shift) : f64[6,4]
  %sum = reduce_sum(%rows) {axes=[0], keep_dims=0} : f64[4]
  %square = mul(%sum, %sum) : f64[4]
  %loss = reduce_sum(%square) {axes=[0], keep_dims=0} : f64[]
  return loss=%loss
}
)";
    constexpr llvm::StringLiteral joined = R"(
graph @joined(%x: f64[6,4]) state(%both: f64[2,4] parameter trained) {
  %scale, %shift = split(%both) {axis=0, sizes=[1,1]} : f64[1,4], f64[1,4]
  %scaled = mul(%x, %scale) : f64[6,4]
  %rows = add(%scaled, %shift) : f64[6,4]
  %sum = reduce_sum(%rows) {axes=[0], keep_dims=0} : f64[4]
  %square = mul(%sum, %sum) : f64[4]
  %loss = reduce_sum(%square) {axes=[0], keep_dims=0} : f64[]
  return loss=%loss
}
)";
    for (llvm::StringRef text : {llvm::StringRef(alone), llvm::StringRef(joined)})
      for (int64_t ranks : {2, 3})
        for (int zero : {0, 1, 3}) {
          CAPTURE(text.str());
          CAPTURE(ranks);
          CAPTURE(zero);
          TrainingRequest request = request_of(ranks);
          request.zero = zero;
          check_divided(parsed(text), request, 1e-9);
          // The checker of plans follows such gradients, too.
          Result<CompileResult> result = compile_training(parsed(text), request, cpu_device(), CpuCatalog());
          CHECK_MESSAGE(bool(result), llvm::toString(result.takeError()));
        }
  }

  TEST_CASE("gradients are sent and added up in bf16 where that is asked for") {
    for (int zero : {0, 1, 3})
      for (int64_t accumulate : {1, 2}) {
        CAPTURE(zero);
        CAPTURE(accumulate);
        TrainingRequest request = request_of(2);
        request.zero = zero, request.accumulate = accumulate, request.sum_dtype = DType::BF16;
        int64_t sums = 0;
        for (const Graph& function : program_of(parsed(tied_attention), request).functions)
          for (NodeId id : function.order()) {
            const Node& node = function.node(id);
            const Type& sent = function.type(node.operands.empty() ? node.results[0] : node.operands[0]);
            if (!starts_with(node.op->name, "reduce_") || node.op->engine != Engine::Ranks) continue;
            if (sent.shape.empty()) continue;  // the loss and the weight of its samples
            CHECK(sent.dtype == DType::BF16);
            ++sums;
          }
        CHECK(sums > 0);
        check_divided(parsed(tied_attention), request, 2e-2);
      }
  }

  TEST_CASE("inputs that all samples share stay whole: positions, a square mask, a scalar") {
    constexpr llvm::StringLiteral text = R"(
graph @shared(%ids: i64[4,4], %positions: i64[1,4], %mask: f64[4,4], %labels: i64[4,4], %scale: f64[]) state(%w: f64[9,8] parameter trained, %p: f64[4,8] parameter trained) {
  %e = gather(%w, %ids) {axis=0} : f64[4,4,8]
  %q = gather(%p, %positions) {axis=0} : f64[1,4,8]
  %h = add(%e, %q) : f64[4,4,8]
  %m = matmul(%mask, %h) : f64[4,4,8]
  %s = mul(%m, %scale) : f64[4,4,8]
  %z = linear(%s, %w) {transpose_w=1} : f64[4,4,9]
  %rows = reshape(%z) {shape=[16,9]} : f64[16,9]
  %flat = reshape(%labels) {shape=[16]} : i64[16]
  %loss, %lse, %weight = cross_entropy(%rows, %flat) {reduction="mean"} : f64[], f64[16], f64[]
  return loss=%loss
}
)";
    for (int64_t ranks : {2, 4})
      for (int zero : {0, 3}) {
        TrainingRequest request = request_of(ranks);
        request.zero = zero;
        check_divided(parsed(text), request, 1e-9);
      }
  }

  TEST_CASE("statistics of a batch norm are those of all ranks' rows") {
    for (llvm::StringRef layout : {"", ", channels_last=1"}) {
      const std::string text = R"(
graph @images(%x: f64[8,6,4,6], %labels: i64[8]) state(%s: f64[6] parameter trained, %b: f64[6] parameter trained, %w: f64[144,3] parameter trained, %running: f64[6] buffer) {
  %y, %mean, %var = batch_norm(%x, %s, %b) {activation="relu", eps=0.001)" +
                               layout.str() + R"(} : f64[8,6,4,6], f64[6], f64[6]
  %rows = reshape(%y) {shape=[8,144]} : f64[8,144]
  %z = linear(%rows, %w) : f64[8,3]
  %loss, %lse, %weight = cross_entropy(%z, %labels) {reduction="mean"} : f64[], f64[8], f64[]
  %next = running_update(%running, %mean) {momentum=0.9} : f64[6]
  return loss=%loss
  update %running = %next
})";
      for (int64_t ranks : {2, 4}) check_divided(parsed(text), request_of(ranks), 1e-9);
    }
  }

  TEST_CASE("statistics of a batch norm leave out the rows behind the end of a batch that does not divide") {
    // Two norms of which the second has a residual and a ReLU, and running statistics of all samples.
    const auto model = [](int64_t batch, bool last) {
      const std::string n = std::to_string(batch), x = last ? n + ",4,6" : n + ",6,4",
                        layout = last ? ", channels_last=1" : "";
      return parsed("graph @uneven(%x: f64[" + x + "], %labels: i64[" + n +
                    "]) state(%s: f64[6] parameter trained, %b: f64[6] parameter trained, %v: f64[24,24] parameter "
                    "trained, %w: f64[24,3] parameter trained, %rm: f64[6] buffer, %rv: f64[6] buffer) {\n"
                    "  %y, %ym, %yv = batch_norm(%x, %s, %b) {eps=0.001" +
                    layout + "} : f64[" + x +
                    "], f64[6], f64[6]\n"
                    "  %flat = reshape(%y) {shape=[" +
                    n + ",24]} : f64[" + n +
                    ",24]\n"
                    "  %h = linear(%flat, %v) : f64[" +
                    n +
                    ",24]\n"
                    "  %image = reshape(%h) {shape=[" +
                    x + "]} : f64[" + x +
                    "]\n"
                    "  %u, %um, %uv = batch_norm(%image, %s, %b, %y) {activation=\"relu\", eps=0.001" +
                    layout + "} : f64[" + x +
                    "], f64[6], f64[6]\n"
                    "  %rows = reshape(%u) {shape=[" +
                    n + ",24]} : f64[" + n +
                    ",24]\n"
                    "  %z = linear(%rows, %w) : f64[" +
                    n +
                    ",3]\n"
                    "  %loss, %lse, %weight = cross_entropy(%z, %labels) {reduction=\"mean\"} : f64[], f64[" +
                    n +
                    "], f64[]\n"
                    "  %nm = running_update(%rm, %um) {momentum=0.9} : f64[6]\n"
                    "  %nv = running_update(%rv, %uv) {count=" +
                    std::to_string(4 * batch) +
                    ", momentum=0.9} : f64[6]\n"
                    "  return loss=%loss\n  update %rm = %nm\n  update %rv = %nv\n}\n");
    };
    // Of five samples three ranks have two, two and one; of seven, four ranks two, two, two and one.
    for (bool last : {false, true})
      for (const auto& [batch, ranks] : {std::pair(5, 2), {5, 3}, {7, 4}, {7, 2}})
        for (int zero : {0, 3}) {
          CAPTURE(batch);
          CAPTURE(ranks);
          CAPTURE(zero);
          TrainingRequest request = request_of(ranks);
          request.zero = zero;
          check_divided(model(batch, last), request, 1e-9);
        }
  }

  TEST_CASE("local batch norms see the rank's own rows, and running statistics are the mean over the ranks") {
    auto model = [](int64_t batch) {
      const std::string rows = std::to_string(batch);
      return parsed("graph @local(%x: f64[" + rows + ",6], %labels: i64[" + rows +
                    "]) state(%s: f64[6] parameter trained, %b: f64[6] parameter trained, %mean_so_far: f64[6] buffer, "
                    "%var_so_far: f64[6] buffer) {\n  %y, %mean, %var = batch_norm(%x, %s, %b) {eps=0.001} : f64[" +
                    rows +
                    ",6], f64[6], f64[6]\n  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction=\"mean\"}\n" +
                    "  %m = running_update(%mean_so_far, %mean) {momentum=0.9}\n" +
                    "  %v = running_update(%var_so_far, %var) {count=" + rows +
                    ", momentum=0.9}\n  return loss=%loss\n  update %mean_so_far = %m\n  update %var_so_far = %v\n}\n");
    };
    TrainingRequest alone = request_of(1), local = request_of(2);
    local.batch_norm = Statistics::OfOwnRows;
    RandomValues values;
    values.add_for(model(8));
    RankTrainer both(program_of(model(8), local), local.mesh, values);
    const std::vector<double> losses = both.step(1);
    double loss = 0;
    Tensor mean(Type(DType::F64, {6})), var(Type(DType::F64, {6}));
    for (int64_t half : {0, 1}) {
      RandomValues own = values;
      for (const char* name : {"x", "labels"}) {
        const Tensor& whole = values.tensors.at(name);
        Type type = whole.type();
        type.shape[0] = 4;
        own.tensors.at(name) = filled_rows(whole, type, half);
      }
      RankTrainer one(program_of(model(4), alone), {}, own);
      loss += one.step(1).front() / 2;
      for (int64_t c = 0; c < 6; ++c) {
        mean.view().set(c, mean.get(c) + one.states(0).at("mean_so_far").get(c) / 2);
        var.view().set(c, var.get(c) + one.states(0).at("var_so_far").get(c) / 2);
      }
    }
    for (size_t rank : {0, 1}) {
      CHECK(losses[rank] == doctest::Approx(loss).epsilon(1e-12));
      check_close(both.states(rank).at("mean_so_far"), mean, 1e-12);
      check_close(both.states(rank).at("var_so_far"), var, 1e-12);
    }
  }

  TEST_CASE("a batch norm behind which a residual and a ReLU stand goes backward as one rank's does") {
    constexpr llvm::StringLiteral text = R"(
graph @residual(%x: f64[8,6], %labels: i64[8]) state(%v: f64[6,6] parameter trained, %s: f64[6] parameter trained, %b: f64[6] parameter trained, %w: f64[6,3] parameter trained) {
  %h = linear(%x, %v) : f64[8,6]
  %y, %mean, %var = batch_norm(%h, %s, %b, %x) {activation="relu", eps=0.001} : f64[8,6], f64[6], f64[6]
  %u, %umean, %uvar = batch_norm(%y, %s, %b, %h) {eps=0.001} : f64[8,6], f64[6], f64[6]
  %r = add(%u, %y) : f64[8,6]
  %z = linear(%r, %w) : f64[8,3]
  %loss, %lse, %weight = cross_entropy(%z, %labels) {reduction="mean"} : f64[], f64[8], f64[]
  return loss=%loss
}
)";
    for (int64_t ranks : {2, 4}) check_divided(parsed(text), request_of(ranks), 1e-9);
  }

  // Of one row a rank has a part that is a run of memory, so a sum may come in parts of its features.
  TEST_CASE("parts of a single row are added to parts of the bias") {
    constexpr llvm::StringLiteral text = R"(
graph @row(%x: f64[2,6], %labels: i64[2]) state(%u: f64[6,8] parameter trained, %b: f64[8] parameter trained, %v: f64[8,8] parameter trained, %c: f64[8] parameter trained, %w: f64[8,4] parameter trained, %d: f64[4] parameter trained) {
  %h = linear(%x, %u, %b) : f64[2,8]
  %g = tanh(%h) : f64[2,8]
  %k = linear(%g, %v, %c) : f64[2,8]
  %l = tanh(%k) : f64[2,8]
  %z = linear(%l, %w, %d) : f64[2,4]
  %loss, %lse, %weight = cross_entropy(%z, %labels) {reduction="mean"} : f64[], f64[2], f64[]
  return loss=%loss
}
)";
    TrainingRequest request = request_of(2);
    request.mesh[MeshAxis::Tensor] = 2;
    check_divided(parsed(text), request, 1e-9);
  }

  TEST_CASE("random models on 2, 3 and 4 ranks train as on one") {
    std::mt19937 random(3);
    int divided = 0;
    for (int i = 0; i < 60; ++i) {
      const RandomJob job = random_job(random);
      CAPTURE(job.text);
      TrainingRequest request = job.request;
      const Graph forward = parsed(job.text);
      const int64_t batch = forward.type(forward.inputs[0]).shape[0];
      int64_t ranks = 2 + static_cast<int64_t>(random() % 3);
      while (batch % ranks != 0 && ranks > 1) --ranks;
      if (ranks == 1) continue;
      ++divided;
      request.mesh[MeshAxis::Data] = ranks;
      request.mesh[MeshAxis::Tensor] = 1 + static_cast<int64_t>(random() % 3);
      request.zero = static_cast<int>(random() % 4);
      request.optimizer.eps = 1e-2;  // tiny gradients decide the direction of an update otherwise
      request.precision = "exported";
      CAPTURE(ranks);
      check_divided(forward, request, 2e-3);
    }
    CHECK(divided > 30);
  }

  // Eight rows that a rank looks up are fewer bytes than a table of 300: ranks gather rows.
  TEST_CASE("a table that ranks look rows of their own up in gets the gradient of one rank's") {
    const Graph tied = parsed(R"(
graph @tied(%ids: i64[12,2], %labels: i64[24]) state(%w: f32[360,16] parameter trained) {
  %rows = gather(%w, %ids) {axis=0} : f32[12,2,16]
  %y = linear(%rows, %w) {transpose_w=1} : f32[12,2,360]
  %scores = reshape(%y) {shape=[24,360]} : f32[24,360]
  %loss, %lse, %weight = cross_entropy(%scores, %labels) {reduction="mean"} : f32[], f32[24], f32[]
  return loss=%loss
}
)");
    for (int64_t ranks : {2, 3})
      for (int zero : {0, 1, 3})
        for (const char* precision : {"fp32", "bf16"}) {
          CAPTURE(ranks);
          CAPTURE(zero);
          CAPTURE(precision);
          TrainingRequest request = request_of(ranks);
          request.zero = zero;
          request.precision = precision;
          check_divided(tied, request, request.trains_copies() ? 1e-2 : 1e-4);
          const Program program = program_of(tied, request);
          const Graph& step = program.functions.front();
          const auto gathers_rows = [&](NodeId id) {
            return step.node(id).op->name == "gather_grad" &&
                   producer_of(step, operand_of(step.node(id), "indices"), "gather_pieces");
          };
          CHECK(llvm::any_of(step.order(), gathers_rows) == (zero == 0));
        }
  }

  TEST_CASE("ranks that share matmuls, heads and a vocabulary train as one rank does") {
    for (llvm::StringRef model : {packed_blocks, grouped_block})
      for (llvm::StringRef mesh : {"tensor=2", "tensor=3", "tensor=4", "data=2,tensor=2"})
        for (int zero : {0, 1, 2, 3})
          for (int64_t accumulate : {1, 2}) {
            CAPTURE(model.take_front(20).str());
            CAPTURE(mesh.str());
            CAPTURE(zero);
            CAPTURE(accumulate);
            TrainingRequest request = request_of(mesh);
            if (zero > 0 && request.mesh[MeshAxis::Data] == 1) continue;
            request.zero = zero;
            request.accumulate = accumulate;
            request.clip_grad_norm = accumulate == 2 ? 0.05 : 0;
            check_divided(parsed(model), request, 1e-9);
          }
  }
}

}  // namespace
}  // namespace plimsoll
