#include "ir/support/strings.h"
#include "ir/support/units.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/analysis/buffer_assignment.h"
#include "passes/analysis/cost_model.h"
#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "passes/offload/offload_rewrite.h"
#include "passes/remat/remat_problem.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/session.h"
#include "tests/support/random_values.h"

#include <doctest/doctest.h>
#include <cstring>
#include <limits>
#include <random>
#include <set>

// Random training graphs with random budgets: the plan is within the budget, equals the plain plan bit for bit with
// dead bytes poisoned, is the same plan when compiled again, and never takes longer with more budget.

namespace plimsoll {
namespace {

// Layers have random kinds and widths, some with a branch that joins later, and dropout.
std::string random_model(std::mt19937& random) {
  auto pick = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  std::string states = "%rng: i64[2] counter fill=0", body;
  int width = 16 + 16 * pick(4), layers = 6 + pick(10), waiting_width = 0;
  std::string last = "%x", waiting, type = "f32[32," + std::to_string(width) + "]";
  std::string input = type;
  for (int i = 0; i < layers; ++i) {
    std::string name = "%h" + std::to_string(i), id = std::to_string(i);
    int kind = pick(6);
    if (kind == 0) {
      int next = 16 + 16 * pick(4);
      states += ", %w" + id + ": f32[" + std::to_string(width) + "," + std::to_string(next) + "] parameter trained";
      width = next;
      type = "f32[32," + std::to_string(width) + "]";
      body += name + " = linear(" + last + ", %w" + id + ") {transpose_w=0} : " + type + "\n";
    } else if (kind == 1) {
      body += name + " = gelu(" + last + ") {approximate=\"none\"} : " + type + "\n";
    } else if (kind == 2) {
      body += name + " = dropout(" + last + ", %rng) {id=" + id + ", ratio=0.25} : " + type + "\n";
    } else if (kind == 3 && !waiting.empty() && waiting_width == width) {
      body += name + " = add(" + last + ", " + waiting + ") : " + type + "\n";
      waiting.clear();
    } else if (kind == 4) {
      std::string folded = "f32[2,16," + std::to_string(width) + "]";
      body += "%v" + id + " = reshape(" + last + ") {shape=[2,16," + std::to_string(width) + "]} : " + folded + "\n";
      body += "%e" + id + " = tanh(%v" + id + ") : " + folded + "\n";
      body += name + " = reshape(%e" + id + ") {shape=[32," + std::to_string(width) + "]} : " + type + "\n";
    } else {
      body += name + " = sigmoid(" + last + ") : " + type + "\n";
    }
    if (pick(3) == 0) waiting = last = name, waiting_width = width;
    last = name;
  }
  states += ", %head: f32[" + std::to_string(width) + ",5] parameter trained";
  return "graph @random(%x: " + input + ", %labels: i64[32]) state(" + states + ") {\n" + body + "%y = linear(" + last +
         ", %head) {transpose_w=0} : f32[32,5]\n"
         "%loss, %lse, %weight = cross_entropy(%y, %labels) {reduction=\"mean\"} : f32[], f32[32], f32[]\nreturn "
         "loss=%loss\n}\n";
}

DeviceDescription small_device() {
  DeviceDescription device = cantFail(cantFail(DeviceCatalog::builtin()).find("cpu"));
  device.reserves.clear();
  device.alignment_bytes = 64;
  return device;
}

// Returns a device whose host has its own memory, with a link so fast that small tensors are worth copying.
DeviceDescription device_with_host() {
  DeviceDescription device = small_device();
  device.to_host_gb_per_s = device.from_host_gb_per_s = 12;
  device.to_host_both_ways_gb_per_s = device.from_host_both_ways_gb_per_s = 10;
  device.launch_us = 0.01;
  return device;
}

// Compiles without splits, with remats and copies only.
Result<CompileResult> result_for(const DeviceDescription& device, const std::string& text,
                                 const TrainingRequest& asked) {
  TrainingRequest request = asked;
  request.optimizer.learning_rate = 0.01;
  request.split = 1;
  Result<Graph> graph = parse_graph(text);
  REQUIRE_MESSAGE(bool(graph), llvm::toString(graph.takeError()));
  CpuCatalog catalog;
  return compile_training(std::move(*graph), request, device, catalog);
}

Result<Plan> compiled_for(const DeviceDescription& device, const std::string& text, const TrainingRequest& asked) {
  return fitting_plan(result_for(device, text, asked));
}

Result<Plan> compiled(const std::string& text, int64_t budget, bool recompute = true) {
  TrainingRequest request;
  request.budget_bytes = budget;
  request.recompute = recompute;
  return compiled_for(small_device(), text, request);
}

class OneBatch : public BatchSource {
 public:
  OneBatch(const RandomValues& values, std::vector<InputSpec> inputs) : values_(values), specs_(std::move(inputs)) {}
  Status next(llvm::ArrayRef<TensorView> inputs) override {
    for (size_t i = 0; i < inputs.size(); ++i)
      std::memcpy(inputs[i].data, values_.tensors.at(specs_[i].name).view().data,
                  static_cast<size_t>(inputs[i].type.bytes()));
    return Status::success();
  }
  Status seek(int64_t) override { return Status::success(); }
  llvm::StringRef item_name() const override { return "samples"; }

