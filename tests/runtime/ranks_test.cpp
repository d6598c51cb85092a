#include "frontend/api/job.h"
#include "ir/plan/check.h"
#include "ir/plan/summary.h"
#include "passes/compile.h"
#include "passes/train/optimizer_settings.h"
#include "runtime/comm/group_ranks.h"
#include "runtime/comm/host_collectives.h"
#include "runtime/comm/rank_watch.h"
#include "runtime/comm/tcp_ranks.h"
#include "runtime/comm/thread_ranks.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/data/safetensors.h"
#include "tests/support/refused_plan.h"
#include "tests/support/small_training.h"

#include "llvm/Support/FileSystem.h"

#include <doctest/doctest.h>

#include <unistd.h>
#include <cstring>
#include <fstream>
#include <thread>

// Ranks as threads of this process: collectives on host memory, and whole plans.

namespace plimsoll {
namespace {

using namespace testing;

// Runs the body once per rank, each on a thread of its own.
template <typename Body>
void on_ranks(std::vector<std::unique_ptr<Communicator>>& ranks, Body body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

// Ranks of the process's own `job`, at a port below those that a system gives to connections. Other processes may run
// these tests at the same time.
std::vector<std::unique_ptr<Communicator>> tcp_ranks(int64_t count, int job) {
  constexpr int first_port = 15000, ports = 16000, jobs = 8;
  const int port = first_port + (getpid() * jobs + job) % ports;
  std::vector<std::unique_ptr<Communicator>> ranks(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < count; ++rank)
    threads.emplace_back([&ranks, rank, count, port] {
      ranks[static_cast<size_t>(rank)] =
          llvm::cantFail(connect_by_tcp(rank, count, "127.0.0.1", port, default_patience_s));
    });
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

// What rank r has at place i.
double number(int64_t rank, int64_t i) { return static_cast<double>((rank + 1) * (i % 1000 + 1)); }

void check_collectives(std::vector<std::unique_ptr<Communicator>> ranks, DType dtype, int64_t elements) {
  const auto count = static_cast<int64_t>(ranks.size()), piece = (elements + count - 1) / count + 1;
  std::vector<int64_t> wrong(ranks.size(), 0);
  on_ranks(ranks, [&](Communicator& own) {
    HostCollectives collectives(own);
    Tensor in(Type(dtype, {elements})), sum(Type(dtype, {elements})), part(Type(dtype, {piece})), all(in.type());
    for (int64_t i = 0; i < elements; ++i) in.view().set(i, number(own.rank(), i));
    llvm::cantFail(collectives.reduce_all(sum.view(), in.view()));
    llvm::cantFail(collectives.reduce_pieces(part.view(), in.view()));
    llvm::cantFail(collectives.gather_pieces(all.view(), part.view()));
    Tensor want(in.type());
    for (int64_t i = 0; i < elements; ++i) {
      double total = 0;
      for (int64_t rank = 0; rank < count; ++rank) total += number(rank, i);
      want.view().set(i, total);
    }
    wrong[static_cast<size_t>(own.rank())] = !(sum == want) + !(all == want);
    llvm::cantFail(collectives.reduce_all(in.view(), in.view()));  // over its operand
    wrong[static_cast<size_t>(own.rank())] += !(in == want);
  });
  for (int64_t each : wrong) CHECK(each == 0);
}

// Each rank hands a long number row to the next one, and the groups of a mesh add up at the same time.
void check_transfers_and_groups(std::vector<std::unique_ptr<Communicator>> ranks, const Mesh& mesh) {
  std::vector<int64_t> wrong(ranks.size(), 0);
  on_ranks(ranks, [&](Communicator& own) {
    const int64_t rank = own.rank(), count = own.ranks(), before = (rank + count - 1) % count;
    std::vector<int64_t> sent(300000, rank), got(sent.size(), -1);
    const auto bytes = static_cast<int64_t>(sent.size() * sizeof(int64_t));
    int64_t& failures = wrong[static_cast<size_t>(rank)];
    llvm::cantFail(own.transfer({(rank + 1) % count, sent.data(), bytes}, {before, got.data(), bytes}));
    failures += got.front() != before || got.back() != before;
    if (rank == 0) llvm::cantFail(own.transfer({count - 1, sent.data(), bytes}, {}));
    if (rank == count - 1) llvm::cantFail(own.transfer({}, {0, got.data(), bytes}));
    if (rank == count - 1) failures += got.back() != 0;
    MeshCollectives groups(own, mesh);
    for (MeshAxis axis : {MeshAxis::Data, MeshAxis::Tensor, MeshAxis::Stage}) {
      if (mesh[axis] == 1) continue;
      Tensor sum = Tensor::scalar(static_cast<double>(rank), DType::F32);
      llvm::cantFail(groups.along(axis)->reduce_all(sum.view(), sum.view()));
      double want = 0;
      for (int64_t member : mesh.group_of(rank, axis)) want += static_cast<double>(member);
      failures += sum.get(0) != want || groups.along(axis)->rank() != mesh.coordinate(rank, axis);
    }
  });
  for (int64_t each : wrong) CHECK(each == 0);
}

constexpr llvm::StringLiteral model = R"(
graph @mlp(%x: f32[12,6], %labels: i64[12]) state(%w1: f32[6,300] parameter trained, %b1: f32[300] parameter trained, %w2: f32[300,13] parameter trained, %rng: i64[2] counter fill=0.0) {
  %h = linear(%x, %w1, %b1) : f32[12,300]
  %d = dropout(%h, %rng) {id=0, ratio=0.25} : f32[12,300]
  %g = gelu(%d) {approximate="none"} : f32[12,300]
  %y = linear(%g, %w2) : f32[12,13]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {ignore_index=1, reduction="mean"} : f32[], f32[12], f32[]
  return loss=%loss
}
)";

// The same with all weights in 16 bits, which then have masters in f32.
std::string in_16_bits() {
  std::string text = model.str();
  for (size_t at = 0; (at = text.find(" f32[", at)) != std::string::npos; ++at)
    if (text.compare(at, 7, " f32[],") != 0 && text.compare(at, 8, " f32[12]") != 0 && text[at + 5] != ']')
      text.replace(at, 4, " bf16");
  return text;
}

Plan plan_for(llvm::StringRef mesh, int zero, int64_t accumulate, llvm::StringRef text = model,
              OptimizerKind optimizer = OptimizerKind::AdamW) {
  TrainingRequest request;
  request.optimizer = default_optimizer(optimizer);
  request.mesh = llvm::cantFail(parse_mesh(mesh));
  request.zero = zero;
  request.accumulate = accumulate;
  request.clip_grad_norm = 0.5;
  request.optimizer.eps = 1e-3;
  const CpuCatalog catalog;
  Result<CompileResult> result = compile_training(parsed(text), request, cpu_device(), catalog);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  return std::move(result->plan);
}

Plan plan_for(int64_t ranks, int zero, int64_t accumulate) {
  return plan_for("data=" + std::to_string(ranks), zero, accumulate);
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
  TEST_CASE("collectives on host memory add up in any dtype and any length") {
    for (int64_t count : {1, 2, 3, 4})
      for (int64_t elements : {1, 5, 1000, 700001}) {
        check_collectives(make_thread_ranks(count), DType::F32, elements);
        if (elements < 2000) check_collectives(make_thread_ranks(count), DType::F64, elements);
      }
    check_collectives(make_thread_ranks(3), DType::BF16, 7);
  }

  TEST_CASE("ranks that meet at an address do the same") { check_collectives(tcp_ranks(3, 0), DType::F32, 400001); }

  TEST_CASE("two ranks transfer by themselves, and groups of a mesh communicate at the same time") {
    const Mesh mesh = llvm::cantFail(parse_mesh("data=2,tensor=3,stage=2"));
    CHECK(mesh.group_of(7, MeshAxis::Stage) == std::vector<int64_t>{1, 7});
    CHECK(mesh.group_of(7, MeshAxis::Data) == std::vector<int64_t>{7, 10});
    CHECK(mesh.group_of(7, MeshAxis::Tensor) == std::vector<int64_t>{6, 7, 8});
    check_transfers_and_groups(make_thread_ranks(mesh.ranks()), mesh);
    check_transfers_and_groups(tcp_ranks(4, 1), llvm::cantFail(parse_mesh("data=2,stage=2")));
  }

  TEST_CASE("a rank that goes away makes the others fail") {
    std::vector<std::unique_ptr<Communicator>> ranks = make_thread_ranks(3);
    std::vector<std::string> failures(3);
    on_ranks(ranks, [&](Communicator& own) {
      if (own.rank() == 1) return own.abort();
      int64_t mine = own.rank(), all[3];
      if (Status s = own.gather_all(&mine, all, sizeof mine))
        failures[static_cast<size_t>(own.rank())] = take_diag(std::move(s)).text();
    });
    CHECK(failures[0] == "rank 0: another rank has gone");
    CHECK(failures[2] == "rank 2: another rank has gone");
  }

  TEST_CASE("plans of several ranks run as one rank's plan does, dead bytes poisoned") {
    RandomValues values;
    values.add_for(parsed(model));
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
    values.add_for(parsed(model));
    for (OptimizerKind optimizer : {OptimizerKind::Sgd, OptimizerKind::Lion, OptimizerKind::RmsProp,
                                    OptimizerKind::Adagrad, OptimizerKind::Lamb}) {
      Plan alone = plan_for("data=1", 0, 1, model, optimizer);
      std::unique_ptr<Session> one = llvm::cantFail(Session::create(alone, {1, true}));
      const std::vector<double> want = losses_of(*one, values, 4);
      CHECK(want.back() != want.front());
      for (const auto& [mesh, zero] : {std::pair("data=2", 0), std::pair("data=3", 1), std::pair("data=2", 3),
                                       std::pair("tensor=2", 0), std::pair("data=2,tensor=2", 1)}) {
        CAPTURE(optimizer_name(optimizer).str());
        CAPTURE(mesh);
        CAPTURE(zero);
        const Plan plan = plan_for(mesh, zero, 1, model, optimizer);
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

  TEST_CASE("a watch names a rank that stands still, one that fails and one that goes") {
    enum class End { StandsStill, Fails, Goes };
    for (End end : {End::StandsStill, End::Fails, End::Goes}) {
      auto ranks = tcp_ranks(3, 2 + static_cast<int>(end));
      std::vector<RankProgress> progress(3);
      std::vector<std::string> failures(3), told(3);
      on_ranks(ranks, [&](Communicator& own) {
        const auto rank = static_cast<size_t>(own.rank());
        std::atomic<bool> interrupted{false};
        WatchOptions options;
        options.patience_s = 1;
        options.describe = [](int32_t function, int32_t instruction) {
          return "place " + std::to_string(function) + "." + std::to_string(instruction);
        };
        options.interrupt = [&] { interrupted = true; };
        options.tell = [&](const std::string& failure) { told[rank] = failure; };
        std::unique_ptr<RankWatch> watch = llvm::cantFail(RankWatch::start(own, progress[rank], std::move(options)));
        progress[rank].function = 0;
        progress[rank].instruction = rank == 2 ? 7 : 8;  // the others wait for rank 2
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
        CHECK_FALSE(interrupted);
        if (rank == 2 && end == End::Fails) {
          watch->report_own_failure(Fault::Model);
          CHECK(watch->tells_own_failure());
          return;
        }
        if (rank == 2 && end == End::Goes) return watch.reset();  // in good order: not noticed
        for (int i = 0; i < 3000 && !interrupted; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (Status s = watch->failure()) failures[rank] = take_diag(std::move(s)).text();
      });
      const std::string still = "rank 2 has stood still for 1 s, last seen at place 0.7",
                        failed = "rank 2 has failed, last seen at place 0.7",
                        waits = "rank 0 has stood still for 1 s, last seen at place 0.8";
      const std::string want = end == End::StandsStill ? still : end == End::Fails ? failed : waits;
      CHECK(failures[0] == want);
      CHECK(failures[1] == want);
      CHECK(failures[2] == (end == End::StandsStill ? still : ""));
      // One rank tells people: rank 0 of another, a rank that failed by itself.
      CHECK(told[0] == (end == End::StandsStill ? still : ""));
      CHECK(told[1] == (end == End::Goes ? waits : ""));
      CHECK(told[2] == "");
    }
  }

  TEST_CASE("of ranks that fail at once one tells it") {
    auto ranks = tcp_ranks(4, 5);
    std::vector<RankProgress> progress(4);
    std::vector<int> tells(4, -1);
    std::vector<int> faults(4, -1);
    on_ranks(ranks, [&](Communicator& own) {
      const auto rank = static_cast<size_t>(own.rank());
      WatchOptions options;
      options.patience_s = 20;
      options.describe = [](int32_t, int32_t) { return "a place"; };
      std::atomic<bool> interrupted{false};
      options.interrupt = [&] { interrupted = true; };
      std::unique_ptr<RankWatch> watch = llvm::cantFail(RankWatch::start(own, progress[rank], std::move(options)));
      if (rank != 1) {
        watch->report_own_failure(Fault::Model);
        tells[rank] = watch->tells_own_failure();
        return;
      }
      for (int i = 0; i < 1000 && !interrupted; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (Status s = watch->failure()) faults[rank] = static_cast<int>(take_diag(std::move(s)).fault());
    });
    CHECK(tells[0] + tells[2] + tells[3] == 1);
    CHECK(faults[1] == static_cast<int>(Fault::Model));
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
    values.add_for(parsed(model));
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

  TEST_CASE("mutated plans of several ranks are rejected") {
    const Plan good = plan_for(2, 1, 1);
    auto mutated = [&](auto change, llvm::StringRef message) {
      Plan plan = good;
      change(plan);
      check_refused(plan, message);
    };
    auto find = [](Plan& plan, llvm::StringRef op) -> Instruction& {
      auto& all = plan.functions[0].instructions;
      auto found = llvm::find_if(all, [&](const Instruction& each) { return each.op == op; });
      REQUIRE(found != all.end());
      return *found;
    };
    mutated(
        [&](Plan& p) {
          for (Instruction& each : p.functions[0].instructions)
            if (each.op == "reduce_all") each.op = "neg", each.attrs = {}, each.done = -1;
        },
        "differs from rank to rank");
    mutated([&](Plan& p) { find(p, "reduce_all").attrs.set("ranks", int64_t{3}); },
            "is of 3 ranks, the mesh is data=2");
    mutated([&](Plan& p) { find(p, "reduce_pieces").attrs.set("axis", std::string("tensor")); }, "is of 2 ranks");
    mutated([&](Plan& p) { p.mesh[MeshAxis::Data] = 4; }, "the mesh is data=4");
    mutated(
        [&](Plan& p) {
          for (PlanState& state : p.states)
            if (!state.divisions.empty()) state.divisions[0].whole = {1 << 20};
        },
        "do not make");
    mutated(
        [&](Plan& p) {
          for (PlanState& state : p.states) state.divisions.clear();
        },
        "ranks would drift apart");
  }

  // Each collective of each plan by itself.
  TEST_CASE("plans in which any one collective is dropped, resized or not waited for are rejected") {
    for (const auto& [mesh, zero] : {std::pair("data=2", 1), {"data=2", 3}, {"tensor=2", 0}, {"data=2,tensor=2", 3}}) {
      CAPTURE(mesh);
      CAPTURE(zero);
      const Plan good = plan_for(mesh, zero, 1);
      REQUIRE_FALSE(bool(check_plan(good)));
      const auto& instructions = good.functions[0].instructions;
      size_t collectives = 0, waits = 0;
      for (size_t i = 0; i < instructions.size(); ++i) {
        const Instruction& collective = instructions[i];
        if (!communicates(collective)) continue;
        ++collectives;
        CAPTURE(i);
        CAPTURE(collective.op);
        auto mutated = [&](llvm::StringRef how, auto change) {
          CAPTURE(how.str());
          Plan plan = good;
          change(plan.functions[0].instructions[i], plan);
          check_refused(plan, "");
        };
        // Without the sum of the samples' weights, one number, ranks stay alike, with losses of another scale.
        const bool is_one_number = good.slots[static_cast<size_t>(collective.results[0])].type.elements() == 1;
        if (collective.op == "reduce_all" && !is_one_number)
          mutated("dropped", [](Instruction& each, Plan&) { each.op = "neg", each.attrs = {}, each.done = -1; });
        if (collective.op != "reduce_all")
          mutated("resized", [](Instruction& each, Plan&) {
            const llvm::ArrayRef<int64_t> now = each.attrs.get_ints("shape");
            Ints shape(now.begin(), now.end());
            shape[0] *= 2;
            each.attrs.set("shape", shape);
          });
        mutated("of other ranks",
                [](Instruction& each, Plan&) { each.attrs.set("ranks", each.attrs.get_int("ranks") + 1); });
        mutated("along another axis", [](Instruction& each, Plan&) { each.attrs.set("axis", std::string("stage")); });
        if (collective.done < 0 || collective.done == static_cast<int32_t>(instructions.size())) continue;
        ++waits;
        // Somebody reads what has not come, or writes what is still sent. Neighbours of one kind are one launch, for
        // all of which one wait stands.
        mutated("not waited for", [&](Instruction&, Plan& plan) {
          auto& all = plan.functions[0].instructions;
          size_t first = i, last = i;
          while (first > 0 && all[first - 1].op == collective.op) --first;
          while (last + 1 < all.size() && all[last + 1].op == collective.op) ++last;
          for (size_t each = first; each <= last; ++each) all[each].done = static_cast<int32_t>(all.size());
        });
      }
      CHECK(collectives > 2);
      CHECK(waits > 0);
    }
  }

  TEST_CASE("mutated plans of ranks with parts of tensors are rejected") {
    const Plan good = plan_for("data=2,tensor=2", 1, 1);
    REQUIRE_FALSE(bool(check_plan(good)));
    auto refused = [&](auto change) {
      Plan plan = good;
      change(plan);
      Status status = check_plan(plan);
      REQUIRE(bool(status));
      return take_diag(std::move(status)).text();
    };
    auto change_collectives = [](Plan& plan, llvm::StringRef op, llvm::StringRef axis, auto change) {
      for (Instruction& each : plan.functions[0].instructions)
        if (each.op == op && each.attrs.get_string("axis") == axis) change(each);
    };
    auto contains = [](const std::string& text, llvm::StringRef part) {
      CAPTURE(text);
      CHECK(llvm::StringRef(text).contains(part));
    };
    contains(refused([&](Plan& p) {
               change_collectives(p, "reduce_all", "tensor",
                                  [](Instruction& each) { each.op = "neg", each.attrs = {}, each.done = -1; });
             }),
             "along tensor");
    contains(refused([&](Plan& p) {
               change_collectives(p, "reduce_all", "tensor",
                                  [](Instruction& each) { each.attrs.set("axis", std::string("data")); });
             }),
             "from rank to rank along tensor");
    contains(refused([&](Plan& p) {
               for (PlanState& state : p.states)
                 for (Division& each : state.divisions)
                   if (each.axis == MeshAxis::Tensor) each.cut.dim = 5;
             }),
             "do not make");
    contains(refused([&](Plan& p) {
               for (PlanState& state : p.states)
                 if (has_axis(state.divisions, MeshAxis::Tensor)) state.divisions.erase(state.divisions.begin());
             }),
             "drift apart along tensor");
    contains(refused([&](Plan& p) { p.mesh[MeshAxis::Tensor] = 4; }), "do not make");
  }
}

}  // namespace
}  // namespace plimsoll
