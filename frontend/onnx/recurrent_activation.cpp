#include "frontend/onnx/recurrent_activation.h"

namespace plimsoll {
namespace {

// Says which of alpha and beta a function takes, and their defaults. A node lists the values in the order of the
// functions that take them.
struct Known {
  llvm::StringLiteral name, op;
  bool has_alpha = false, has_beta = false;
  double alpha = 0, beta = 0;
};
constexpr Known known_activations[] = {
    {"relu", "relu"},
    {"tanh", "tanh"},
    {"sigmoid", "sigmoid"},
    {"softsign", "softsign"},
    {"softplus", "softplus"},
    {"affine", "", true, true, 1, 0},
    {"scaledtanh", "", true, true, 1, 1},
    {"hardsigmoid", "hard_sigmoid", true, true, 0.2f, 0.5},
    {"leakyrelu", "leaky_relu", true, false, 0.01f},
    {"thresholdedrelu", "thresholded_relu", true, false, 1},
    {"elu", "elu", true, false, 1},
};

const Known* find_activation(llvm::StringRef name) {
  const auto* at = llvm::find_if(known_activations, [&](const Known& known) { return known.name == name; });
  return at == std::end(known_activations) ? nullptr : at;
}

}  // namespace

std::vector<RecurrentActivation> read_activations(NodeContext& n, llvm::ArrayRef<llvm::StringLiteral> defaults,
                                                  int64_t directions) {
  std::vector<std::string> names = n.attr_strings("activations");
  if (names.empty())
    for (int64_t d = 0; d < directions; ++d) names.insert(names.end(), defaults.begin(), defaults.end());
  if (names.size() != defaults.size() * static_cast<size_t>(directions))
    n.fail("names " + llvm::Twine(names.size()) + " activations, it needs " +
           llvm::Twine(defaults.size() * static_cast<size_t>(directions)));
  Floats alphas = n.attr_floats("activation_alpha"), betas = n.attr_floats("activation_beta");
  size_t next_alpha = 0, next_beta = 0;
  std::vector<RecurrentActivation> activations;
  for (const std::string& name : names) {
    std::string lower = llvm::StringRef(name).lower();
    const Known* known = find_activation(lower);
    if (!known) {
      n.fail("activation " + name + " is not supported");
      return activations;
    }
    RecurrentActivation activation{lower, known->alpha, known->beta};
    if (known->has_alpha && next_alpha < alphas.size()) activation.alpha = alphas[next_alpha++];
    if (known->has_beta && next_beta < betas.size()) activation.beta = betas[next_beta++];
    activations.push_back(std::move(activation));
  }
  return activations;
}

ValueId emit_activation(NodeContext& n, const RecurrentActivation& activation, ValueId x) {
  DType dtype = n.type(x).dtype;
  if (activation.name == "affine")
    return n.emit("add", {n.emit("mul", {x, n.scalar(activation.alpha, dtype)}), n.scalar(activation.beta, dtype)});
  if (activation.name == "scaledtanh") {
    ValueId inner = n.emit("tanh", {n.emit("mul", {x, n.scalar(activation.beta, dtype)})});
    return n.emit("mul", {n.scalar(activation.alpha, dtype), inner});
  }
  const Known* known = find_activation(activation.name);
  Attrs attrs;
  if (known->has_alpha) attrs.set("alpha", activation.alpha);
  if (known->has_beta) attrs.set("beta", activation.beta);
  return n.emit(known->op, {x}, attrs);
}

}  // namespace plimsoll
