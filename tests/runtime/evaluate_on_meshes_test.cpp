#include "ir/plan/check.h"
#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "runtime/comm/thread_ranks.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/evaluator.h"
#include "tests/support/samples.h"
#include "tests/support/small_training.h"

#include <thread>

// Ranks that have parts or pieces of the weights evaluate what one rank evaluates, for any number of samples.

namespace plimsoll {
namespace {

using namespace testing;

// Packed q, k and v are three blocks, the rows of the tied embedding do not divide by 2, and matrices are large enough
// for ZeRO 3.
std::string language_model(int64_t rows, bool gives_logits) {
  const std::string n = std::to_string(rows), n5 = std::to_string(5 * rows);
  return "graph @packed(%ids: i64[" + n + ",5], %labels: i64[" + n + R"(,5]) state(
    %wte: f64[211,96] parameter trained, %wqkv: f64[96,288] parameter trained, %bqkv: f64[288] parameter trained,
    %wo: f64[96,96] parameter trained, %w1: f64[96,48] parameter trained, %b1: f64[48] parameter trained,
    %w2: f64[48,96] parameter trained, %rng: i64[2] counter fill=0.0
) {
  %x = gather(%wte, %ids) {axis=0} : f64[)" +
         n + R"(,5,96]
  %qkv = linear(%x, %wqkv, %bqkv) : f64[)" +
         n + R"(,5,288]
  %a, %lse = attention(%qkv, _, _) {causal=1, heads=6, kv_heads=6, packed=1, scale=0.3} : f64[)" +
         n + ",5,96], f64[" + n + R"(,6,5]
  %o = linear(%a, %wo) : f64[)" +
         n + R"(,5,96]
  %dropped = dropout(%o, %rng) {id=0, ratio=0.25} : f64[)" +
         n + R"(,5,96]
  %h = add(%x, %dropped) : f64[)" +
         n + R"(,5,96]
  %u = linear(%h, %w1, %b1) : f64[)" +
         n + R"(,5,48]
  %g = gelu(%u) {approximate="tanh"} : f64[)" +
         n + R"(,5,48]
  %d = linear(%g, %w2) : f64[)" +
         n + R"(,5,96]
  %y = add(%h, %d) : f64[)" +
         n + R"(,5,96]
  %logits = linear(%y, %wte) {transpose_w=1} : f64[)" +
         n + R"(,5,211]
  %rows = reshape(%logits) {shape=[)" +
         n5 + "," + R"(211]} : f64[)" + n5 + R"(,211]
  %flat = reshape(%labels) {shape=[)" +
         n5 + "]} : i64[" + n5 + R"(]
  %loss, %l, %weight = cross_entropy(%rows, %flat) {ignore_index=3, reduction="mean"} : f64[], f64[)" +
         n5 + R"(], f64[]
  return loss=%loss)" +
         (gives_logits ? ", logits=%logits" : "") + "\n}\n";
}

Plan plan_of(llvm::StringRef model, llvm::StringRef mesh, int zero, std::vector<std::string> metrics, double ema = 0) {
  TrainingRequest request;
  request.loss = "loss";
  request.mesh = llvm::cantFail(parse_mesh(mesh));
  request.zero = zero;
  request.ema = ema;
  request.optimizer.eps = 1e-3;
  request.evaluation.wanted = true;
  request.evaluation.batch = 2;
  request.evaluation.metrics = std::move(metrics);
  const CpuCatalog catalog;
  Result<CompileResult> result = compile_training(parsed(model), request, cpu_device(), catalog);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  REQUIRE(result->fits);
  REQUIRE_FALSE(bool(check_plan(result->plan)));
  return std::move(result->plan);
}

Plan plan_for(llvm::StringRef mesh, int zero, bool gives_logits, double ema = 0) {
  return plan_of(language_model(4, gives_logits), mesh, zero, {"accuracy", "top3", "f1"}, ema);
}

constexpr int64_t all_samples = 11;

RandomValues data_of_all() {
  RandomValues values;
  values.add_for(parsed(language_model(all_samples, false)));
  for (const char* name : {"ids", "labels"}) {
    Tensor& tensor = values.tensors.at(name);
    for (int64_t i = 0; i < tensor.type().elements(); ++i) tensor.view().set_int(i, (i * 7 + i / 3) % 211);
  }
  return values;
}

// The values with a batch of the plan in the place of all samples: what two steps before the evaluation train with.
RandomValues first_rows(const RandomValues& values) {
  RandomValues rows = values;
  for (const char* name : {"ids", "labels"})
    rows.tensors.at(name) = Tensor(Type(DType::I64, {4, 5}), values.tensors.at(name).data());
  return rows;
}

EvaluationResult evaluated(Session& session, const RandomValues& values, int64_t samples) {
  losses_of(session, first_rows(values), 2);
  Evaluator evaluator = llvm::cantFail(Evaluator::create(session));
  const DataOptions rows = evaluator.rows_of_rank(0);
  Samples data(values, evaluator.inputs(), samples, rows.rank, rows.ranks);
  return llvm::cantFail(evaluator.run(data));
}

// What each rank's session finds, each on a thread of its own.
template <typename Body>
std::vector<EvaluationResult> on_ranks(const Plan& plan, Body body) {
  std::vector<std::unique_ptr<Communicator>> ranks = make_thread_ranks(plan.mesh.ranks());
  std::vector<EvaluationResult> results(ranks.size());
  std::vector<std::thread> threads;
  for (auto& rank : ranks)
    threads.emplace_back([&] {
      ExecutorOptions options{.threads = 1, .poison = true, .ranks = rank.get()};
      std::unique_ptr<Session> session = llvm::cantFail(Session::create(Plan(plan), options));
      results[static_cast<size_t>(rank->rank())] = body(*session);
    });
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<EvaluationResult> evaluated_on_ranks(const Plan& plan, const RandomValues& values, int64_t samples) {
  return on_ranks(plan, [&](Session& session) { return evaluated(session, values, samples); });
}

int64_t count_of(const Plan& plan, llvm::StringRef op) {
  return llvm::count_if(plan.functions.back().instructions,
                        [&](const Instruction& instruction) { return instruction.op == op; });
}

void check_agrees(const Plan& plan, const Plan& alone, const RandomValues& values) {
  for (int64_t samples : {all_samples, int64_t{9}, int64_t{8}}) {
    const EvaluationResult expected = evaluated_on_ranks(alone, values, samples).front();
    for (const EvaluationResult& result : evaluated_on_ranks(plan, values, samples)) {
      CHECK(result.samples == samples);
      REQUIRE(result.metrics.size() == expected.metrics.size());
      for (size_t i = 0; i < expected.metrics.size(); ++i)
        CHECK_MESSAGE(result.metrics[i].value == doctest::Approx(expected.metrics[i].value).epsilon(1e-9),
                      expected.metrics[i].name);
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("ranks with parts or pieces of the weights evaluate as one rank does") {
    const RandomValues values = data_of_all();
    for (bool gives_logits : {false, true}) {
      const Plan alone = plan_for("data=1", 0, gives_logits);
      for (const auto& [mesh, zero] :
           {std::pair("tensor=2", 0), std::pair("data=2", 3), std::pair("data=2,tensor=2", 3)}) {
        CAPTURE(mesh);
        CAPTURE(gives_logits);
        check_agrees(plan_for(mesh, zero, gives_logits), alone, values);
      }
    }
  }

  // The layers behind the first sum want other parts of it than its rows.
  TEST_CASE("ranks with parts of a classifier's layers evaluate as one rank does") {
    constexpr llvm::StringLiteral classifier = R"(
graph @classifier(%x: f64[4,64], %labels: i64[4]) state(
    %w1: f64[64,128] parameter trained, %b1: f64[128] parameter trained, %w2: f64[128,128] parameter trained,
    %b2: f64[128] parameter trained, %w3: f64[128,10] parameter trained, %b3: f64[10] parameter trained
) {
  %h1 = linear(%x, %w1, %b1) : f64[4,128]
  %a1 = relu(%h1) : f64[4,128]
  %h2 = linear(%a1, %w2, %b2) : f64[4,128]
  %a2 = tanh(%h2) : f64[4,128]
  %y = linear(%a2, %w3, %b3) : f64[4,10]
  %loss, %l, %weight = cross_entropy(%y, %labels) {reduction="mean"} : f64[], f64[4], f64[]
  return loss=%loss
}
)";
    RandomValues values;
    values.add_for(parsed(classifier));
    const auto loss_on = [&](llvm::StringRef mesh) {
      const Plan plan = plan_of(classifier, mesh, 0, {});
      std::vector<double> losses;
      for (const EvaluationResult& result : on_ranks(plan, [&](Session& session) {
             llvm::cantFail(initialise(session, values));
             Evaluator evaluator = llvm::cantFail(Evaluator::create(session));
             Samples data(values, evaluator.inputs(), 4);
             return llvm::cantFail(evaluator.run(data));
           }))
        losses.push_back(result.find("loss")->value);
      return losses;
    };
    const double alone = loss_on("data=1").front();
    for (double each : loss_on("tensor=2")) CHECK(each == doctest::Approx(alone).epsilon(1e-9));
  }

  TEST_CASE("evaluation works on the parts of matrices that training has") {
    // Sums of partial products, and not a whole of each of the five matrices. Without dropout one of them would be cut
    // otherwise, and is gathered.
    const Plan plan = plan_for("tensor=2", 0, true);
    CHECK(count_of(plan, "reduce_all") >= 3);
    CHECK(count_of(plan, "gather_pieces") == 1);
  }

  TEST_CASE("ranks evaluate the parts of a running mean") {
    const RandomValues values = data_of_all();
    const Plan alone = plan_for("data=1", 0, true, 0.5);
    REQUIRE(alone.evaluation.of_mean);
    for (const auto& [mesh, zero] : {std::pair("tensor=2", 0), std::pair("data=2", 3)}) {
      CAPTURE(mesh);
      const Plan plan = plan_for(mesh, zero, true, 0.5);
      CHECK(plan.evaluation.of_mean);
      check_agrees(plan, alone, values);
    }
  }

  // Each stage has the states that training gave it, and all get the outputs of the last one. The tied embedding is the
  // first stage's, which makes the logits too.
  TEST_CASE("stages of a pipeline evaluate as one rank does") {
    const RandomValues values = data_of_all();
    for (bool gives_logits : {false, true}) {
      const Plan alone = plan_for("data=1", 0, gives_logits);
      for (const auto& [mesh, zero] : {std::pair("stage=2", 0), std::pair("data=2,stage=2", 1),
                                       std::pair("data=2,stage=2", 3), std::pair("tensor=2,stage=2", 0)}) {
        CAPTURE(mesh);
        CAPTURE(zero);
        CAPTURE(gives_logits);
        const Plan plan = plan_for(mesh, zero, gives_logits);
        REQUIRE(plan.later_stages.size() == 1);
        CHECK(count_of(plan, "send") > 0);
        check_agrees(plan, alone, values);
      }
    }
    const Plan alone = plan_for("data=1", 0, true, 0.5), plan = plan_for("stage=2", 0, true, 0.5);
    CHECK(plan.evaluation.of_mean);
    check_agrees(plan, alone, values);
  }
}

}  // namespace
}  // namespace plimsoll
