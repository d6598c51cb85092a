#include "frontend/api/job.h"
#include "ir/plan/check.h"
#include "runtime/data/safetensors.h"
#include "tests/support/plans_of_ranks.h"
#include "tests/support/ranks_on_threads.h"

#include "llvm/Support/FileSystem.h"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>

// Whole plans of several ranks, which are threads of this process.

namespace plimsoll {
namespace {

using namespace testing;

// The same with all weights in 16 bits, which then have masters in f32.
std::string in_16_bits() {
  std::string text = perceptron.str();
  for (size_t at = 0; (at = text.find(" f32[", at)) != std::string::npos; ++at)
    if (text.compare(at, 7, " f32[],") != 0 && text.compare(at, 8, " f32[12]") != 0 && text[at + 5] != ']')
      text.replace(at, 4, " bf16");
  return text;
}

// All bytes that this process has read from files so far.
int64_t bytes_read() {
  std::ifstream counters("/proc/self/io");
  std::string name;
  int64_t bytes = 0;
  counters >> name >> bytes;  // rchar: 123
  return bytes;
}

TEST_SUITE("unit") {
  TEST_CASE("plans of several ranks run as one rank's plan does, dead bytes poisoned") {
    RandomValues values;
    values.add_for(parsed(perceptron));
    for (int64_t accumulate : {1, 2}) {
      Plan alone = plan_for(1, 0, accumulate);
      std::unique_ptr<Session> one = llvm::cantFail(Session::create(alone, {1, true}));
      const std::vector<double> want = losses_of(*one, values, 4);
      for (int64_t count : {2, 3, 4})
        for (int zero : {0, 1, 2, 3}) {
          CAPTURE(count);
          CAPTURE(zero);
          const Plan plan = plan_for(count, zero, accumulate);
          REQUIRE_FALSE(bool(check_plan(plan)));
          auto ranks = make_thread_ranks(count);
          std::vector<std::vector<double>> losses(ranks.size());
          on_ranks(ranks, [&](Communicator& own) {
            ExecutorOptions options{1, true, zero % 2 == 1, &own};
            std::unique_ptr<Session> session = llvm::cantFail(Session::create(plan, options));
            losses[static_cast<size_t>(own.rank())] = losses_of(*session, values, 4);
          });
          for (const std::vector<double>& each : losses)
            for (size_t i = 0; i < want.size(); ++i) CHECK(each[i] == doctest::Approx(want[i]).epsilon(2e-4));
          for (size_t rank = 1; rank < losses.size(); ++rank) CHECK(losses[rank] == losses[0]);
        }
    }
  }

  // LAMB's lengths are those of whole parameters, whichever pieces and parts of them a rank has.
  TEST_CASE("every optimizer that may have pieces of parameters updates them as one rank does") {
    RandomValues values;
    values.add_for(parsed(perceptron));
    for (OptimizerKind optimizer : {OptimizerKind::Sgd, OptimizerKind::Lion, OptimizerKind::RmsProp,
                                    OptimizerKind::Adagrad, OptimizerKind::Lamb}) {
      Plan alone = plan_for("data=1", 0, 1, perceptron, optimizer);
      std::unique_ptr<Session> one = llvm::cantFail(Session::create(alone, {1, true}));
      const std::vector<double> want = losses_of(*one, values, 4);
      CHECK(want.back() != want.front());
      for (const auto& [mesh, zero] : {std::pair("data=2", 0), std::pair("data=3", 1), std::pair("data=2", 3),
                                       std::pair("tensor=2", 0), std::pair("data=2,tensor=2", 1)}) {
        CAPTURE(optimizer_name(optimizer).str());
        CAPTURE(mesh);
        CAPTURE(zero);
        const Plan plan = plan_for(mesh, zero, 1, perceptron, optimizer);
        auto ranks = make_thread_ranks(plan.mesh.ranks());
        std::vector<std::vector<double>> losses(ranks.size());
        on_ranks(ranks, [&](Communicator& own) {
          std::unique_ptr<Session> session = llvm::cantFail(Session::create(plan, {1, true, false, &own}));
          losses[static_cast<size_t>(own.rank())] = losses_of(*session, values, 4);
        });
        for (size_t i = 0; i < want.size(); ++i) CHECK(losses[0][i] == doctest::Approx(want[i]).epsilon(1e-3));
      }
    }
  }

  TEST_CASE("masters of weights in 16 bits are pieces, whatever the weights are") {
    RandomValues values;
    values.add_for(parsed(in_16_bits()));
    std::unique_ptr<Session> one = llvm::cantFail(Session::create(plan_for("data=1", 0, 1, in_16_bits()), {1, true}));
    const std::vector<double> want = losses_of(*one, values, 4);
    for (auto [mesh, zero] : {std::pair{"data=2", 1}, std::pair{"data=2", 3}, std::pair{"data=2,stage=2", 1}}) {
      CAPTURE(mesh);
      CAPTURE(zero);
      const Plan plan = plan_for(mesh, zero, 1, in_16_bits());
      auto ranks = make_thread_ranks(plan.mesh.ranks());
      std::vector<double> losses;
      on_ranks(ranks, [&](Communicator& own) {
        std::unique_ptr<Session> session = llvm::cantFail(Session::create(plan, {1, true, false, &own}));
        std::vector<double> got = losses_of(*session, values, 4);
        if (own.rank() == 0) losses = std::move(got);
      });
      REQUIRE(losses.size() == want.size());
      for (size_t i = 0; i < want.size(); ++i) CHECK(losses[i] == doctest::Approx(want[i]).epsilon(2e-2));
    }
  }

  TEST_CASE("a rank reads only its pieces of the weights") {
    constexpr llvm::StringLiteral wide = R"(
graph @wide(%x: f32[4,600], %labels: i64[4]) state(%w: f32[600,1000] parameter trained) {
  %y = linear(%x, %w) : f32[4,1000]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction="mean"} : f32[], f32[4], f32[]
  return loss=%loss
}
)";
    TrainingRequest request;
    request.mesh[MeshAxis::Data] = 4;
    request.zero = 3;
    const Plan plan =
        std::move(llvm::cantFail(compile_training(parsed(wide), request, cpu_device(), CpuCatalog())).plan);
    RandomValues values;
    values.add_for(parsed(wide));
    llvm::SmallString<64> temporary;
    REQUIRE_FALSE(llvm::sys::fs::createTemporaryFile("weights", "safetensors", temporary));
    const std::string path = temporary.str().str();
    const Tensor& w = values.tensors.at("w");
    llvm::cantFail(write_safetensors(path, {{"w", w.type()}}, [&](const TensorEntry& entry, void* out) {
      std::memcpy(out, w.data(), static_cast<size_t>(entry.type.bytes()));
      return Status::success();
    }));
    auto ranks = make_thread_ranks(4);
    std::vector<int> wrong(4, -1);
    const int64_t before = bytes_read();
    on_ranks(ranks, [&](Communicator& own) {
      std::unique_ptr<Session> session = llvm::cantFail(Session::create(plan, {1, false, false, &own}));
      const Weights weights = llvm::cantFail(open_weights(path));
      llvm::cantFail(session->initialise(weights.load, 1, weights.load_range));
      llvm::cantFail(session->read_state("w", [&](const TensorView& piece) {
        int& count = wrong[static_cast<size_t>(own.rank())] = 0;
        for (int64_t i = 0; i < piece.elements(); ++i) {
          const int64_t at = own.rank() * piece.elements() + i;
          count += piece.get(i) != (at < w.type().elements() ? w.get(at) : 0);
        }
        return Status::success();
      }));
    });
    const int64_t read = bytes_read() - before, whole = w.type().bytes();
    for (int count : wrong) CHECK(count == 0);
    CHECK(read >= whole);
    CHECK(read < whole + whole / 10);  // once in all, and headers
    llvm::sys::fs::remove(path);
  }

