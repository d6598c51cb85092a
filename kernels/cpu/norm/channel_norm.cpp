#include "kernels/cpu/norm/channel_norm.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/common/vectorised.h"

#include <algorithm>
#include <cmath>

// Everything is made of runs: the `inner` consecutive elements of one channel of one sample.

namespace plimsoll::cpu {

namespace {

// y = (x - center) * factor + added
PLIMSOLL_VECTORISED void affine_run(float* y, const float* x, float center, float factor, float added, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - center) * factor + added;
}

// The same with a residual, which may be null, and nothing below `lowest`.
PLIMSOLL_VECTORISED void activated_run(float* y, const float* x, const float* residual, float lowest, float center,
                                       float factor, float added, int64_t n) {
  if (residual) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float sum = (x[i] - center) * factor + added + residual[i];
      y[i] = sum < lowest ? lowest : sum;
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float normal = (x[i] - center) * factor + added;
      y[i] = normal < lowest ? lowest : normal;
    }
  }
}

// y becomes its activation.
PLIMSOLL_VECTORISED void activate_run(NormActivation activation, float* y, int64_t n) {
  if (activation == NormActivation::Silu) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = y[i] * vector_sigmoid(y[i]);
  } else if (activation == NormActivation::Relu) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = y[i] < 0 ? 0.0f : y[i];
  }
}

// dz = dy times the activation's slope at z; dz may be z.
PLIMSOLL_VECTORISED void pass_back_run(NormActivation activation, float* dz, const float* z, const float* dy,
                                       int64_t n) {
  if (activation == NormActivation::Silu) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float x = z[i], s = vector_sigmoid(x);
      dz[i] = dy[i] * (s * (1.0f + x * (1.0f - s)));
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dz[i] = z[i] > 0 ? dy[i] : 0.0f;
  }
}

// A ReLU behind (x - center) * factor + added lets part of dy through; the initial values let everything through. A
// SiLU passes dy times its slope there.
struct Gate {
  float factor = 0, added = 1;
  bool silu = false;
};

// dx = dy * from_dy - (x - center) * from_x - constant
PLIMSOLL_VECTORISED void gradient_run(float* dx, const float* x, const float* dy, float center, float from_dy,
                                      float from_x, float constant, Gate gate, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float centered = x[i] - center, open = centered * gate.factor + gate.added;
    dx[i] = (open > 0 ? dy[i] : 0.0f) * from_dy - centered * from_x - constant;
  }
}

// dz = dy + more_dy where y > 0, else 0; more_dy may be null.
PLIMSOLL_VECTORISED void gated_run(float* dz, const float* y, const float* dy, const float* more_dy, int64_t n) {
  if (more_dy) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dz[i] = y[i] > 0 ? dy[i] + more_dy[i] : 0.0f;
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dz[i] = y[i] > 0 ? dy[i] : 0.0f;
  }
}

struct RunSums {
  double dy = 0, dy_x = 0;  // of dy, and of dy * (x - center)
};

PLIMSOLL_VECTORISED void add_run_sums(RunSums& sums, const float* x, const float* dy, float center, Gate gate,
                                      int64_t n) {
  constexpr int64_t block = 1024;
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t end = std::min(n, begin + block);
    float dy_part = 0, dy_x_part = 0;
#pragma omp simd reduction(+ : dy_part, dy_x_part)
    for (int64_t i = begin; i < end; ++i) {
      const float centered = x[i] - center, open = centered * gate.factor + gate.added;
      const float passed = open > 0 ? dy[i] : 0.0f;
      dy_part += passed;
      dy_x_part += passed * centered;
    }
    sums.dy += dy_part;
    sums.dy_x += dy_x_part;
  }
}

// body(offset of the run) for every sample's run of channel c.
template <typename Body>
void for_each_sample(const ChannelShape& shape, int64_t c, Body&& body) {
  for (int64_t n = 0; n < shape.batch; ++n) body((n * shape.channels + c) * shape.inner);
}

int64_t element_count(const ChannelShape& shape) { return shape.batch * shape.channels * shape.inner; }

}  // namespace

namespace {

struct Moments {
  float mean;
  double var;
};

Moments moments_of(const ChannelShape& shape, const float* x, int64_t c) {
  const auto count = static_cast<double>(shape.batch * shape.inner);
  double sum = 0, squares = 0;
  for_each_sample(shape, c, [&](int64_t at) { sum += sum_of(x + at, shape.inner); });
  const auto mean = static_cast<float>(sum / count);
  for_each_sample(shape, c, [&](int64_t at) { squares += sum_of_squares_around(x + at, mean, shape.inner); });
  return {mean, squares / count};
}

void normalise_run(const BatchNormCall& call, const Moments& moments, int64_t c, int64_t at) {
  const auto factor = static_cast<float>(call.scale[c] / std::sqrt(moments.var + call.eps));
  activated_run(call.y + at, call.x + at, call.residual ? call.residual + at : nullptr,
                call.activation == NormActivation::Relu ? 0.0f : -INFINITY, moments.mean, factor, call.bias[c],
                call.shape.inner);
  if (call.activation == NormActivation::Silu) activate_run(NormActivation::Silu, call.y + at, call.shape.inner);
}

// One channel's work backward.
struct ChannelGradient {
  const BatchNormGradCall& call;
  int64_t c;
  const float* passed;  // dresidual where the first part makes it, else dy
  double rstd, factor;
  Gate gate;