 private:
  const RandomValues& values_;
  std::vector<InputSpec> specs_;
};

struct Trace {
  std::vector<double> losses;
  std::map<std::string, Tensor> gradients;
  bool operator==(const Trace&) const = default;
};

Trace train(Plan plan, const std::string& text, bool late_copies = false) {
  RandomValues values;
  values.add_for(cantFail(parse_graph(text)));
  ExecutorOptions options;
  options.poison = true;
  options.late_copies = late_copies;
  std::unique_ptr<Session> session = cantFail(Session::create(std::move(plan), options));
  cantFail(session->initialise(
      [&](llvm::StringRef name, const TensorView& into) {
        std::memcpy(into.data, values.tensors.at(name.str()).view().data, static_cast<size_t>(into.type.bytes()));
        return Status::success();
      },
      7));
  OneBatch data(values, session->inputs());
  Trace trace;
  GradientSink sink = [&](llvm::StringRef name, const Tensor& gradient) {
    trace.gradients.emplace(name.str(), gradient);
    return Status::success();
  };
  trace.losses.push_back(cantFail(session->step(data, &sink)).loss);
  for (int i = 0; i < 2; ++i) trace.losses.push_back(cantFail(session->step(data)).loss);
  return trace;
}

bool gives_way(const Plan& plan) {
  return llvm::any_of(plan.decisions, [](const Decision& decision) {
    return decision.pass == "place" && decision.choice == "together with the intervals of copies";
  });
}

}  // namespace

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