  TEST_CASE("inputs that all samples share are read whole from a file, others in rows") {
    constexpr llvm::StringLiteral positions = R"(
graph @positions(%position_ids: i64[1,3], %ids: i64[4,3], %labels: i64[4,3]) state(%w: f32[9,8] parameter trained, %p: f32[3,8] parameter trained) {
  %e = gather(%w, %ids) {axis=0} : f32[4,3,8]
  %q = gather(%p, %position_ids) {axis=0} : f32[1,3,8]
  %h = add(%e, %q) : f32[4,3,8]
  %z = linear(%h, %w) {transpose_w=1} : f32[4,3,9]
  %rows = reshape(%z) {shape=[12,9]} : f32[12,9]
  %flat = reshape(%labels) {shape=[12]} : i64[12]
  %loss, %lse, %weight = cross_entropy(%rows, %flat) {reduction="mean"} : f32[], f32[12], f32[]
  return loss=%loss
}
)";
    llvm::SmallString<64> temporary;
    REQUIRE_FALSE(llvm::sys::fs::createTemporaryFile("batch", "safetensors", temporary));
    const std::string path = temporary.str().str();
    std::vector<int64_t> ids(12), labels(12);
    for (int64_t i = 0; i < 12; ++i)
      ids[static_cast<size_t>(i)] = i % 9, labels[static_cast<size_t>(i)] = (5 * i + 2) % 9;
    const std::vector<std::vector<int64_t>> bytes = {ids, labels, {2, 0, 1}};
    size_t next = 0;
    llvm::cantFail(write_safetensors(path,
                                     {{"ids", Type(DType::I64, {4, 3})},
                                      {"labels", Type(DType::I64, {4, 3})},
                                      {"position_ids", Type(DType::I64, {1, 3})}},
                                     [&](const TensorEntry& entry, void* out) {
                                       std::memcpy(out, bytes[next++].data(), static_cast<size_t>(entry.type.bytes()));
                                       return Status::success();
                                     }));
    auto losses = [&](const Plan& plan, Communicator* own) {
      std::unique_ptr<Session> session = llvm::cantFail(Session::create(plan, {1, true, false, own}));
      llvm::cantFail(session->initialise_randomly(3));
      auto data = llvm::cantFail(open_data(path, session->inputs(), session->rows_of_rank(0)));
      std::vector<double> all;
      for (int step = 0; step < 3; ++step) all.push_back(llvm::cantFail(session->step(*data)).loss);
      CHECK(data->items_read() * plan.mesh[MeshAxis::Data] == 3 * 12);
      return all;
    };
    TrainingRequest request;
    request.optimizer.learning_rate = 0.1;
    const CpuCatalog catalog;
    const Plan one =
        std::move(llvm::cantFail(compile_training(parsed(positions), request, cpu_device(), catalog)).plan);
    CHECK(one.training.batch == 4);
    const std::vector<double> want = losses(one, nullptr);
    CHECK(want[2] < want[0]);
    request.mesh[MeshAxis::Data] = 2;
    const Plan two =
        std::move(llvm::cantFail(compile_training(parsed(positions), request, cpu_device(), catalog)).plan);
    auto ranks = make_thread_ranks(2);
    std::vector<std::vector<double>> got(2);
    on_ranks(ranks, [&](Communicator& own) { got[static_cast<size_t>(own.rank())] = losses(two, &own); });
    for (const std::vector<double>& each : got)
      for (size_t i = 0; i < want.size(); ++i) CHECK(each[i] == doctest::Approx(want[i]).epsilon(1e-5));
    llvm::sys::fs::remove(path);
  }

  TEST_CASE("ranks with parts of matmuls and of a vocabulary run as one rank does, and give whole states") {
    RandomValues values;
    values.add_for(parsed(perceptron));
    std::unique_ptr<Session> one = llvm::cantFail(Session::create(plan_for("data=1", 0, 2), {1, true}));
    const std::vector<double> want = losses_of(*one, values, 4);
    for (auto [mesh, zero] :
         {std::pair("tensor=2", 0), {"tensor=3", 0}, {"data=2,tensor=2", 1}, {"data=2,tensor=2", 3}}) {
      CAPTURE(mesh);
      CAPTURE(zero);
      const Plan plan = plan_for(mesh, zero, 2);
      REQUIRE_FALSE(bool(check_plan(plan)));
      CHECK(llvm::any_of(plan.states, [](const PlanState& s) { return has_axis(s.divisions, MeshAxis::Tensor); }));
      auto ranks = make_thread_ranks(plan.mesh.ranks());
      std::vector<std::vector<double>> losses(ranks.size());
      Tensor saved;
      on_ranks(ranks, [&](Communicator& own) {
        std::unique_ptr<Session> session = llvm::cantFail(Session::create(plan, {1, true, zero % 2 == 1, &own}));
        losses[static_cast<size_t>(own.rank())] = losses_of(*session, values, 4);
        if (own.rank() > 0) return llvm::cantFail(session->serve_pieces());
        for (const WholeState& state : session->whole_states())
          if (state.name == "w2")
            llvm::cantFail(session->read_whole_state(state, [&](const TensorView& whole) {
              saved = Tensor(whole.type, whole.data);
              return Status::success();
            }));
        llvm::cantFail(session->end_serving());
      });
      for (const std::vector<double>& each : losses)
        for (size_t i = 0; i < want.size(); ++i) CHECK(each[i] == doctest::Approx(want[i]).epsilon(2e-4));
      for (size_t rank = 1; rank < losses.size(); ++rank) CHECK(losses[rank] == losses[0]);
      llvm::cantFail(one->read_state("w2", [&](const TensorView& whole) {
        REQUIRE(whole.type == saved.type());
        for (int64_t i = 0; i < whole.elements(); ++i)
          CHECK(saved.get(i) == doctest::Approx(whole.get(i)).epsilon(1e-3));
        return Status::success();
      }));
    }
  }

  TEST_CASE("ranks with different plans, or too few of them, do not start") {
    const Plan plan = plan_for(2, 0, 1), other = plan_for(2, 1, 1);
    auto ranks = make_thread_ranks(2);
    std::vector<std::string> failures(2);
    on_ranks(ranks, [&](Communicator& own) {
      Result<std::unique_ptr<Session>> session =
          Session::create(own.rank() == 0 ? plan : other, {1, false, false, &own});
      failures[static_cast<size_t>(own.rank())] = session ? "" : take_diag(session.takeError()).text();
    });
    CHECK(failures[0] == "rank 1 has another plan than rank 0");
    Result<std::unique_ptr<Session>> lonely = Session::create(plan, {});
    REQUIRE_FALSE(bool(lonely));
    CHECK(take_diag(lonely.takeError()).text() ==
          "the plan is for 2 ranks (data=2), 1 is running; start it as mpirun -n 2");
  }
}

}  // namespace
}  // namespace plimsoll
