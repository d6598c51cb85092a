// Training inside a program of one's own: compile an exported model into a plan, say what it will need, and run steps.
//
// Usage: embed MODEL.onnx TOKENS.bin STEPS [BUDGET_BYTES]

#include <plimsoll.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>

using namespace plimsoll;

namespace {

// The file holds one uint16 per token.
std::vector<int64_t> read_tokens(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<int64_t> tokens;
  for (uint16_t token; file.read(reinterpret_cast<char*>(&token), sizeof token);) tokens.push_back(token);
  return tokens;
}

// Random windows of the text, one per row of `length` tokens; each token's label is the token after it.
void next_batch(const std::vector<int64_t>& text, std::mt19937_64& random, size_t length, std::vector<int64_t>& tokens,
                std::vector<int64_t>& labels) {
  for (size_t at = 0; at < tokens.size(); at += length) {
    const auto start = text.begin() + static_cast<int64_t>(random() % (text.size() - length));
    std::copy_n(start, length, tokens.begin() + static_cast<int64_t>(at));
    std::copy_n(start + 1, length, labels.begin() + static_cast<int64_t>(at));
  }
}

Expected<void> train(const std::string& model, const std::vector<int64_t>& text, int steps, int64_t budget_bytes) {
  CompileOptions options;
  options.model = model;
  options.dims["batch"] = 4;
  options.device = "cpu";
  options.budget_bytes = budget_bytes;
  Expected<Compiled> compiled = compile(options);
  if (!compiled) return compiled.error();
  // The first alternative is the fastest change with which a refused job fits: half the batch, for example.
  if (!compiled->alternatives.empty() && compiled->alternatives.front().fits) {
    std::printf("the job as asked %s\n", compiled->refusal.c_str());
    const CompileOptions changed = compiled->alternatives.front().options;
    compiled = compile(changed);
    if (!compiled) return compiled.error();
  }
  if (!compiled->fits) return Error{Fault::Budget, compiled->refusal};
  std::printf("the plan promises to stay within %.1f MiB and predicts %.1f ms per step\n",
              static_cast<double>(compiled->plan.promised_bytes()) / (1 << 20),
              compiled->plan.predicted_step_us() / 1e3);

  Expected<Session> session = Session::create(compiled->plan, {.threads = 2});
  if (!session) return session.error();
  if (Expected<void> loaded = session->load_weights(model, /*seed=*/1); !loaded) return loaded;

  const std::vector<TensorSpec>& inputs = session->inputs();  // tokens and labels, i64[batch, length]
  std::vector<int64_t> tokens(static_cast<size_t>(inputs[0].bytes) / sizeof(int64_t)), labels(tokens.size());
  const Session::Bytes tensors[] = {std::as_bytes(std::span(tokens)), std::as_bytes(std::span(labels))};
  const auto length = static_cast<size_t>(inputs[0].shape[1]);
  std::mt19937_64 random(1);
  for (int step = 0; step < steps; ++step) {
    next_batch(text, random, length, tokens, labels);
    Expected<Metrics> metrics = session->step(tensors);
    if (!metrics) return metrics.error();
    std::printf("step %lld  loss %.4f  %.0f ms\n", static_cast<long long>(metrics->step), metrics->loss,
                metrics->step_ms);
  }
  return session->save_weights("trained.safetensors");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::fprintf(stderr, "usage: %s MODEL.onnx TOKENS.bin STEPS [BUDGET_BYTES]\n", argv[0]);
    return 2;
  }
  const int64_t budget_bytes = argc == 5 ? std::atoll(argv[4]) : 0;
  if (Expected<void> trained = train(argv[1], read_tokens(argv[2]), std::atoi(argv[3]), budget_bytes); !trained) {
    std::fprintf(stderr, "%s\n", trained.error().message.c_str());
    return 1;
  }
  return 0;
}
