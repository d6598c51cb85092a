#include "ir/ops/attention/attention_reference.h"

#include "ir/ops/attention/attention_sizes.h"
#include "ir/ops/common/reference_math.h"
#include "ir/support/philox.h"

#include <algorithm>
#include <array>
#include <cmath>

// Row by row and in f64, as the formulas have it: rows and columns that masks close are looked at too.

namespace plimsoll {
namespace {

// One row of one head of one batch element, the unit that the references work on.
struct Row {
  int64_t b, h, r;
};

// The operands as the references read them; gradients lie as what they are the gradients of.
struct Operands {
  AttentionSizes n;
  double scale, dropout, softcap;
  bool causal;
  int64_t window;
  std::array<std::vector<double>, 3> tensors;
  const double *q, *k, *v;
  const TensorView* mask = nullptr;
  Shape mask_strides;
  std::vector<double> slopes, segments;
  bool has_segments_of_samples = false;
  DropoutRule rule{};
  RandomStream random{};

  explicit Operands(const ReferenceCall& call)
      : n(call),
        scale(call.get_float("scale")),
        dropout(call.get_float("dropout")),
        softcap(call.get_float("softcap")),
        causal(call.get_int("causal")),
        window(call.get_int("window")),
        tensors{call.load("q"), call.load("k"), call.load("v")},
        q(tensors[0].data()),
        k(tensors[n.k_operand].data()),
        v(tensors[n.v_operand].data()) {
    if (call.has("mask")) {
      mask = &call.operands[call.index("mask")];
      mask_strides = broadcast_strides(mask->type.shape, n.scores());
    }
    if (call.has("slopes")) slopes = call.load("slopes");
    if (call.has("segments")) {
      segments = call.load("segments");
      has_segments_of_samples = call["segments"].shape[0] > 1;
    }
    if (dropout == 0) return;
    rule = DropoutRule::of_probabilities(dropout);
    const TensorView& rng = call.in("rng");
    random = {rng.get_int(0), rng.get_int(1), call.get_int("id"), call.get_int("first_draw")};
  }

  int64_t kv_head(int64_t h) const { return h / (n.heads / n.kv_heads); }
  int64_t q_at(Row w) const { return (w.b * n.rows + w.r) * n.q_step + w.h * n.depth; }
  int64_t y_at(Row w) const { return ((w.b * n.rows + w.r) * n.heads + w.h) * n.value_depth; }
  int64_t lse_at(Row w) const { return (w.b * n.heads + w.h) * n.rows + w.r; }
  int64_t draws_at(Row w) const {
    return ((w.b * n.drawn_heads + w.h) * n.rows + w.r) * DropoutRule::draws_of_row(n.columns);
  }
  int64_t k_at(Row w, int64_t c) const { return n.k_start + (w.b * n.columns + c) * n.k_step + kv_head(w.h) * n.depth; }
  int64_t v_at(Row w, int64_t c) const {
    return n.v_start + (w.b * n.columns + c) * n.v_step + kv_head(w.h) * n.value_depth;
  }

  int64_t mask_at(Row w, int64_t c) const {
    const Shape& step = mask_strides;
    return w.b * step[0] + w.h * step[1] + w.r * step[2] + c * step[3];
  }

  bool is_closed(Row w, int64_t c) const {
    if ((causal && c > w.r) || (window > 0 && std::abs(c - w.r) >= window)) return true;
    const int64_t first = has_segments_of_samples ? w.b * n.columns : 0;
    return !segments.empty() && segments[first + w.r] != segments[first + c];
  }

  // The masks add this to a score; -inf forbids it.
  double bias(Row w, int64_t c) const {
    if (is_closed(w, c)) return -INFINITY;
    const double distance = slopes.empty() ? 0 : -slopes[w.h] * static_cast<double>(std::abs(c - w.r));
    if (!mask) return distance;
    double value = mask->get(mask_at(w, c));
    if (mask->type.dtype == DType::Bool) return value != 0 ? distance : -INFINITY;
    return distance + value;
  }

  // A score as the masks find it, and its derivative by scale * q . k.
  struct Capped {
    double score, slope;
  };
  Capped capped(Row w, int64_t c) const {
    double dot = 0;
    const double *query = &q[q_at(w)], *key = &k[k_at(w, c)];
    for (int64_t d = 0; d < n.depth; ++d) dot += query[d] * key[d];
    if (softcap == 0) return {scale * dot, 1};
    const double tangent = std::tanh(scale * dot / softcap);
    return {softcap * tangent, 1 - tangent * tangent};
  }

  double score(Row w, int64_t c) const {
    const double bias_here = bias(w, c);
    return bias_here == -INFINITY ? bias_here : capped(w, c).score + bias_here;
  }

  // Dropout multiplies a probability with this.
  double keep(Row w, int64_t c) const {
    if (dropout == 0) return 1;
    return random.keeps_probability(rule, draws_at(w) + c) ? rule.factor() : 0;
  }

  template <typename Visit>
  void for_each_row(Visit visit) const {
    for (int64_t b = 0; b < n.batch; ++b)
      for (int64_t h = 0; h < n.heads; ++h)
        for (int64_t r = 0; r < n.rows; ++r) visit(Row{b, h, r});
  }
};

// Rows whose lse is below this pass no gradient: the number of their columns is lost in it.
constexpr double closed_lse = -1e6;

// Of a row's scores, one of which may be its sink. Masks of large finite numbers leave nothing of the sum in the lse.
struct Softmax {
  double largest = -INFINITY, sum = 0;