  ChannelGradient(const BatchNormGradCall& call, int64_t c)
      : call(call),
        c(c),
        passed(call.y ? call.dresidual : call.dy),
        rstd(1 / std::sqrt(static_cast<double>(call.var[c]) + call.eps)),
        factor(rstd * call.scale[c]),
        gate(call.bias ? Gate{static_cast<float>(factor), call.bias[c], call.activation == NormActivation::Silu}
                       : Gate()) {}

  // Of dz, and of dz * (x - mean); makes dresidual and the parameters' gradients too.
  RunSums add_up() const {
    RunSums sums;
    for_each_sample(call.shape, c, [&](int64_t at) {
      if (call.y)
        gated_run(call.dresidual + at, call.y + at, call.dy + at, call.more_dy ? call.more_dy + at : nullptr,
                  call.shape.inner);
      for_each_passed(at, [&](int64_t place, const float* dz, Gate open, int64_t n) {
        add_run_sums(sums, call.x + place, dz, call.mean[c], open, n);
      });
    });
    call.dscale[c] = static_cast<float>(sums.dy_x * rstd);
    call.dbias[c] = static_cast<float>(sums.dy);
    return sums;
  }

  void make_dx(const RunSums& sums, double count) const {
    const auto from_x = static_cast<float>(factor * rstd * rstd * sums.dy_x / count);
    const auto constant = static_cast<float>(factor * sums.dy / count);
    for_each_sample(call.shape, c, [&](int64_t at) {
      for_each_passed(at, [&](int64_t place, const float* dz, Gate open, int64_t n) {
        gradient_run(call.dx + place, call.x + place, dz, call.mean[c], static_cast<float>(factor), from_x, constant,
                     open, n);
      });
    });
  }

  // body(place, gradient, the gate it has yet to go through, elements) for the run at `at`: whole, or with a SiLU in
  // pieces whose gradient has gone through it.
  template <typename Body>
  void for_each_passed(int64_t at, Body&& body) const {
    if (!gate.silu) return body(at, passed + at, gate, call.shape.inner);
    constexpr int64_t piece = 256;
    float dz[piece];
    for (int64_t begin = 0; begin < call.shape.inner; begin += piece) {
      const int64_t n = std::min(piece, call.shape.inner - begin), place = at + begin;
      affine_run(dz, call.x + place, call.mean[c], gate.factor, gate.added, n);
      pass_back_run(NormActivation::Silu, dz, dz, passed + place, n);
      body(place, dz, Gate(), n);
    }
  }
};

}  // namespace

void batch_norm(const BatchNormCall& call) {
  const ChannelShape& shape = call.shape;
  parallel_tasks(shape.channels, 4 * element_count(shape), [&](int64_t c) {
    const Moments moments = moments_of(shape, call.x, c);
    call.mean[c] = moments.mean;
    call.var[c] = static_cast<float>(moments.var);
    for_each_sample(shape, c, [&](int64_t at) { normalise_run(call, moments, c, at); });
  });
}

void batch_norm_grad(const BatchNormGradCall& call) {
  const ChannelShape& shape = call.shape;
  parallel_tasks(shape.channels, 4 * element_count(shape), [&](int64_t c) {
    const ChannelGradient channel(call, c);
    channel.make_dx(channel.add_up(), static_cast<double>(shape.batch * shape.inner));
  });
}

void batch_moments(const ChannelShape& shape, float* mean, float* var, const float* x) {
  parallel_tasks(shape.channels, 2 * element_count(shape), [&](int64_t c) {
    const Moments moments = moments_of(shape, x, c);
    mean[c] = moments.mean;
    var[c] = static_cast<float>(moments.var);
  });
}

void batch_norm_given(const BatchNormCall& call, const float* mean, const float* var) {
  const ChannelShape& shape = call.shape;
  parallel_rows(shape.batch * shape.channels, shape.inner, [&](int64_t begin, int64_t end) {
    for (int64_t run = begin; run < end; ++run) {
      const int64_t c = run % shape.channels;
      normalise_run(call, {mean[c], var[c]}, c, run * shape.inner);
    }
  });
}

void batch_norm_sums(const BatchNormGradCall& call, float* sums) {
  const ChannelShape& shape = call.shape;
  parallel_tasks(shape.channels, 2 * element_count(shape), [&](int64_t c) {
    const ChannelGradient channel(call, c);
    const RunSums made = channel.add_up();
    sums[c] = static_cast<float>(made.dy);
    sums[shape.channels + c] = static_cast<float>(made.dy_x * channel.rstd);
  });
}

