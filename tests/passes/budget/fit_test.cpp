#include "ir/support/strings.h"
#include "ir/support/units.h"
#include "tests/support/budget_jobs.h"
#include "tests/support/random_training.h"

#include <doctest/doctest.h>
#include <limits>
#include <set>

// Random training graphs with random budgets: the plan is within the budget, equals the plain plan bit for bit with
// dead bytes poisoned, is the same plan when compiled again, and never takes longer with more budget.

namespace plimsoll {
namespace {

using namespace testing;

bool gives_way(const Plan& plan) {
  return llvm::any_of(plan.decisions, [](const Decision& decision) {
    return decision.pass == "place" && decision.choice == "together with the intervals of copies";
  });
}

// The plans within budgets from 30 % of the plain bytes on, which must keep them, take no longer with more of them, and
// go on fitting.
std::vector<Plan> check_falling_steps(const DeviceDescription& device, const std::string& text, TrainingRequest request,
                                      int64_t plain_bytes, int64_t step_percent) {
  std::vector<Plan> plans;
  for (int64_t percent = 30; percent <= 100; percent += step_percent) {
    request.budget_bytes = plain_bytes * percent / 100;
    Result<Plan> plan = compiled_for(device, text, request);
    CHECK((plan || plans.empty()));
    if (!plan) {
      consumeError(plan.takeError());
      continue;
    }
    CHECK(plan->promised_bytes() <= request.budget_bytes);
    if (!plans.empty()) CHECK(plan->predicted_step_us <= plans.back().predicted_step_us * (1 + 1e-9));
    plans.push_back(std::move(*plan));
  }
  return plans;
}

TEST_SUITE("unit") {
  TEST_CASE("fit: random training graphs under budgets keep them, and their bits") {
    std::mt19937 random(11);
    int recomputed = 0, draws_again = 0;
    for (int round = 0; round < 12; ++round) {
      std::string text = random_model(random);
      Plan plain = cantFail(compiled(text, 0));
      Trace expected = train(plain, text);
      int64_t persistent = plain.arenas[0].persistent_bytes, transient = plain.arenas[0].bytes - persistent;
      for (double share : {0.95, 0.85, 0.7, 0.5}) {
        int64_t budget = persistent + static_cast<int64_t>(share * static_cast<double>(transient));
        Result<Plan> plan = compiled(text, budget);
        if (!plan) {
          CHECK(take_diag(plan.takeError()).fault() == Fault::Budget);
          continue;
        }
        CHECK(plan->promised_bytes() <= budget);
        CHECK(train(*plan, text) == expected);
        for (const Slot& slot : plan->slots) {
          if (slot.category == Category::Recompute) ++recomputed;
          if (slot.category == Category::Recompute && llvm::StringRef(slot.name).contains(".recompute"))
            draws_again += llvm::any_of(plan->functions[0].instructions, [&](const Instruction& i) {
              return i.op == "dropout" && plan->slots[static_cast<size_t>(i.results[0])].name == slot.name;
            });
        }
      }
    }
    CHECK(recomputed > 30);
    CHECK(draws_again > 0);
  }

  TEST_CASE("fit: more budget never costs time, and what fits goes on fitting") {
    std::mt19937 random(5);
    for (int round = 0; round < 3; ++round) {
      std::string text = random_model(random);
      Plan plain = cantFail(compiled(text, 0));
      int64_t persistent = plain.arenas[0].persistent_bytes, transient = plain.arenas[0].bytes - persistent;
      double last = 0;  // step time of the next smaller budget; 0 if it did not fit
      for (int step = 0; step <= 20; ++step) {
        int64_t budget = persistent + transient * (10 + step * 9 / 2) / 100 + (step == 20 ? transient / 100 : 0);
        Result<Plan> plan = compiled(text, budget);
        CHECK((plan || last == 0));
        if (!plan) {
          consumeError(plan.takeError());
          continue;
        }
        if (last > 0) CHECK(plan->predicted_step_us <= last * (1 + 1e-9));
        last = plan->predicted_step_us;
      }
      CHECK(last == doctest::Approx(plain.predicted_step_us));
    }
  }

  // Groups of levels are left out where bounds say that they take longer, also of levels between searched ones.
  TEST_CASE("fit: more budget never costs time in a long program with states and values on the host") {
    std::string states, body, last = "%x";
    for (int i = 0; i < 100; ++i) {
      const std::string id = std::to_string(i), width = i % 3 == 0 ? "64" : "16",
                        before = (i + 2) % 3 == 0 ? "64" : "16";
      states +=
          (i == 0 ? "%w" : ", %w") + id + ": f32[" + (i == 0 ? "16" : before) + "," + width + "] parameter trained";
      const std::string type = " : f32[32," + width + "]\n";
      body += "%p" + id + " = linear(" + last + ", %w" + id + ") {transpose_w=0}" + type;
      body += "%h" + id + " = sigmoid(%p" + id + ")" + type;
      last = "%h" + id;
    }
    const std::string text = "graph @deep(%x: f32[32,16], %labels: i64[32]) state(" + states + ") {\n" + body +
                             "%loss, %lse, %weight = cross_entropy(" + last +
                             ", %labels) {reduction=\"mean\"} : f32[], f32[32], f32[]\nreturn loss=%loss\n}\n";
    TrainingRequest request;
    request.effort = 0.01;
    const Plan plain = cantFail(compiled_for(device_with_host(), text, request));
    REQUIRE(plain.functions[0].instructions.size() >= 500);
    CHECK(check_falling_steps(device_with_host(), text, request, plain.promised_bytes(), 7).size() > 4);
  }

  // The intervals of copies give way to the layout in some of these plans.
  TEST_CASE("fit: more budget never costs time where states and values wait on the host") {
    std::mt19937 random(31);
    int gave_way = 0;
    for (int round = 0; round < 4; ++round) {
      const std::string text = random_model(random);
      TrainingRequest request;
      request.effort = 0.02;
      const int64_t plain_bytes = cantFail(compiled_for(device_with_host(), text, request)).promised_bytes();
      for (const Plan& plan : check_falling_steps(device_with_host(), text, request, plain_bytes, 3))
        gave_way += gives_way(plan);
    }
    CHECK(gave_way > 0);
  }

  // What an update computes depends on which gradients are on the device, so a level with more on the host may take
  // less.
  TEST_CASE("fit: more budget never costs time where accumulated gradients wait on the host") {
    std::mt19937 random(31);
    for (int round = 0; round < 2; ++round) {
      const std::string text = random_model(random);
      TrainingRequest request;
      request.effort = 0.01;
      request.accumulate = 2;
      CAPTURE(round);
      request.precision = round == 0 ? "bf16" : "fp32";
      const int64_t plain_bytes = cantFail(compiled_for(device_with_host(), text, request)).promised_bytes();
      check_falling_steps(device_with_host(), text, request, plain_bytes, 2);
    }
  }

  // The update of the plain plan copies zeros into accumulated gradients, which copies to the host do beside computing:
  // this graph's plain plan took 1 % longer than one with gradients on the host.
  TEST_CASE("fit: no smaller budget has a faster step than the plain need where gradients of sgd are accumulated") {
    PromiseCounts counts;
    CHECK(broken_promise(217, PromiseOptions{}, counts) == "");
    CHECK(counts.on_host > 3);
  }

  // The link is so slow that plans within these budgets take over 1.5 times the plain step, so a short search of the
  // one program runs beside the whole search.
  TEST_CASE("fit: more budget never costs time with short searches beside whole ones, whose plan is the same again") {
    std::mt19937 random(31);
    const std::string text = random_model(random);
    DeviceDescription device = device_with_host();
    device.to_host_gb_per_s /= 8;
    device.from_host_gb_per_s /= 8;
    TrainingRequest request;
    request.split = 1;
    const Plan plain = cantFail(compiled_for(device, text, request));
    double last_us = std::numeric_limits<double>::infinity();
    int slow = 0;
    for (int64_t percent : {40, 45, 50}) {
      request.budget_bytes = plain.promised_bytes() * percent / 100;
      Result<Plan> plan = compiled_for(device, text, request);
      CHECK((plan || last_us == std::numeric_limits<double>::infinity()));
      if (!plan) {
        consumeError(plan.takeError());
        continue;
      }
      const Plan again = cantFail(compiled_for(device, text, request));
      CHECK(again.predicted_step_us == plan->predicted_step_us);
      CHECK(again.promised_bytes() == plan->promised_bytes());
      CHECK(plan->predicted_step_us <= last_us * (1 + 1e-9));
      last_us = plan->predicted_step_us;
      slow += plan->predicted_step_us > 1.5 * plain.predicted_step_us;
    }
    CHECK(slow > 0);
  }

  // Budgets go down to a third of the bytes of the states. Most states and saved values are then on the host between
  // uses.
  TEST_CASE("fit: states and values wait on the host, and nothing touches them on their way") {
    std::mt19937 random(29);
    int states_there = 0, values_there = 0, gave_way = 0;
    for (int round = 0; round < 8; ++round) {
      std::string text = random_model(random);
      TrainingRequest request;
      request.accumulate = round % 2 == 0 ? 1 : 3;
      request.effort = 0.02;
      Plan plain = cantFail(compiled_for(device_with_host(), text, request));
      Trace expected = train(plain, text);
      for (double share : {0.9, 0.7, 0.5, 0.35}) {
        request.budget_bytes = static_cast<int64_t>(share * static_cast<double>(plain.promised_bytes()));
        Result<Plan> plan = compiled_for(device_with_host(), text, request);
        if (!plan) {
          CHECK(take_diag(plan.takeError()).fault() == Fault::Budget);
          continue;
        }
        CHECK(plan->promised_bytes() <= request.budget_bytes);
        CHECK(train(*plan, text) == expected);
        CHECK(train(*plan, text, true) == expected);
        gave_way += gives_way(*plan);
        for (const Instruction& i : plan->functions[0].instructions)
          values_there += i.op == "to_host" && i.phase == Phase::Forward;
        for (const PlanState& state : plan->states)
          states_there += plan->slots[static_cast<size_t>(state.slot)].space == MemorySpace::Host;
      }
    }
    CHECK(gave_way > 0);
    CHECK(states_there > 20);
    CHECK(values_there > 0);
  }

  // Layers of unlike widths, whose buffers are many small pages.
  TEST_CASE("fit: values lie in pages that windows show, and a step computes the same") {
    const int widths[] = {192, 320, 256, 448, 160, 384, 288, 224, 416, 8};
    std::string states, body, last = "%x";
    for (size_t i = 0; i < std::size(widths); ++i) {
      const std::string id = std::to_string(i), in = std::to_string(i > 0 ? widths[i - 1] : 160),
                        out = std::to_string(widths[i]);
      states += (i > 0 ? ", %w" : "%w") + id + ": f32[" + in + "," + out + "] parameter trained";
      body += "%h" + id + " = linear(" + last + ", %w" + id + ") {transpose_w=0} : f32[96," + out + "]\n";
      body += "%a" + id + " = tanh(%h" + id + ") : f32[96," + out + "]\n";
      last = "%a" + id;
    }
    const std::string text = "graph @layers(%x: f32[96,160], %labels: i64[96]) state(" + states + ") {\n" + body +
                             "%loss, %lse, %weight = cross_entropy(" + last +
                             ", %labels) {reduction=\"mean\"} : f32[], f32[96], f32[]\nreturn loss=%loss\n}\n";
    DeviceDescription device = device_with_host();
    device.page_bytes = 4096;
    int in_windows = 0;
    for (const int64_t accumulate : {1, 3}) {
      TrainingRequest request;
      request.accumulate = accumulate;
      request.effort = 0.02;
      const Plan plain = cantFail(compiled_for(device, text, request));
      const Trace expected = train(plain, text);
      for (int percent = 75; percent >= 25; percent -= 5) {
        request.budget_bytes = plain.promised_bytes() * percent / 100;
        Result<Plan> plan = compiled_for(device, text, request);
        if (!plan) {
          CHECK(take_diag(plan.takeError()).fault() == Fault::Budget);
          continue;
        }
        CHECK(plan->promised_bytes() <= request.budget_bytes);
        in_windows += !plan->arenas[0].windows.empty();
        CHECK(train(*plan, text) == expected);
        CHECK(train(*plan, text, true) == expected);
      }
    }
    CHECK(in_windows > 3);
  }

  // Twelve equal layers: most of what a step needs are states, and they go to the host a few at a time.
  TEST_CASE("fit: states go to the host by as many as the budget asks for") {
    std::string states, body, last = "%x";
    for (int i = 0; i < 12; ++i) {
      const std::string id = std::to_string(i);
      states += (i > 0 ? ", %w" : "%w") + id + ": f32[64,64] parameter trained";
      body += "%h" + id + " = linear(" + last + ", %w" + id + ") {transpose_w=0} : f32[8,64]\n";
      body += "%a" + id + " = tanh(%h" + id + ") : f32[8,64]\n";
      last = "%a" + id;
    }
    const std::string text = "graph @layers(%x: f32[8,64], %labels: i64[8]) state(" + states + ") {\n" + body +
                             "%loss, %lse, %weight = cross_entropy(" + last +
                             ", %labels) {reduction=\"mean\"} : f32[], f32[8], f32[]\nreturn loss=%loss\n}\n";
    TrainingRequest request;
    request.effort = 0.02;
    const Plan plain = cantFail(compiled_for(device_with_host(), text, request));
    std::set<int64_t> on_host;
    double last_us = 0;
    for (int percent = 30; percent <= 100; percent += 2) {
      request.budget_bytes = plain.promised_bytes() * percent / 100;
      const CompileResult result = cantFail(result_for(device_with_host(), text, request));
      CHECK((result.fits || last_us == 0));
      if (!result.fits) continue;
      if (last_us > 0) CHECK(result.plan.predicted_step_us <= last_us * (1 + 1e-9));
      last_us = result.plan.predicted_step_us;
      on_host.insert(llvm::count_if(result.plan.states, [&](const PlanState& state) {
        return result.plan.slots[static_cast<size_t>(state.slot)].space == MemorySpace::Host;
      }));
    }
    CHECK(on_host.size() > 12);
  }

  TEST_CASE("fit: the front goes down to the floor, and each of its plans is what its budget gives") {
    std::mt19937 random(23);
    for (int round = 0; round < 3; ++round) {
      std::string text = random_model(random);
      TrainingRequest request;
      request.frontier = true;
      const CompileResult result = cantFail(result_for(small_device(), text, request));
      const std::vector<Plan>& front = result.frontier;
      const Plan& plain = result.plan;
      REQUIRE(front.size() >= 3);
      CHECK(front.front().promised_bytes() == plain.promised_bytes());
      for (size_t i = 0; i < front.size(); ++i) {
        int64_t budget = front[i].arenas[0].budget_bytes;
        CHECK(front[i].promised_bytes() <= budget);
        Plan plan = cantFail(compiled(text, budget));
        CHECK(plan.promised_bytes() == front[i].promised_bytes());
        CHECK(plan.predicted_step_us == front[i].predicted_step_us);
        if (i == 0) continue;
        CHECK(front[i].promised_bytes() < front[i - 1].promised_bytes());
        CHECK(front[i].predicted_step_us >= front[i - 1].predicted_step_us * (1 - 1e-9));
        const int64_t told = llvm::count_if(front[i].decisions, [](const Decision& decision) {
          return decision.pass == "recompute" && decision.choice == "rematerialise" &&
                 starts_with(decision.reason, "recomputed before ");
        });
        CHECK(told == front[i].fit.rematerialised);
      }
      request = {};
      request.budget_bytes = 1;
      const CompileResult refused = cantFail(result_for(small_device(), text, request));
      CHECK_FALSE(refused.fits);
      const int64_t floor = refused.plan.promised_bytes();
      CHECK(floor > 0);
      CHECK(front.back().arenas[0].budget_bytes == round_up_readable(floor));
    }
  }

  // Whatever is asked for below it, also where states may wait on the host.
  TEST_CASE("fit: what is slower than enough is not planned") {
    std::mt19937 random(29);
    for (int round = 0; round < 4; ++round) {
      const std::string text = random_model(random);
      TrainingRequest request;
      request.budget_bytes = cantFail(compiled(text, 0)).promised_bytes() * 8 / 10;
      const CompileResult free = cantFail(result_for(small_device(), text, request));
      if (!free.fits) continue;
      request.enough_us = free.plan.predicted_step_us;
      CHECK(cantFail(result_for(small_device(), text, request)).is_too_slow);
      request.enough_us *= 1.001;
      const CompileResult faster = cantFail(result_for(small_device(), text, request));
      CHECK(faster.fits);
      CHECK(faster.plan.predicted_step_us == free.plan.predicted_step_us);
    }
  }

  TEST_CASE("fit: the floor is one number, and enough when it is asked for") {
    std::mt19937 random(31);
    for (int round = 0; round < 4; ++round) {
      const std::string text = random_model(random);
      TrainingRequest request;
      request.effort = 0.02;
      request.budget_bytes = 1;
      const int64_t floor = cantFail(result_for(device_with_host(), text, request)).plan.promised_bytes();
      for (const int64_t less : {floor / 2, floor - 1}) {
        request.budget_bytes = less;
        const CompileResult refused = cantFail(result_for(device_with_host(), text, request));
        CHECK_FALSE(refused.fits);
        CHECK(refused.plan.promised_bytes() == floor);
      }
      request.budget_bytes = floor;
      CHECK(cantFail(result_for(device_with_host(), text, request)).fits);
    }
  }
}

}  // namespace
}  // namespace plimsoll
