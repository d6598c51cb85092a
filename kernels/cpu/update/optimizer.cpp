#include "kernels/cpu/update/optimizer.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/vectorised.h"
#include "kernels/dynamic_map.h"
#include "kernels/stochastic_rounding.h"

#include <bit>
#include <cmath>

// PyTorch's update rules. What depends on the step alone is computed once in double.

namespace plimsoll::cpu {

namespace {

struct AdamFactors {
  float one_minus_beta1, beta2, one_minus_beta2, eps, inverse_root_correction2, step_size, keep, l2, scale;
};

PLIMSOLL_VECTORISED void adam_range(const AdamFactors& f, float* new_param, float* new_m, float* new_v,
                                    const float* param, const float* grad, const float* m, const float* v, int64_t n) {
  const AdamFactors k = f;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = param[i];
    const float g = grad[i] * k.scale + k.l2 * p;
    const float mean = m[i] + (g - m[i]) * k.one_minus_beta1;
    const float square = v[i] * k.beta2 + g * g * k.one_minus_beta2;
    const float denominator = std::sqrt(square) * k.inverse_root_correction2 + k.eps;
    new_param[i] = p * k.keep - k.step_size * mean / denominator;
    new_m[i] = mean;
    new_v[i] = square;
  }
}

AdamFactors factors_of(const AdamOptions& options, int64_t step, float lr, float scale) {
  const double correction1 = 1 - std::pow(options.beta1, step), correction2 = 1 - std::pow(options.beta2, step);
  return {
      .one_minus_beta1 = static_cast<float>(1 - options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .one_minus_beta2 = static_cast<float>(1 - options.beta2),
      .eps = static_cast<float>(options.eps),
      .inverse_root_correction2 = static_cast<float>(1 / std::sqrt(correction2)),
      .step_size = static_cast<float>(lr / correction1),
      .keep = options.decoupled ? static_cast<float>(1 - lr * options.weight_decay) : 1.0f,
      .l2 = options.decoupled ? 0.0f : static_cast<float>(options.weight_decay),
      .scale = scale,
  };
}

template <bool is_signed>
PLIMSOLL_INLINE void store_codes(uint8_t* codes, const float* values, float scale, const float* thresholds, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    codes[i] = static_cast<uint8_t>(dynamic_code<is_signed>(values[i] / scale, thresholds));
}

// One block, whose first element is `at`. Every sum of products behind the moments is a fused one, as in the reference:
// no compiler can round them differently, and the codes are the reference's.
PLIMSOLL_VECTORISED void adam_8bit_block(const AdamFactors& f, float* new_param, const float* param, const float* grad,
                                         const EightBitMoments& moments, int64_t at, int64_t n) {
  const AdamFactors k = f;
  const EightBitMoment m = moments.m, v = moments.v;
  const float *scales = moments.scales + at / adam_block * 2, m_scale = scales[0], v_scale = scales[1];
  float mean[adam_block], square[adam_block], largest_mean = 0, largest_square = 0;
#pragma omp simd reduction(max : largest_mean, largest_square)
  for (int64_t i = 0; i < n; ++i) {
    const float p = param[at + i], number = m.map[m.codes[at + i]], before = v.map[v.codes[at + i]] * v_scale;
    const float g = std::fma(k.l2, p, grad[at + i] * k.scale);
    mean[i] = std::fma(k.one_minus_beta1, std::fma(-number, m_scale, g), number * m_scale);
    square[i] = std::fma(k.one_minus_beta2, std::fma(g, g, -before), before);
    const float denominator = std::sqrt(square[i]) * k.inverse_root_correction2 + k.eps;
    new_param[at + i] = p * k.keep - k.step_size * mean[i] / denominator;
    largest_mean = std::max(largest_mean, std::fabs(mean[i]));
    largest_square = std::max(largest_square, square[i]);
  }
  float* new_scales = moments.new_scales + at / adam_block * 2;
  new_scales[0] = std::max(largest_mean, moments.min_scale),
  new_scales[1] = std::max(largest_square, moments.min_scale);
  store_codes<true>(m.new_codes + at, mean, new_scales[0], m.thresholds, n);
  store_codes<false>(v.new_codes + at, square, new_scales[1], v.thresholds, n);
}

void round_parameters(const AdamOptions& options, float* params, int64_t begin, int64_t end) {
  constexpr int64_t at_once = 256;
  uint32_t words[at_once];
  for (int64_t at = begin; options.rounds && at < end; at += at_once) {
    const int64_t count = std::min(at_once, end - at);
    random_words(options.stream, at, count, words);
    for (int64_t i = 0; i < count; ++i)
      params[at + i] = std::bit_cast<float>(stochastically_rounded(std::bit_cast<uint32_t>(params[at + i]), words[i]));
  }
}

struct SgdFactors {
  float lr, scale, momentum, gain, weight_decay;
};

PLIMSOLL_VECTORISED void sgd_plain_range(const SgdFactors& f, float* new_param, const float* param, const float* grad,
                                         int64_t n) {
  const SgdFactors k = f;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = param[i];
    new_param[i] = p - k.lr * (grad[i] * k.scale + k.weight_decay * p);
  }
}

PLIMSOLL_VECTORISED void sgd_momentum_range(const SgdFactors& f, bool nesterov, float* new_param, float* new_momentum,
                                            const float* param, const float* grad, const float* momentum, int64_t n) {
  const SgdFactors k = f;
  const float from_gradient = nesterov ? 1.0f : 0.0f, from_buffer = nesterov ? k.momentum : 1.0f;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = param[i];
    const float g = grad[i] * k.scale + k.weight_decay * p;
    const float buffer = momentum[i] * k.momentum + g * k.gain;
    new_momentum[i] = buffer;
    new_param[i] = p - k.lr * (g * from_gradient + buffer * from_buffer);
  }
}

