#include "ir/ops/common/reference_math.h"

#include <algorithm>
#include <cmath>

// Local response normalisation (Krizhevsky et al. 2012): each element over a power of
//   s = bias + alpha / size * (sum of squares over the `size` channels around its own).

namespace plimsoll {
namespace {

Result<Types> infer_lrn(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  if (Status s = need_min_rank(call, "x", 2)) return s;
  if (Status s = need_type(call, 1, call["x"])) return s;
  int64_t size = call.get_int("size");
  if (size < 1) return model_error("size is " + llvm::Twine(size) + ", it must be at least 1");
  return Types{call["x"]};
}

// Channels as far as `size` around c reaches; an even size reaches one further up.
struct Neighbours {
  int64_t first, last;
  Neighbours(int64_t c, int64_t size, int64_t channels)
      : first(std::max<int64_t>(0, c - (size - 1) / 2)), last(std::min(channels - 1, c + size / 2)) {}
};

std::vector<double> bases(const OpCall& call, const std::vector<double>& x, const AxisView& view) {
  int64_t size = call.get_int("size");
  double rate = call.get_float("alpha") / static_cast<double>(size);
  std::vector<double> s(x.size(), call.get_float("bias"));
  for (int64_t o = 0; o < view.outer; ++o)
    for (int64_t c = 0; c < view.length; ++c) {
      Neighbours near(c, size, view.length);
      for (int64_t j = near.first; j <= near.last; ++j)
        for (int64_t i = 0; i < view.inner; ++i) {
          double neighbour = x[view.at(o, j, i)];
          s[view.at(o, c, i)] += rate * neighbour * neighbour;
        }
    }
  return s;
}

void lrn_reference(const ReferenceCall& call) {
  double beta = call.get_float("beta");
  std::vector<double> x = call.load("x"), s = bases(call, x, along_axis(call["x"].shape, 1));
  for (size_t e = 0; e < x.size(); ++e) x[e] *= std::pow(s[e], -beta);
  call.store(x, "y");
}

void lrn_gradient(GradContext& g) { g.add("x", g.b.emit("lrn_grad", {g["x"], g.out_grad()}, g.attrs())); }

// dx = dy * s^-beta - 2 * alpha * beta / size * x * (sum of dy * x * s^(-beta-1) over the channels x reaches)
void lrn_grad_reference(const ReferenceCall& call) {
  AxisView view = along_axis(call["x"].shape, 1);
  int64_t size = call.get_int("size");
  double beta = call.get_float("beta");
  double rate = 2 * beta * call.get_float("alpha") / static_cast<double>(size);
  std::vector<double> x = call.load("x"), dy = call.load("dy"), s = bases(call, x, view), dx(x.size());
  for (size_t e = 0; e < x.size(); ++e) dx[e] = dy[e] * std::pow(s[e], -beta);
  for (int64_t o = 0; o < view.outer; ++o)
    for (int64_t c = 0; c < view.length; ++c) {
      Neighbours near(c, size, view.length);
      for (int64_t i = 0; i < view.inner; ++i) {
        int64_t at = view.at(o, c, i);
        double pull = rate * dy[at] * x[at] * std::pow(s[at], -beta - 1);
        for (int64_t j = near.first; j <= near.last; ++j) dx[view.at(o, j, i)] -= pull * x[view.at(o, j, i)];
      }
    }
  call.store(dx, "dx");
}

Attrs response_attrs(int64_t size) { return {{"size", size}, {"alpha", 0.3}, {"beta", 0.75}, {"bias", 1.0}}; }

std::vector<Sample> lrn_samples() {
  using namespace samples;
  return {{{normal({2, 5, 3})}, response_attrs(3)}, {{normal({1, 4, 2, 2})}, response_attrs(4)}};
}

std::optional<ChunkCall> lrn_grad_chunk(const OpCall& call, Chunk) { return cut_operands(call, {"x", "dy"}); }

std::vector<Sample> lrn_grad_samples() {
  using namespace samples;
  return {{{normal({2, 5, 3}), normal({2, 5, 3})}, response_attrs(3)}};
}

}  // namespace

constinit const OpDef op_lrn{
    .name = "lrn",
    .summary = "x[N, C, ...] / ({bias} + {alpha} / {size} * sum of x^2 over {size} channels around)^{beta}",
    .attrs = {{"size", AttrKind::Int},
              {"alpha", AttrKind::Float},
              {"beta", AttrKind::Float},
              {"bias", AttrKind::Float}},
    .infer = infer_lrn,
    .gradient = Gradient::rule(lrn_gradient),
    .precision = Precision::Full,
    .chunk = chunk_of_first,
    .reference = lrn_reference,
    .samples = lrn_samples,
};

constinit const OpDef op_lrn_grad{
    .name = "lrn_grad",
    .summary = "gradient of lrn's x from x and dy; attributes as in lrn",
    .operands = {"x", "dy"},
    .results = {"dx"},
    .attrs = {{"size", AttrKind::Int},
              {"alpha", AttrKind::Float},
              {"beta", AttrKind::Float},
              {"bias", AttrKind::Float}},
    .infer = infer_lrn,
    .gradient = no_second_derivative,
    .precision = Precision::Full,
    .chunk = lrn_grad_chunk,
    .linear = {"sum(dy)"},
    .reference = lrn_grad_reference,
    .samples = lrn_grad_samples,
};

}  // namespace plimsoll
