#include "ir/plan/check_sums.h"

#include "tests/support/dropped_sums.h"
#include "tests/support/pipeline_plans.h"
#include "tests/support/plans_of_ranks.h"
#include "tests/support/random_training.h"

#include <doctest/doctest.h>

#include <random>

// That a plan adds up what it means, whatever comes behind a sum.

namespace plimsoll {
namespace {

using namespace testing;

TEST_SUITE("unit") {
  TEST_CASE("plans that leave out any one sum are rejected") {
    int64_t refused = 0;
    for (const llvm::StringRef text : {llvm::StringRef(perceptron), llvm::StringRef(packed_blocks),
                                       llvm::StringRef(grouped_block), llvm::StringRef(tied_attention)})
      for (const auto& [mesh, zero] : {std::pair("data=2", 0),
                                       {"data=2", 1},
                                       {"data=2", 2},
                                       {"data=2", 3},
                                       {"tensor=2", 0},
                                       {"tensor=3", 0},
                                       {"tensor=4", 0},
                                       {"data=2,tensor=2", 0},
                                       {"data=2,tensor=2", 3}}) {
        CAPTURE(text.substr(0, 30).str());
        CAPTURE(std::string(mesh));
        CAPTURE(zero);
        const ChangedSums dropped = drop_each_sum(plan_for(mesh, zero, 1, text));
        for (const std::string& each : dropped.accepted) FAIL_CHECK(each);
        refused += dropped.refused;
      }
    CHECK(refused > 200);
  }

  TEST_CASE("plans that add up once more what all ranks hold are rejected") {
    int64_t refused = 0;
    for (const llvm::StringRef text : {llvm::StringRef(perceptron), llvm::StringRef(tied_attention)})
      for (const auto& [mesh, zero] :
           {std::pair("data=2", 0), {"data=2", 1}, {"data=2", 3}, {"tensor=2", 0}, {"data=2,tensor=2", 2}}) {
        CAPTURE(std::string(mesh));
        CAPTURE(zero);
        const ChangedSums repeated = repeat_each_sum(plan_for(mesh, zero, 1, text));
        for (const std::string& each : repeated.accepted) FAIL_CHECK(each);
        refused += repeated.refused;
      }
    CHECK(refused > 50);
  }

  TEST_CASE("plans of stages that leave out any one sum, or make it twice, are rejected") {
    const Plan plan = plan_for(parsed(perceptron), on_mesh("data=2,stage=2", 3));
    const ChangedSums dropped = drop_each_sum(plan), repeated = repeat_each_sum(plan);
    for (const std::string& each : dropped.accepted) FAIL_CHECK(each);
    for (const std::string& each : repeated.accepted) FAIL_CHECK(each);
    CHECK(dropped.refused > 4);
    CHECK(repeated.refused > 4);
  }

  // The gradient of the scores is a share on each rank. The scores themselves are whole, of the same type.
  TEST_CASE("plans that add up what ranks hold whole are rejected") {
    Plan plan = plan_for("tensor=2", 0, 1);
    auto& all = plan.functions[0].instructions;
    const auto is_sum = [](const Instruction& each) { return each.op == "reduce_all"; };
    const auto scores = llvm::find_if(all, is_sum), gradient = std::find_if(scores + 1, all.end(), is_sum);
    REQUIRE(gradient != all.end());
    gradient->operands[0] = scores->results[0];
    Status refused = check_sums(plan);  // by itself: the scores are no longer alive there, either
    REQUIRE(bool(refused));
    CHECK(llvm::StringRef(take_diag(std::move(refused)).text()).contains("adds up what all ranks hold whole"));
  }

  TEST_CASE("plans of random models that leave out any one sum are rejected") {
    int64_t refused = 0;
    for (unsigned seed = 0; seed < 12; ++seed)
      for (const char* mesh : {"tensor=2", "tensor=3", "data=2,tensor=2"}) {
        CAPTURE(seed);
        CAPTURE(std::string(mesh));
        std::mt19937 random(seed);
        const RandomJob job = random_job(random);
        TrainingRequest request = job.request;
        request.mesh = llvm::cantFail(parse_mesh(mesh));
        Result<CompileResult> result = compile_training(parsed(job.text), request, cpu_device(), CpuCatalog());
        if (!result) {  // such as a batch of three samples for two ranks
          llvm::consumeError(result.takeError());
          continue;
        }
        const ChangedSums dropped = drop_each_sum(result->plan);
        for (const std::string& each : dropped.accepted) FAIL_CHECK(each);
        refused += dropped.refused;
      }
    CHECK(refused > 100);
  }
}

}  // namespace
}  // namespace plimsoll