PLIMSOLL_VECTORISED float sum_of_squares(const float* x, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

int64_t blocks_of(int64_t n) { return (n + norm_block - 1) / norm_block; }

// update(begin, end) over pieces of [0, n), whole blocks where their norms are wanted, which follow while the gradient
// is still near.
template <typename Update>
void update_in_pieces(int64_t n, int64_t work, const float* grad, float* norms, Update update) {
  if (!norms) return parallel_ranges(n, work, update);
  parallel_rows(blocks_of(n), (work + 1) * norm_block, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * norm_block, end = std::min(n, begin + norm_block);
      norms[block] = std::sqrt(sum_of_squares(grad + begin, end - begin));
      update(begin, end);
    }
  });
}

}  // namespace

void gradient_norms(float* norms, const float* grad, int64_t n) {
  update_in_pieces(n, 1, grad, norms, [](int64_t, int64_t) {});
}

void adam(const AdamOptions& options, float* new_param, float* new_m, float* new_v, const float* param,
          const float* grad, const float* m, const float* v, int64_t step, float lr, float scale, int64_t n,
          float* norms) {
  const AdamFactors factors = factors_of(options, step, lr, scale);
  update_in_pieces(n, 4, grad, norms, [&](int64_t begin, int64_t end) {
    adam_range(factors, new_param + begin, new_m + begin, new_v + begin, param + begin, grad + begin, m + begin,
               v + begin, end - begin);
    round_parameters(options, new_param, begin, end);
  });
}

void adam_8bit(const AdamOptions& options, float* new_param, const float* param, const float* grad,
               const EightBitMoments& moments, int64_t step, float lr, float scale, int64_t n, float* norms) {
  static_assert(norm_block % adam_block == 0);
  const AdamFactors factors = factors_of(options, step, lr, scale);
  parallel_rows(blocks_of(n), 16 * norm_block, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * norm_block; at < std::min(n, end * norm_block); at += adam_block) {
      if (norms && at % norm_block == 0)
        norms[at / norm_block] = std::sqrt(sum_of_squares(grad + at, std::min(norm_block, n - at)));
      adam_8bit_block(factors, new_param, param, grad, moments, at, std::min(adam_block, n - at));
      round_parameters(options, new_param, at, std::min(n, at + adam_block));
    }
  });
}

void sgd(const SgdOptions& options, float* new_param, float* new_momentum, const float* param, const float* grad,
         const float* momentum, float lr, float scale, int64_t n, float* norms) {
  const SgdFactors factors{lr, scale, options.momentum, 1 - options.dampening, options.weight_decay};
  update_in_pieces(n, 2, grad, norms, [&](int64_t begin, int64_t end) {
    if (momentum)
      sgd_momentum_range(factors, options.nesterov, new_param + begin, new_momentum + begin, param + begin,
                         grad + begin, momentum + begin, end - begin);
    else
      sgd_plain_range(factors, new_param + begin, param + begin, grad + begin, end - begin);
  });
}

}  // namespace plimsoll::cpu
