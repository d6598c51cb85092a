// Training inside a program of one's own: compile an exported model into a plan, say what it will need, and run steps.
//
// Usage: embed MODEL.onnx TOKENS.bin STEPS

#include "frontend/api/compile_model.h"
#include "ir/support/units.h"

#include <cstdio>
#include <cstdlib>

using namespace plimsoll;

namespace {

Status train(const std::string& model, const std::string& tokens, int steps) {
  CompileRequest request;
  request.model_path = model;
  request.import.dims["batch"] = 4;
  request.training.optimizer = {.kind = OptimizerKind::AdamW, .learning_rate = 1e-3};
  Result<Plan> plan = compile_model(request);
  if (!plan) return plan.takeError();
  std::printf("the plan promises to stay within %s\n", format_bytes(plan->promised_bytes()).c_str());

  Result<std::unique_ptr<Session>> session = Session::create(std::move(*plan), {.threads = 2});
  if (!session) return session.takeError();
  Result<WeightLoader> weights = open_weights(model);
  if (!weights) return weights.takeError();
  if (Status s = (*session)->initialise(*weights, /*seed=*/1)) return s;

  Result<std::unique_ptr<BatchSource>> data = open_data(tokens, (*session)->inputs(), {.seed = 1});
  if (!data) return data.takeError();
  for (int step = 0; step < steps; ++step) {
    Result<StepMetrics> metrics = (*session)->step(**data);
    if (!metrics) return metrics.takeError();
    std::printf("step %lld  loss %.4f  %.0f ms\n", static_cast<long long>(metrics->step), metrics->loss,
                metrics->step_ms);
  }
  return Status::success();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s MODEL.onnx TOKENS.bin STEPS\n", argv[0]);
    return 2;
  }
  if (Status status = train(argv[1], argv[2], std::atoi(argv[3]))) {
    std::fprintf(stderr, "%s\n", take_diag(std::move(status)).text().c_str());
    return 1;
  }
  return 0;
}
