#include "tests/support/budget_jobs.h"

#include "ir/text.h"
#include "passes/budget/budget_report.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/session.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

namespace plimsoll::testing {

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

DeviceDescription device_with_host() {
  DeviceDescription device = small_device();
  device.to_host_gb_per_s = device.from_host_gb_per_s = 12;
  device.to_host_both_ways_gb_per_s = device.from_host_both_ways_gb_per_s = 10;
  device.launch_us = 0.01;
  return device;
}

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

Result<Plan> compiled(const std::string& text, int64_t budget, bool recompute) {
  TrainingRequest request;
  request.budget_bytes = budget;
  request.recompute = recompute;
  return compiled_for(small_device(), text, request);
}

Trace train(Plan plan, const std::string& text, bool late_copies) {
  RandomValues values;
  values.add_for(cantFail(parse_graph(text)));
  ExecutorOptions options;
  options.poison = true;
  options.late_copies = late_copies;
  std::unique_ptr<Session> session = cantFail(Session::create(std::move(plan), options));
  cantFail(initialise(*session, values));
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

}  // namespace plimsoll::testing
