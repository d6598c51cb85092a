#include "tests/support/random_training.h"

namespace plimsoll::testing {
namespace {

// Writes a graph in the text form. `last_` is the operand of the next layer: [batch, rows, width] or [batch, channels,
// side, side].
class ModelWriter {
 public:
  explicit ModelWriter(std::mt19937& random) : random_(random) {}

  std::string rows_model() {
    batch_ = 1 + pick(6), rows_ = 4 + pick(12), width_ = 16 * (1 + pick(4));
    std::string input = "%x: f32[" + dims({batch_, rows_, width_}) + "]";
    if (pick(2) == 0) {
      input = "%x: i64[" + dims({batch_, rows_}) + "]";
      last_ = node("gather(" + state("table", {50, width_}) + ", %x) {axis=0}");
      if (pick(2) == 0) last_ = node("add(" + last_ + ", " + state("positions", {rows_, width_}) + ")");
    }
    for (int layers = 1 + pick(random_() % 8 == 0 ? 12 : 5); layers > 0; --layers) {
      switch (pick(8)) {
        case 0: linear_to(16 * (1 + pick(4))); break;
        case 1: perceptron_block(); break;
        case 2: attention_block(); break;
        case 3: gated_block(); break;
        case 4: last_ = norm(last_); break;
        case 5: dropout(); break;
        case 6: last_ = node("softmax(" + last_ + ") {axis=2}"); break;
        default: last_ = activation(last_);
      }
      skip({batch_, rows_, width_}, 2, width_);
    }
    last_ = reshaped({batch_ * rows_, width_});
    return finished(input, batch_ * rows_, width_);
  }

  std::string images_model() {
    batch_ = 2 + pick(5), width_ = 4 * (1 + pick(3)), side_ = 8 + 4 * pick(3);
    std::string input = "%x: f32[" + dims({batch_, width_, side_, side_}) + "]";
    for (int layers = 1 + pick(random_() % 8 == 0 ? 12 : 6); layers > 0; --layers) {
      switch (pick(7)) {
        case 0: last_ = conv(last_, 4 * (1 + pick(4)), pick(2) ? 3 : 1); break;
        case 1: residual_block(); break;
        case 2: last_ = batch_norm(last_); break;
        case 3: pool(); break;
        case 4: dropout(); break;
        default: last_ = activation(last_);
      }
      skip({batch_, width_, side_, side_}, 1, width_);
    }
    last_ = reshaped({batch_, width_ * side_ * side_});
    return finished(input, batch_, width_ * side_ * side_);
  }

 private:
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  static std::string dims(std::initializer_list<int> sizes) {
    std::string text;
    for (int size : sizes) text += (text.empty() ? "" : ",") + std::to_string(size);
    return text;
  }

  std::string state(const std::string& kind, std::initializer_list<int> sizes) {
    std::string name = "%" + kind + std::to_string(states_++);
    declared_ += ", " + name + ": f32[" + dims(sizes) + "] parameter trained";
    return name;
  }

  std::string node(const std::string& call) {
    std::string name = "%h" + std::to_string(nodes_++);
    body_ += name + " = " + call + "\n";
    return name;
  }

  std::string linear(const std::string& x, int from, int to) {
    std::string operands = x + ", " + state("w", {from, to}) + (pick(2) ? ", " + state("b", {to}) : "");
    return node("linear(" + operands + ") {transpose_w=0}");
  }

  void linear_to(int width) {
    last_ = linear(last_, width_, width);
    width_ = width;
  }

  std::string activation(const std::string& x) {
    const char* forms[] = {"gelu(%) {approximate=\"none\"}",
                           "gelu(%) {approximate=\"tanh\"}",
                           "relu(%)",
                           "tanh(%)",
                           "sigmoid(%)",
                           "silu(%)"};
    std::string form = forms[pick(6)];
    return node(form.replace(form.find('%'), 1, x));
  }

  std::string norm(const std::string& x) {
    std::string name = "%h" + std::to_string(nodes_++);
    if (pick(2))
      body_ +=
          name + ", " + name + ".inv = rms_norm(" + x + ", " + state("scale", {width_}) + ") {axis=2, eps=1e-05}\n";
    else
      body_ += name + ", " + name + ".mean, " + name + ".inv = layer_norm(" + x + ", " + state("scale", {width_}) +
               ", " + state("bias", {width_}) + ") {axis=2, eps=1e-05}\n";
    return name;
  }

  void dropout() { last_ = node("dropout(" + last_ + ", %rng) {id=" + std::to_string(nodes_) + ", ratio=0.25}"); }

  void perceptron_block() {
    std::string entry = last_;
    int inner = width_ * (1 + pick(4)), width = width_;
    last_ = activation(linear(norm(entry), width, inner));
    if (pick(2)) dropout();
    last_ = node("add(" + linear(last_, inner, width) + ", " + entry + ")");
  }