  // The intervals of copies give way to the layout in some of these plans.
  TEST_CASE("fit: more budget never costs time where states and values wait on the host") {
    std::mt19937 random(31);
    int gave_way = 0;
    for (int round = 0; round < 4; ++round) {
      const std::string text = random_model(random);
      TrainingRequest request;
      request.effort = 0.02;
      const int64_t plain_bytes = cantFail(compiled_for(device_with_host(), text, request)).promised_bytes();
      double last_us = std::numeric_limits<double>::infinity();
      for (int64_t percent = 30; percent <= 100; percent += 3) {
        request.budget_bytes = plain_bytes * percent / 100;
        Result<Plan> plan = compiled_for(device_with_host(), text, request);
        CHECK((plan || last_us == std::numeric_limits<double>::infinity()));
        if (!plan) {
          consumeError(plan.takeError());
          continue;
        }
        CHECK(plan->predicted_step_us <= last_us * (1 + 1e-9));
        last_us = plan->predicted_step_us;
        gave_way += gives_way(*plan);
      }
    }
    CHECK(gave_way > 0);
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

  // %y draws with the counter, so it can be recomputed until the counter advances, which is before %b once that has
  // moved.
  TEST_CASE("fit: the random counter is advanced last, so that a draw can be recomputed") {
    Graph graph = cantFail(parse_graph(R"(
graph @draws(%x: f32[64]) state(%rng: i64[2] counter fill=0) {
  %y = dropout(%x, %rng) {id=1, ratio=0.5} : f32[64]
  %one = constant() {value=i64[2]<0,1>} : i64[2]
  %next = add(%rng, %one) : i64[2] phase=update
  %a = exp(%y) : f32[64]
  %b = mul(%a, %y) : f32[64]
  return %b
  update %rng = %next
})"));
    std::vector<NodeId> writers = make_updates_writable(graph);
    CpuCatalog catalog;
    CHECK(graph_remat_problem(graph, writers, small_device(), catalog).problem.ops[0].remat_until == 1);
    delay_free_updates(graph, writers);
    GraphRematProblem sequence = graph_remat_problem(graph, writers, small_device(), catalog);
    CHECK(sequence.problem.ops[0].remat_until == 3);
    CHECK_FALSE(sequence.problem.ops[3].repeatable);
    RematPlan plan;
    plan.remats = {{2, 0}};
    std::vector<NodeId> again = rematerialise(graph, plan, sequence.values);
    REQUIRE(again.size() == 1);
    CHECK(graph.value(graph.node(again[0]).results[0]).name == "y.recompute");
    CHECK(graph.node(again[0]).reason == "recomputed before %b instead of keeping 256 B");
    CHECK(graph.value(graph.find_value("y")).users.size() == 1);
  }

  // %b is reloaded first. The search identifies the copies of its intervals by position.
  TEST_CASE("fit: results of one instruction are copied to the host in the order the search had them") {
    Graph graph = cantFail(parse_graph(R"(
graph @two(%x: f32[65536]) {
  %a, %b = split(%x) {axis=0, sizes=[16384, 49152]} : f32[16384], f32[49152]
  %c = exp(%b) : f32[49152] phase=backward
  %d = exp(%a) : f32[16384] phase=backward
  return %c, %d
})"));
    CpuCatalog catalog;
    GraphRematProblem sequence =
        graph_remat_problem(graph, {}, device_with_host(), catalog, std::numeric_limits<int64_t>::max());
    auto value = [&](llvm::StringRef name) {
      return static_cast<int32_t>(llvm::find(sequence.values, graph.find_value(name)) - sequence.values.begin());
    };
    RematPlan plan = measure_remats(sequence.problem, {}, {{1, value("b")}, {2, value("a")}});
    RematProblem ops = apply_to_problem(sequence.problem, plan);
    rematerialise(graph, plan, sequence.values);
    std::vector<double> thought, made;
    for (const RematOp& op : ops.ops)
      if (op.engine == Engine::ToHost) thought.push_back(op.cost_us);
    for (NodeId id : graph.order())
      if (graph.node(id).op->engine == Engine::ToHost)
        made.push_back(cost_of(graph, graph.node(id), device_with_host()).predicted_us);
    REQUIRE(thought.size() == 2);
    CHECK(thought[0] < thought[1]);
    CHECK(made == thought);
  }

  // The values have 256 KiB each, and a matmul takes longer than exp.
  TEST_CASE("fit: the host is offered the values that take longest to make, as many as it can hold") {
    Graph graph = cantFail(parse_graph(R"(
graph @two(%x: f32[256, 256], %y: f32[256, 256]) {
  %a = exp(%x) : f32[256, 256]
  %b = matmul(%a, %y) : f32[256, 256]
  %c = mul(%a, %b) : f32[256, 256] phase=backward
  return %c
})"));
    CpuCatalog catalog;
    auto offered = [&](int64_t host_bytes) {
      std::vector<std::string> names;
      GraphRematProblem sequence = graph_remat_problem(graph, {}, device_with_host(), catalog, host_bytes);
      for (const OffloadOption& option : sequence.dearest.empty() ? sequence.largest : sequence.dearest)
        names.push_back(graph.value(sequence.values[static_cast<size_t>(option.value)]).name);
      return names;
    };
    CHECK(offered(512 << 10) == std::vector<std::string>{"a", "b"});
    CHECK(offered(511 << 10) == std::vector<std::string>{"b"});
  }

  // The weights have 256 KiB, as much as the moments and the gradient have each. AdamW's update of all of them would
  // hold 1 MiB, SGD's 768 KiB, and nothing else holds more than 260 KiB. Lion's moving means come whole.
  TEST_CASE("fit: a large update comes from the host piece by piece, and changes no bit") {
    const std::string text = R"(
graph @table(%i: i64[16], %t: f32[16,64]) state(%w: f32[1024,64] parameter trained) {
  %r = gather(%w, %i) {axis=0} : f32[16,64]
  return r=%r
})";
    TrainingRequest request;
    request.loss = "mse:r:t";
    for (OptimizerKind kind : {OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Lion})
      for (int64_t accumulate : {1, 3}) {
        CAPTURE(optimizer_name(kind).str());
        CAPTURE(accumulate);
        request.optimizer.kind = kind;
        request.optimizer.momentum = kind == OptimizerKind::Sgd ? 0.9 : 0;
        request.accumulate = accumulate;
        request.budget_bytes = 0;
        const Trace expected = train(cantFail(compiled_for(device_with_host(), text, request)), text);
        request.budget_bytes = 1;
        const Plan least = cantFail(result_for(device_with_host(), text, request)).plan;
        if (kind != OptimizerKind::Lion) CHECK(least.promised_bytes() < 600 << 10);
        request.budget_bytes = least.promised_bytes();
        const Plan plan = cantFail(compiled_for(device_with_host(), text, request));
        CHECK(plan.functions.back().updates.size() > 8);
        CHECK(train(plan, text) == expected);
        CHECK(train(plan, text, true) == expected);
      }
  }

  // Eight gradients of 64 KiB each. Clipping reads all of them before the first update does.
  TEST_CASE("fit: the norm of accumulated gradients does not need all of them at once") {
    std::string states, body, sum = "%r0";
    for (int i = 0; i < 8; ++i) {
      const std::string number = std::to_string(i);
      states += (i == 0 ? "%w" : ", %w") + number + ": f32[256,64] parameter trained";
      body += "  %r" + number + " = gather(%w" + number + ", %i) {axis=0} : f32[16,64]\n";
      if (i == 0) continue;
      body += "  %s" + number + " = add(" + sum + ", %r" + number + ") : f32[16,64]\n";
      sum = "%s" + number;
    }
    const std::string text =
        "graph @tables(%i: i64[16], %t: f32[16,64]) state(" + states + ") {\n" + body + "  return r=" + sum + "\n}";
    TrainingRequest request;
    request.loss = "mse:r:t";
    request.accumulate = 2;
    request.clip_grad_norm = 1;
    const Trace expected = train(cantFail(compiled_for(device_with_host(), text, request)), text);
    request.budget_bytes = 1;
    const Plan least = cantFail(result_for(device_with_host(), text, request)).plan;
    CHECK(least.promised_bytes() < 8 * (64 << 10));
    request.budget_bytes = least.promised_bytes();
    CHECK(train(cantFail(compiled_for(device_with_host(), text, request)), text) == expected);
  }

  // Only a view is between %v.reload and %w.reload. If both are issued together, the second stays before its own view.
  TEST_CASE("fit: a copy that is issued together with the one before it stays where it is") {
    Graph graph = cantFail(parse_graph(R"(
graph @views(%x: f32[4]) state(%v: f32[2, 2] parameter trained, %w: f32[2, 2] parameter trained) {
  %a = reshape(%v) {shape=[4]} : f32[4]
  %b = reshape(%w) {shape=[4]} : f32[4]
  %c = add(%a, %b) : f32[4]
  return %c
})"));
    std::vector<NodeId> writers;
    llvm::StringSet<> states;
    states.insert("v");
    states.insert("w");
    move_states_to_host(graph, writers, states);
    issue_copies(graph, {CopyInterval{0, 0, 2}, CopyInterval{1, 0, 2}});
    CHECK_FALSE(bool(verify(graph)));
  }

  TEST_CASE("a gather that moves up leaves a view to those who read it earlier") {
    Graph graph = cantFail(parse_graph(R"(
graph @views(%x: f32[2,2]) {
  %y = relu(%x) : f32[2,2]
  %flat = reshape(%y) {shape=[4]} : f32[4]
  %first = gather_pieces(%flat) {axis="tensor", ranks=2, shape=[8]} : f32[8]
  %z = relu(%first) : f32[8]
  %second = gather_pieces(%flat) {axis="tensor", ranks=2, shape=[8]} : f32[8]
  %sum = add(%z, %second) : f32[8]
  return %sum
})"));
    const std::vector<CopyInFlight> copies = issue_copies(graph, {CopyInterval{1, 1, 2}, CopyInterval{3, 2, 4}});
    CHECK_FALSE(bool(verify(graph)));
    REQUIRE(copies.size() == 1);
    CHECK(copies[0].done == 4);
  }

  // A sum may take over the bytes of what it reads, but not while another collective still reads them.
  TEST_CASE("what two collectives in flight read is held until both are through") {
    Graph graph = cantFail(parse_graph(R"(
graph @sums(%x: f32[4]) {
  %y = relu(%x) : f32[4]
  %all = gather_pieces(%y) {axis="tensor", ranks=2, shape=[8]} : f32[8]
  %sum = reduce_all(%y) {axis="tensor", ranks=2} : f32[4]
  %a = relu(%x) : f32[4]
  %b = add(%a, %sum) : f32[4]
  return a=%all, b=%b
})"));
    const auto node_of = [&](llvm::StringRef name) { return graph.value(graph.find_value(name)).producer; };
    const std::vector<CopyInFlight> copies{{node_of("all"), 4}, {node_of("sum"), 4}};
    const BufferAssignment assignment = assign_buffers(graph, {}, copies, CpuCatalog());
    const auto buffer_of = [&](llvm::StringRef name) { return assignment.buffer_of[index_of(graph.find_value(name))]; };
    CHECK(buffer_of("sum") != buffer_of("y"));
    CHECK(assignment.buffers[static_cast<size_t>(buffer_of("y"))].last == 3);
  }

  TEST_CASE("fit: refusals tell the peak, and the budget they name is enough") {
    std::mt19937 random(17);
    std::string text = random_model(random);
    Plan plain = cantFail(compiled(text, 0));
    auto message = [](Result<Plan> plan) {
      REQUIRE_FALSE(bool(plan));
      return take_diag(plan.takeError()).text();
    };
    CHECK(llvm::StringRef(message(compiled(text, plain.promised_bytes() - 1, false))).contains("at the peak ("));
    std::string refusal = message(compiled(text, plain.arenas[0].persistent_bytes + 64));
    llvm::StringRef named = llvm::StringRef(refusal).split("(").second.split(" bytes").first;
    int64_t enough = 0;
    REQUIRE_FALSE(named.getAsInteger(10, enough));
    CHECK(bool(compiled(text, enough)));
    CHECK(enough < plain.promised_bytes());
  }

  // One fused op makes %r, the difference from %t and the mean of its square; it writes both for backward.
  TEST_CASE("fit: a refusal names the values that an op leaves beside the one at the peak") {
    TrainingRequest request;
    request.loss = "mse:r:t";
    request.budget_bytes = 2 << 20;
    Result<Plan> refused = compiled_for(small_device(), R"(
graph @wide(%x: f32[64,64], %t: f32[64,4096]) state(%w: f32[64,4096] parameter trained) {
  %h = linear(%x, %w) {transpose_w=0} : f32[64,4096]
  %r = tanh(%h) : f32[64,4096]
  return y=%r
})",
                                        request);
    REQUIRE_FALSE(bool(refused));
    const std::string text = take_diag(refused.takeError()).text();
    CAPTURE(text);
    CHECK(llvm::StringRef(text).contains("t 1 MiB, h 1 MiB, sub 1 MiB"));
  }

  TEST_CASE("fit: a refusal tells of both memories, and host memory is a budget too") {
    std::mt19937 random(31);
    std::string text = random_model(random);
    TrainingRequest request;
    Plan plain = cantFail(compiled_for(device_with_host(), text, request));
    request.budget_bytes = plain.promised_bytes() * 3 / 5;
    Plan unlimited = cantFail(compiled_for(device_with_host(), text, request));
    REQUIRE(unlimited.arenas.size() == 2);

    request.host_budget_bytes = unlimited.loading_bytes() + unlimited.arenas[1].bytes / 8;
    const CompileResult refused = cantFail(result_for(device_with_host(), text, request));
    REQUIRE_FALSE(refused.fits);
    const Plan* smallest = &refused.plan;
    const std::string message = shortfall(refused);
    CAPTURE(message);
    CHECK(smallest->promised_bytes() > request.budget_bytes);
    const int64_t on_host = smallest->host_bytes();
    CHECK(on_host <= request.host_budget_bytes);
    CHECK(llvm::StringRef(message).contains(" and " + format_bytes(on_host) + " of host memory, the budget is " +
                                            format_bytes(request.budget_bytes) + " and " +
                                            format_bytes(request.host_budget_bytes) + " of host memory; at the peak"));
    CHECK_FALSE(llvm::StringRef(message.substr(message.find("at the peak")))
                    .contains(".host "));  // values on the host need no device bytes

    request.budget_bytes = round_up_readable(smallest->promised_bytes());
    Plan enough = cantFail(compiled_for(device_with_host(), text, request));
    CHECK(enough.promised_bytes() <= request.budget_bytes);
  }
}

}  // namespace plimsoll