  explicit Softmax(const std::vector<double>& row) {
    for (double s : row) largest = std::max(largest, s);
    if (largest == -INFINITY) return;
    for (double s : row) sum += std::exp(s - largest);
  }
  double lse() const { return largest + std::log(sum); }
  double probability(double score) const { return std::exp(score - largest) / sum; }
};

// What both gradients know of a pair of a row and a column that meet. With P the probabilities, Z their dropout factors
// and dP = Z * (dy v^T):
//   dv = (Z * P)^T dy,  dS = P * (dP - sum(P * dP)),  dq = dX k,  dk = dX^T q,
// where sum(P * dP) along a row equals dy . y, dS is the mask's gradient, and dX = scale * cap' * dS that of q . k.
struct Pair {
  Row row;
  int64_t column;
  const double* dy;                 // of the row
  double kept, d_score, d_product;  // Z * P, dS and dX
};

template <typename Visit>
void for_each_pair(const ReferenceCall& call, const Operands& in, Visit visit) {
  std::vector<double> y = call.load("y"), lse = call.load("lse"), dy = call.load("dy");
  in.for_each_row([&](Row row) {
    if (lse[in.lse_at(row)] < closed_lse) return;
    const double *dy_row = &dy[in.y_at(row)], *y_row = &y[in.y_at(row)];
    double dy_dot_y = 0;
    for (int64_t d = 0; d < in.n.value_depth; ++d) dy_dot_y += dy_row[d] * y_row[d];
    for (int64_t c = 0; c < in.n.columns; ++c) {
      double probability = std::exp(in.score(row, c) - lse[in.lse_at(row)]), keep = in.keep(row, c), dp = 0;
      if (probability == 0) continue;
      for (int64_t d = 0; d < in.n.value_depth; ++d) dp += keep * dy_row[d] * in.v[in.v_at(row, c) + d];
      const double d_score = probability * (dp - dy_dot_y);
      visit(Pair{row, c, dy_row, keep * probability, d_score, in.scale * in.capped(row, c).slope * d_score});
    }
  });
}

}  // namespace

Status attention_reference(const ReferenceCall& call) {
  Operands in(call);
  const std::vector<double> sinks = call.has("sinks") ? call.load("sinks") : std::vector<double>();
  std::vector<double> scores(static_cast<size_t>(in.n.columns) + (sinks.empty() ? 0 : 1));
  std::vector<double> y(static_cast<size_t>(call.out("y").elements()));
  in.for_each_row([&](Row row) {
    for (int64_t c = 0; c < in.n.columns; ++c) scores[c] = in.score(row, c);
    if (!sinks.empty()) scores.back() = sinks[row.h];
    const Softmax softmax(scores);
    call.out("lse").set(in.lse_at(row), softmax.lse());
    if (softmax.sum == 0) return;
    for (int64_t c = 0; c < in.n.columns; ++c) {
      double probability = softmax.probability(scores[c]) * in.keep(row, c);
      if (probability == 0) continue;
      for (int64_t d = 0; d < in.n.value_depth; ++d) y[in.y_at(row) + d] += probability * in.v[in.v_at(row, c) + d];
    }
  });
  call.store(y, "y");
  return Status::success();
}

namespace {

// From result `first` on.
void store_operand_grads(const ReferenceCall& call, size_t first) {
  Operands in(call);
  std::array<std::vector<double>, 3> gradients;
  for (size_t i = 0; i < 3; ++i) gradients[i].resize(in.tensors[i].size());
  double *dq = gradients[0].data(), *dk = gradients[in.n.k_operand].data(), *dv = gradients[in.n.v_operand].data();
  for_each_pair(call, in, [&](const Pair& pair) {
    const auto [row, c] = std::pair(pair.row, pair.column);
    for (int64_t d = 0; d < in.n.value_depth; ++d) dv[in.v_at(row, c) + d] += pair.kept * pair.dy[d];
    for (int64_t d = 0; d < in.n.depth; ++d) {
      dq[in.q_at(row) + d] += pair.d_product * in.k[in.k_at(row, c) + d];
      dk[in.k_at(row, c) + d] += pair.d_product * in.q[in.q_at(row) + d];
    }
  });
  for (size_t i = first; i < call.results.size(); ++i) call.store(gradients[i - first], i);
}

}  // namespace

Status attention_grad_reference(const ReferenceCall& call) {
  store_operand_grads(call, 0);
  return Status::success();
}

Status attention_mask_grad_reference(const ReferenceCall& call) {
  Operands in(call);
  std::vector<double> gradient(static_cast<size_t>(call.out("dmask").elements()));
  for_each_pair(call, in, [&](const Pair& pair) { gradient[in.mask_at(pair.row, pair.column)] += pair.d_score; });
  call.store(gradient, "dmask");
  return Status::success();
}

Status attention_grad_with_mask_reference(const ReferenceCall& call) {
  store_operand_grads(call, 1);
  return attention_mask_grad_reference(call);
}

// A sink has the probability exp(sink - lse) and no value: its gradient is -P (dy . y), summed over rows and samples.
Status attention_sinks_grad_reference(const ReferenceCall& call) {
  const std::vector<double> y = call.load("y"), lse = call.load("lse"), dy = call.load("dy"),
                            sinks = call.load("sinks");
  const int64_t heads = call["lse"].shape[1], rows = call["lse"].shape[2], depth = call["y"].shape[2] / heads;
  std::vector<double> gradient(sinks.size());
  for (int64_t b = 0; b < call["y"].shape[0]; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t first = ((b * rows + r) * heads + h) * depth;
        double dy_dot_y = 0;
        for (int64_t d = 0; d < depth; ++d) dy_dot_y += dy[first + d] * y[first + d];
        const double lse_here = lse[(b * heads + h) * rows + r];
        if (lse_here > -INFINITY) gradient[h] -= std::exp(sinks[h] - lse_here) * dy_dot_y;
      }
  call.store(gradient, "dsinks");
  return Status::success();
}

}  // namespace plimsoll