  void gated_block() {
    std::string entry = last_, x = norm(entry);
    std::string gate = node("silu(" + linear(x, width_, 2 * width_) + ")"), value = linear(x, width_, 2 * width_);
    last_ = node("add(" + linear(node("mul(" + gate + ", " + value + ")"), 2 * width_, width_) + ", " + entry + ")");
  }

  void attention_block() {
    std::string entry = last_, x = norm(entry);
    int heads = 1 << pick(3);
    std::string q = linear(x, width_, width_), k = linear(x, width_, width_), v = linear(x, width_, width_);
    std::string name = "%h" + std::to_string(nodes_++), settings = "heads=" + std::to_string(heads) + ", ";
    bool drops = pick(3) == 0;
    body_ += name + ", " + name + ".lse = attention(" + q + ", " + k + ", " + v + (drops ? ", _, %rng" : "") + ") {" +
             (pick(2) ? "causal=1, " : "") + (drops ? "dropout=0.25, " : "") + settings +
             (drops ? "id=" + std::to_string(nodes_) + ", " : "") + "kv_heads=" + std::to_string(heads) +
             ", scale=0.25}\n";
    last_ = node("add(" + linear(name, width_, width_) + ", " + entry + ")");
  }

  std::string conv(const std::string& x, int channels, int kernel) {
    int pad = kernel / 2;
    std::string weights = state("w", {channels, width_, kernel, kernel});
    width_ = channels;
    return node("conv(" + x + ", " + weights + ") {pads=[" + dims({pad, pad, pad, pad}) + "]}");
  }

  std::string batch_norm(const std::string& x) {
    std::string name = "%h" + std::to_string(nodes_++);
    body_ += name + ", " + name + ".mean, " + name + ".var = batch_norm(" + x + ", " + state("scale", {width_}) + ", " +
             state("bias", {width_}) + ") {eps=1e-05}\n";
    return name;
  }

  void residual_block() {
    std::string entry = last_;
    std::string inner = activation(batch_norm(conv(entry, width_, 3)));
    last_ = node("relu(" + node("add(" + batch_norm(conv(inner, width_, 1)) + ", " + entry + ")") + ")");
  }

  void pool() {
    if (side_ % 2 != 0 || side_ < 4) return;
    last_ = node(std::string(pick(2) ? "max_pool" : "average_pool") + "(" + last_ + ") {kernel=[2,2], strides=[2,2]}");
    side_ /= 2;
  }

  // Keeps a value for later, or adds the kept one if the shapes agree.
  void skip(std::vector<int> shape, int axis, int& joined_axis) {
    if (!waiting_.empty() && shape == waiting_shape_ && waiting_ != last_ && pick(3) == 0) {
      bool wider = pick(3) == 0;
      last_ = wider ? node("concat(" + last_ + ", " + waiting_ + ") {axis=" + std::to_string(axis) + "}")
                    : node("add(" + last_ + ", " + waiting_ + ")");
      if (wider) joined_axis *= 2;
      waiting_.clear();
    } else if (pick(3) == 0) {
      waiting_ = last_;
      waiting_shape_ = std::move(shape);
    }
  }

  std::string reshaped(std::initializer_list<int> shape) {
    return node("reshape(" + last_ + ") {shape=[" + dims(shape) + "]}");
  }

  std::string finished(const std::string& input, int samples, int width) {
    std::string logits = linear(last_, width, 5);
    return "graph @random(" + input + ", %labels: i64[" + std::to_string(samples) +
           "]) state(%rng: i64[2] counter fill=0" + declared_ + ") {\n" + body_ +
           "%loss, %lse, %weight = cross_entropy(" + logits + ", %labels) {reduction=\"mean\"}\nreturn loss=%loss\n}\n";
  }

  std::mt19937& random_;
  int batch_ = 0, rows_ = 0, width_ = 0, side_ = 0, nodes_ = 0, states_ = 0;
  std::string declared_, body_, last_ = "%x", waiting_;
  std::vector<int> waiting_shape_;
};

TrainingRequest random_request(std::mt19937& random) {
  auto pick = [&](unsigned below) { return random() % below; };
  TrainingRequest request;
  request.optimizer.kind = static_cast<OptimizerKind>(pick(3));
  request.optimizer.learning_rate = 1e-3;
  request.optimizer.momentum = pick(2) ? 0.9 : 0;
  request.optimizer.weight_decay = pick(2) ? 0.01 : 0;
  request.accumulate = pick(4) == 0 ? 2 : 1;
  request.clip_grad_norm = pick(4) == 0 ? 1 : 0;
  const char* precisions[] = {"exported", "exported", "exported", "bf16", "bf16", "fp16"};
  request.precision = precisions[pick(6)];
  return request;
}

}  // namespace

RandomJob random_job(std::mt19937& random) {
  RandomJob job;
  job.text = random() % 3 == 0 ? ModelWriter(random).images_model() : ModelWriter(random).rows_model();
  job.request = random_request(random);
  return job;
}

}  // namespace plimsoll::testing