void batch_norm_dx(const BatchNormGradCall& call, const float* sums, double count) {
  const ChannelShape& shape = call.shape;
  parallel_tasks(shape.channels, 2 * element_count(shape), [&](int64_t c) {
    const ChannelGradient channel(call, c);
    channel.make_dx({sums[c], sums[shape.channels + c] / channel.rstd}, count);
  });
}

void running_update(double momentum, double share, float* y, const float* running, const float* batch,
                    int64_t channels) {
  parallel_ranges(channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) y[c] = static_cast<float>(running[c] * momentum + batch[c] * share);
  });
}

void group_norm(const ChannelShape& shape, int64_t groups, NormActivation activation, float eps, float* y, float* mean,
                float* rstd, const float* x, const float* scale, const float* bias) {
  const int64_t members = shape.channels / groups, width = members * shape.inner;
  parallel_tasks(shape.batch * groups, 4 * element_count(shape), [&](int64_t group) {
    const float* row = x + group * width;
    const auto center = static_cast<float>(sum_of(row, width) / static_cast<double>(width));
    const double variance = sum_of_squares_around(row, center, width) / static_cast<double>(width);
    mean[group] = center;
    rstd[group] = static_cast<float>(1 / std::sqrt(variance + eps));
    for (int64_t m = 0; m < members; ++m) {
      const int64_t c = group % groups * members + m, at = group * width + m * shape.inner;
      affine_run(y + at, x + at, center, scale ? rstd[group] * scale[c] : rstd[group], bias ? bias[c] : 0.0f,
                 shape.inner);
      activate_run(activation, y + at, shape.inner);
    }
  });
}

// The gradient in front of the activation.
static void pass_back(const ChannelShape& shape, int64_t groups, NormActivation activation, float* dz, const float* x,
                      const float* dy, const float* mean, const float* rstd, const float* scale, const float* bias) {
  const int64_t members = shape.channels / groups;
  parallel_tasks(shape.batch * shape.channels, 8 * element_count(shape), [&](int64_t plane) {
    const int64_t c = plane % shape.channels, group = plane / members, at = plane * shape.inner;
    affine_run(dz + at, x + at, mean[group], scale ? rstd[group] * scale[c] : rstd[group], bias ? bias[c] : 0.0f,
               shape.inner);
    pass_back_run(activation, dz + at, dz + at, dy + at, shape.inner);
  });
}

static void group_parameter_grads(const ChannelShape& shape, int64_t groups, float* dscale, float* dbias,
                                  const float* x, const float* dy, const float* mean, const float* rstd) {
  const int64_t members = shape.channels / groups;
  parallel_tasks(shape.channels, 2 * element_count(shape), [&](int64_t c) {
    double scale_sum = 0, bias_sum = 0;
    for (int64_t n = 0; n < shape.batch; ++n) {
      const int64_t group = n * groups + c / members, at = (n * shape.channels + c) * shape.inner;
      RunSums sums;
      add_run_sums(sums, x + at, dy + at, mean[group], Gate(), shape.inner);
      scale_sum += sums.dy_x * rstd[group];
      bias_sum += sums.dy;
    }
    if (dscale) dscale[c] = static_cast<float>(scale_sum);
    if (dbias) dbias[c] = static_cast<float>(bias_sum);
  });
}

void group_norm_grad(const ChannelShape& shape, int64_t groups, NormActivation activation, float* dx, float* dscale,
                     float* dbias, const float* x, const float* dy, const float* mean, const float* rstd,
                     const float* scale, const float* bias) {
  // It waits where dx comes.
  if (activation != NormActivation::None) {
    pass_back(shape, groups, activation, dx, x, dy, mean, rstd, scale, bias);
    dy = dx;
  }
  if (dscale || dbias) group_parameter_grads(shape, groups, dscale, dbias, x, dy, mean, rstd);
  const int64_t members = shape.channels / groups, width = members * shape.inner;
  parallel_tasks(shape.batch * groups, 4 * element_count(shape), [&](int64_t group) {
    auto scale_of = [&](int64_t m) { return scale ? scale[group % groups * members + m] : 1.0f; };
    double g_sum = 0, g_x_sum = 0;
    for (int64_t m = 0; m < members; ++m) {
      const int64_t at = group * width + m * shape.inner;
      RunSums sums;
      add_run_sums(sums, x + at, dy + at, mean[group], Gate(), shape.inner);
      g_sum += scale_of(m) * sums.dy;
      g_x_sum += scale_of(m) * sums.dy_x;
    }
    const double r = rstd[group], count = static_cast<double>(width);
    const auto from_x = static_cast<float>(r * r * r * g_x_sum / count);
    const auto constant = static_cast<float>(r * g_sum / count);
    for (int64_t m = 0; m < members; ++m) {
      const int64_t at = group * width + m * shape.inner;
      gradient_run(dx + at, x + at, dy + at, mean[group], static_cast<float>(r * scale_of(m)), from_x, constant, Gate(),
                   shape.inner);
    }
  });
}

}  // namespace plimsoll::cpu
