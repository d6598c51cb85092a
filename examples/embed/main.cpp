// Training inside a program of one's own: compile an exported model into a plan, say what it will need, and run steps.
//
// Usage: embed MODEL.onnx TOKENS.bin STEPS

#include <plimsoll.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>

using namespace plimsoll;

namespace {

constexpr int64_t batch = 4;

// The file holds one uint16 per token.
std::vector<int64_t> read_tokens(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<int64_t> tokens;
  for (uint16_t token; file.read(reinterpret_cast<char*>(&token), sizeof token);) tokens.push_back(token);
  return tokens;
}

// Random windows of the text, one per row; each token's label is the token after it.
void next_batch(const std::vector<int64_t>& text, std::mt19937_64& random, std::vector<int64_t>& tokens,
                std::vector<int64_t>& labels) {
  const size_t length = tokens.size() / batch;
  for (size_t row = 0; row < batch; ++row) {
    const auto start = text.begin() + static_cast<int64_t>(random() % (text.size() - length));
    std::copy_n(start, length, tokens.begin() + static_cast<int64_t>(row * length));
    std::copy_n(start + 1, length, labels.begin() + static_cast<int64_t>(row * length));
  }
}

Expected<void> train(const std::string& model, const std::vector<int64_t>& text, int steps) {
  CompileOptions options;
  options.model = model;
  options.dims["batch"] = batch;
  options.device = "cpu";
  Expected<Compiled> compiled = compile(options);
  if (!compiled) return compiled.error();
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
  std::mt19937_64 random(1);
  for (int step = 0; step < steps; ++step) {
    next_batch(text, random, tokens, labels);
    Expected<Metrics> metrics = session->step(tensors);
    if (!metrics) return metrics.error();
    std::printf("step %lld  loss %.4f  %.0f ms\n", static_cast<long long>(metrics->step), metrics->loss,
                metrics->step_ms);
  }
  return session->save_weights("trained.safetensors");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s MODEL.onnx TOKENS.bin STEPS\n", argv[0]);
    return 2;
  }
  if (Expected<void> trained = train(argv[1], read_tokens(argv[2]), std::atoi(argv[3])); !trained) {
    std::fprintf(stderr, "%s\n", trained.error().message.c_str());
    return 1;
  }
  return 0;
}
