#include "passes/mesh/mesh_search.h"

#include "ir/machine/cluster.h"
#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/random_training.h"
#include "tests/support/small_training.h"

#include "llvm/ADT/STLExtras.h"

#include <random>

// Which meshes are tried, that bounds hold for every plan, and that more memory or one more card never gives a slower
// plan.

namespace plimsoll {
namespace {

using namespace testing;

// Eight layers; their weights are many more bytes than what goes from one to the next.
std::string layers(int64_t rows, int64_t width) {
  const std::string w = std::to_string(width), type = "f32[" + std::to_string(rows) + "," + w + "]";
  std::string states, body, last = "%x";
  for (int i = 0; i < 8; ++i) {
    const std::string id = std::to_string(i);
    states += (i == 0 ? "%w" : ", %w") + id + ": f32[" + w + "," + w + "] parameter trained";
    body += "  %h" + id + " = linear(" + last + ", %w" + id + ") {transpose_w=0} : " + type + "\n";
    last = "%h" + id;
  }
  return "graph @layers(%x: " + type + ", %t: " + type + ") state(" + states + ") {\n" + body + "  return y=" + last +
         "\n}\n";
}

TrainingRequest layers_request() {
  TrainingRequest request;
  request.loss = "mse:h7:t";
  return request;
}

DeviceDescription gpu() { return llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h100")); }

// A job with its machine.
struct Setting {
  std::string text;
  TrainingRequest request;
  DeviceDescription device = gpu();
  std::optional<ClusterDescription> cluster;
  CpuCatalog catalog;

  Result<DeviceDescription> device_for(const Mesh& mesh) const {
    return cluster ? on_cluster(device, *cluster, mesh) : device;
  }
  CleanModel model() const {
    Result<CleanModel> model = clean_model(parsed(text), request.loss);
    REQUIRE_MESSAGE(bool(model), llvm::toString(model.takeError()));
    return std::move(*model);
  }
  Result<CompileResult> compile(const TrainingRequest& asked) const {
    Result<DeviceDescription> linked = device_for(asked.mesh);
    if (!linked) return linked.takeError();
    return compile_training(model(), asked, StageDevices(*linked, catalog));
  }
  CompileResult search(const MeshQuestion& question) const {
    const CleanModel clean = model();
    const auto device_of = [&](const Mesh& mesh) { return device_for(mesh); };
    const auto compile_with = [&](const TrainingRequest& asked) { return compile(asked); };
    Result<CompileResult> result = search_meshes({clean, request, question, catalog, device_of, compile_with});
    REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
    return std::move(*result);
  }
};

Setting random_setting(unsigned seed) {
  std::mt19937 random(seed);
  RandomJob job = random_job(random);
  Setting setting{job.text, job.request, gpu(), std::nullopt, {}};
  setting.request.effort = 0.01;
  setting.device.reserves.clear();
  setting.device.collective_reserve_bytes = setting.device.transfer_reserve_bytes = 0;
  setting.device.collective_graph_bytes = setting.device.graph_launch_bytes = 0;
  setting.device.launch_us = 0.01, setting.device.kernel_us = 0, setting.device.collective_us = 0.1;
  return setting;
}

int64_t host_bytes(const Plan& plan) { return plan.arenas.size() > 1 ? plan.arenas[1].bytes : 0; }

// Compiles every candidate as it is and within less, and holds the plans against its bounds. Gives the number of plans.
int64_t check_bounds(const Setting& setting, int64_t cards) {
  Result<ModelProfile> profile =
      profile_model(setting.model(), setting.request, {cards}, setting.device, setting.catalog);
  REQUIRE_MESSAGE(bool(profile), llvm::toString(profile.takeError()));
  MeshQuestion question{.cards = cards};
  question.batch = profile->batch;
  question.accumulates = setting.request.accumulate > 1;
  question.max_stages = static_cast<int64_t>(profile->stages.block_share.size());
  int64_t plans = 0;
  for (const MeshCandidate& candidate : mesh_candidates(question, profile->tensor_sizes())) {
    const MeshEstimate estimate =
        estimate_mesh(*profile, candidate, setting.request, llvm::cantFail(setting.device_for(candidate.mesh)));
    TrainingRequest request = setting.request;
    request.mesh = candidate.mesh, request.zero = candidate.zero;
    if (request.mesh[MeshAxis::Stage] > 1)
      request.micro_batches = candidate.micro_batches, request.schedule = candidate.schedule;
    for (int share : {100, 60}) {
      Result<CompileResult> result = setting.compile(request);
      if (!result) {  // such as a model that no value alone divides
        llvm::consumeError(result.takeError());
        break;
      }
      CAPTURE(to_string(candidate.mesh));
      CAPTURE(candidate.zero);
      CAPTURE(share);
      int64_t bytes = 0, both = 0;
      for (const Plan* stage : result->plan.stages()) {
        bytes = std::max(bytes, stage->promised_bytes());
        both = std::max(both, stage->promised_bytes() + host_bytes(*stage));
      }
      const bool is_whole = result->plan.later_stages.size() + 1 == static_cast<size_t>(request.mesh[MeshAxis::Stage]);
      if (is_whole) {
        CHECK(result->plan.predicted_step_us >= estimate.least_us);
        if (result->fits) CHECK(result->plan.predicted_step_us >= estimate.least_us_within(bytes));
        CHECK(bytes >= estimate.least_device_bytes);
        CHECK(both >= estimate.least_bytes);
        ++plans;
      }
      request.budget_bytes = bytes * 60 / 100;
    }
  }
  return plans;
}

TEST_SUITE("unit") {
  TEST_CASE("sizes along an axis grow with their step") {
    CHECK(axis_sizes(17, 2) == std::vector<int64_t>{1, 2, 3, 4, 6, 8, 12, 16});
    CHECK(axis_sizes(20, 3) == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20});
    CHECK(micro_batches_to_try(24, 4) == std::vector<int64_t>{4, 8, 12});
    CHECK(micro_batches_to_try(1, 4) == std::vector<int64_t>{1});
  }

  TEST_CASE("meshes of more cards contain those of fewer, and rows divide") {
    std::vector<MeshCandidate> before;
    for (int64_t cards = 1; cards <= 17; ++cards) {
      const MeshQuestion question{.cards = cards, .batch = 12, .max_stages = 6};
      const std::vector<MeshCandidate> all = mesh_candidates(question, axis_sizes(cards, 2));
      for (const MeshCandidate& candidate : all) {
        CHECK(candidate.mesh.ranks() <= cards);
        CHECK(12 % candidate.mesh[MeshAxis::Data] == 0);
        CHECK(candidate.mesh[MeshAxis::Stage] <= 6);
      }
      for (const MeshCandidate& candidate : before) CHECK(llvm::is_contained(all, candidate));
      before = all;
    }
  }

  TEST_CASE("what is asked for stays") {
    MeshQuestion question{.cards = 8, .zero = 2, .micro_batches = 4, .batch = 16, .max_stages = 8};
    question.schedule = PipelineSchedule::ZeroBubble;
    for (const MeshCandidate& candidate : mesh_candidates(question, {1, 2})) {
      if (candidate.mesh[MeshAxis::Data] > 1) CHECK(candidate.zero == 2);
      if (candidate.mesh[MeshAxis::Stage] == 1) continue;
      CHECK(candidate.micro_batches == 4);
      CHECK(candidate.schedule == PipelineSchedule::ZeroBubble);
    }
    question.mesh = llvm::cantFail(parse_mesh("data=4"));
    question.zero.reset();
    const std::vector<MeshCandidate> all = mesh_candidates(question, {1});
    CHECK(all.size() == 3);  // ZeRO-2 is ZeRO-1 without accumulation
    for (const MeshCandidate& candidate : all) CHECK(candidate.mesh == *question.mesh);
  }

  TEST_CASE("stages have several runs of layers where the model has as many") {
    const MeshQuestion question{.cards = 4, .batch = 16, .max_stages = 5};
    int64_t several = 0;
    for (const MeshCandidate& candidate : mesh_candidates(question, {1})) {
      const int64_t stages = candidate.mesh[MeshAxis::Stage];
      if (stages == 1 || runs_of_schedule(candidate.schedule, stages).per_stage == 1) continue;
      ++several;
      CHECK(stages == 2);
      if (candidate.schedule == PipelineSchedule::Interleaved) CHECK(candidate.micro_batches % stages == 0);
    }
    CHECK(several > 4);
  }

  // A micro-batch crosses more borders with two runs on each stage, 4 MB each time.
  TEST_CASE("estimates count how long transfers keep a link busy") {
    Setting setting{layers(2048, 2048), layers_request(), gpu(), ClusterDescription{}, {}};
    setting.cluster->cards = 4;
    const ModelProfile profile =
        llvm::cantFail(profile_model(setting.model(), setting.request, {4}, setting.device, setting.catalog));
    const auto us_of = [&](PipelineSchedule schedule, double gb_per_s) {
      setting.cluster->link = {10, gb_per_s};
      MeshCandidate candidate{.mesh = llvm::cantFail(parse_mesh("stage=4")), .micro_batches = 16};
      candidate.schedule = schedule;
      return estimate_mesh(profile, candidate, setting.request, llvm::cantFail(setting.device_for(candidate.mesh))).us;
    };
    CHECK(us_of(PipelineSchedule::V, 400) < us_of(PipelineSchedule::ZeroBubble, 400));
    CHECK(us_of(PipelineSchedule::V, 12) > 1.5 * us_of(PipelineSchedule::ZeroBubble, 12));
  }

  // With f32 sums of 16-bit gradients over ranks too: 2 x 8 x 64^2 operations for each product of a row.
  TEST_CASE("profiles count the same products for a row whatever the size of the batch") {
    Setting setting{layers(64, 64), layers_request(), gpu(), std::nullopt, {}};
    setting.request.precision = "bf16";
    const ModelProfile profile =
        llvm::cantFail(profile_model(setting.model(), setting.request, {1}, setting.device, setting.catalog));
    const std::vector<RankWork>& work = profile.with.at(1).work;
    REQUIRE(work.size() == 3);
    for (const RankWork& counted : work)
      CHECK(counted.matmul_us / static_cast<double>(counted.rows) ==
            doctest::Approx(work.back().matmul_us / static_cast<double>(work.back().rows)));
  }

  // Stages are given up once one of them has no plan that is fast enough.
  TEST_CASE("a pipeline has the same plan whatever is fast enough, or none") {
    Setting setting{layers(1024, 64), layers_request(), gpu(), std::nullopt, {}};
    setting.device.reserves.clear();
    setting.device.collective_reserve_bytes = setting.device.transfer_reserve_bytes = 0;
    setting.device.collective_graph_bytes = setting.device.graph_launch_bytes = 0;
    TrainingRequest request = setting.request;
    request.mesh = llvm::cantFail(parse_mesh("stage=4"));
    request.micro_batches = 8, request.schedule = PipelineSchedule::OneForwardOneBackward;
    const CompileResult plain = llvm::cantFail(setting.compile(request));
    int64_t bytes = 0;
    for (const Plan* stage : plain.plan.stages()) bytes = std::max(bytes, stage->promised_bytes());
    request.budget_bytes = bytes * 9 / 10;
    const CompileResult free = llvm::cantFail(setting.compile(request));
    REQUIRE(free.fits);
    const double step_us = free.plan.predicted_step_us;
    int too_slow = 0;
    for (double share : {0.1, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.001}) {
      CAPTURE(share);
      request.enough_us = share * step_us;
      const CompileResult result = llvm::cantFail(setting.compile(request));
      too_slow += result.is_too_slow;
      if (result.is_too_slow) continue;
      CHECK(result.fits);
      CHECK(result.plan.predicted_step_us == step_us);
      CHECK(result.plan.promised_bytes() == free.plan.promised_bytes());
    }
    CHECK(too_slow > 0);
    CHECK(too_slow < 8);
  }

  // One stage above the number is enough; where none is, nothing is different. Parts are taken to lie inside their
  // wholes, which takes less time and may take fewer bytes.
  TEST_CASE("stages that need more than is of use keep quick layouts, which take no longer") {
    for (unsigned seed = 0; seed < 12; ++seed) {
      CAPTURE(seed);
      Setting setting = random_setting(seed);
      TrainingRequest request = setting.request;
      request.mesh = llvm::cantFail(parse_mesh("stage=2"));
      request.is_one_of_many = true;
      Result<CompileResult> searched = setting.compile(request);
      if (!searched) {  // such as a model that no value alone divides
        llvm::consumeError(searched.takeError());
        continue;
      }
      REQUIRE(searched->fits);
      for (int64_t above : {int64_t{1}, int64_t{1} << 40}) {
        request.quick_above_bytes = above;
        const CompileResult quick = llvm::cantFail(setting.compile(request));
        CHECK(quick.fits);
        CHECK(quick.plan.predicted_step_us <= searched->plan.predicted_step_us);
        if (above > 1) CHECK(quick.plan.predicted_step_us == searched->plan.predicted_step_us);
        const auto stages = quick.plan.stages(), others = searched->plan.stages();
        REQUIRE(stages.size() == others.size());
        for (size_t i = 0; i < stages.size(); ++i) {
          if (above > 1) CHECK(stages[i]->promised_bytes() == others[i]->promised_bytes());
          CHECK(least_bytes(*stages[i]) <= others[i]->promised_bytes());
        }
      }
    }
  }

  TEST_CASE("no plan is below the bounds of its mesh") {
    int64_t plans = 0;
    for (unsigned seed = 0; seed < 12; ++seed) {
      CAPTURE(seed);
      plans += check_bounds(random_setting(seed), 4);
    }
    CHECK(plans > 100);
  }

  TEST_CASE("more budget or one more card never gives a slower plan") {
    for (unsigned seed = 0; seed < 4; ++seed) {
      CAPTURE(seed);
      Setting setting = random_setting(seed);
      const CompileResult plain = setting.search({.cards = 4});
      CHECK(plain.fits);
      double us = std::numeric_limits<double>::infinity();
      for (int64_t share : {30, 50, 70, 90, 110}) {
        CAPTURE(share);
        setting.request.budget_bytes = plain.plan.promised_bytes() * share / 100;
        const CompileResult result = setting.search({.cards = 4});
        if (!result.fits) continue;
        CHECK(is_within_budget(result.plan));
        CHECK(result.plan.predicted_step_us <= us);
        us = result.plan.predicted_step_us;
      }
      CHECK(us == plain.plan.predicted_step_us);
      setting.request.budget_bytes = 0;
      us = std::numeric_limits<double>::infinity();
      for (int64_t cards = 1; cards <= 6; ++cards) {
        CAPTURE(cards);
        const CompileResult result = setting.search({.cards = cards});
        CHECK(result.plan.predicted_step_us <= us);
        us = result.plan.predicted_step_us;
      }
    }
  }

  // Estimates prefer meshes of eight cards whose plans are slower than those of six and seven (rows 512 and 4096).
  TEST_CASE("meshes of fewer cards stay among those that are compiled") {
    int64_t plans = 0;
    for (const auto& [rows, width] :
         {std::pair(16, 1024), {48, 512}, {24, 2048}, {512, 768}, {2048, 512}, {4096, 256}}) {
      CAPTURE(rows);
      CAPTURE(width);
      Setting setting{layers(rows, width), layers_request(), gpu(), std::nullopt, {}};
      double us = std::numeric_limits<double>::infinity();
      for (int64_t cards = 1; cards <= 9; ++cards) {
        CAPTURE(cards);
        const CompileResult result = setting.search({.cards = cards});
        CHECK(result.plan.predicted_step_us <= us);
        us = result.plan.predicted_step_us;
        ++plans;
      }
    }
    CHECK(plans == 54);
  }

  // 8 layers of 2048 x 2048 f32: sums of gradients send 2 x 3/4 x 134 MB a rank, borders of stages 4 MB a micro-batch.
  TEST_CASE("slow links choose stages where fast ones choose rows") {
    Setting setting{layers(2048, 2048), layers_request(), gpu(), ClusterDescription{}, {}};
    setting.request.precision = "tf32";
    setting.cluster->cards = 4;
    setting.cluster->link = {10, 400};
    const CompileResult fast = setting.search({.cards = 4});
    CHECK(fast.plan.mesh[MeshAxis::Data] == 4);
    setting.cluster->link = {10, 12};
    const CompileResult slow = setting.search({.cards = 4});
    CHECK(slow.plan.mesh[MeshAxis::Stage] > 1);
    CHECK(slow.plan.predicted_step_us > fast.plan.predicted_step_us);
  }

  TEST_CASE("the plan says what was tried") {
    Setting setting{layers(2048, 512), layers_request(), gpu(), std::nullopt, {}};
    const CompileResult result = setting.search({.cards = 4});
    const MeshSearchSummary& search = result.plan.mesh_search;
    CHECK(search.cards == 4);
    CHECK(search.considered > 20);
    REQUIRE(search.compiled.size() >= 3);
    CHECK(search.compiled.front().mesh == result.plan.mesh);
    CHECK(search.compiled.front().step_us == result.plan.predicted_step_us);
    CHECK(search.considered >= search.over_memory + search.over_time + static_cast<int64_t>(search.compiled.size()));
    CHECK(search.bound_us <= result.plan.predicted_step_us);
    CHECK(result.plan.decisions.back().pass == "mesh");
  }

  TEST_CASE("a mesh that is given is compiled even where it shortens nothing") {
    const Setting setting{layers(2048, 64), layers_request(), gpu(), std::nullopt, {}};
    const Mesh given = llvm::cantFail(parse_mesh("data=2,tensor=5"));  // 64 columns do not divide by 5
    CHECK(setting.search({.cards = given.ranks(), .mesh = given}).plan.mesh == given);
  }

  TEST_CASE("a batch that does not divide leaves cards idle") {
    Setting setting{layers(7, 64), layers_request(), gpu(), std::nullopt, {}};
    const CompileResult result = setting.search({.cards = 4});
    CHECK(result.plan.mesh[MeshAxis::Data] == 1);
  }
}

}  // namespace
}  // namespace plimsoll
