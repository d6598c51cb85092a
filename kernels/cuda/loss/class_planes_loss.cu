#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/tensor_core.cuh"
#include "kernels/cuda/loss/class_planes.h"
#include "kernels/cuda/loss/row_loss.cuh"

// Serves cross_entropy_with_grad of scores [outer, classes, inner], as of the pixels of images: a block has a run of
// neighbouring pixels with all of their classes in shared memory, so that scores are read once and the gradient is
// written once, in words that neighbouring threads have side by side. Some threads share the classes of a pixel.

namespace plimsoll::cuda {
namespace {

constexpr int plane_threads = static_cast<int>(ClassPlanes::threads);

// A block's words of every class: [classes, words].
struct PlaneTile {
  int64_t sample, plane;  // the plane in words
  int classes, words, first;

  __device__ PlaneTile(const ClassScores& scores, const ClassPlanes& planes, int element_bytes)
      : sample(blockIdx.x / planes.tiles),
        plane(scores.inner * element_bytes / ClassPlanes::word_bytes),
        classes(static_cast<int>(scores.classes)),
        words(static_cast<int>(planes.words)),
        first(static_cast<int>(blockIdx.x % planes.tiles) * words) {}

  __device__ int64_t at(int c, int word) const { return (sample * classes + c) * plane + first + word; }

  // Loads by `n` words, which divide the plane; zeros beyond it.
  template <int n>
  __device__ void load(uint32_t* tile, const uint32_t* scores) const {
    const int side = words / n, word = static_cast<int>(threadIdx.x) % side * n, step = plane_threads / side;
    const bool inside = first + word < plane;
    int c = static_cast<int>(threadIdx.x) / side;
    const uint32_t* from = scores + (inside ? at(c, word) : 0);
    for (; c < classes; c += step, from += inside ? step * plane : 0)
      if constexpr (n == 4)
        copy_async(tile + c * words + word, from, inside);
      else
        copy_word_async(tile + c * words + word, from, inside);
  }
};

// The larger of each pair of elements.
template <typename T, int n>
__device__ Packed<T, n> larger(const Packed<T, n>& a, const Packed<T, n>& b) {
  if constexpr (std::is_same_v<T, float>) {
    return {{__float_as_uint(fmaxf(a[0], b[0]))}};
  } else {
    using Pair = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;
    Pair left, right;
    memcpy(&left, a.word, sizeof left), memcpy(&right, b.word, sizeof right);
    left = __hmax2(left, right);
    Packed<T, n> both;
    memcpy(both.word, &left, sizeof left);
    return both;
  }
}

// Combines what the threads of a word have, in their order; all threads of the block call it.
template <int n, typename Combine>
__device__ void share_word(float (&of_threads)[plane_threads][n], const float (&own)[n], float (&all)[n], int words,
                           Combine combine) {
  const int thread = static_cast<int>(threadIdx.x), word = thread % words;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < n; ++i) of_threads[thread][i] = own[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < n; ++i) {
    all[i] = of_threads[word][i];
    for (int t = word + words; t < plane_threads; t += words) all[i] = combine(all[i], of_threads[t][i]);
  }
}

struct GradientInputs {
  const float *weight, *dloss, *dlse;
};

template <typename T>
__global__ void __launch_bounds__(plane_threads, 4)
    plane_losses_kernel(ClassScores scores, ClassLabels labels, ClassPlanes planes, RowResults results, T* dlogits,
                        const T* logits, GradientInputs inputs) {
  constexpr int n = static_cast<int>(ClassPlanes::word_bytes / sizeof(T));
  using Word = Packed<T, n>;
  extern __shared__ __align__(16) uint32_t tile[];
  __shared__ float largest_of[plane_threads][n], sum_of[plane_threads][n];
  const PlaneTile here(scores, planes, sizeof(T));
  if (here.plane % 4 == 0)
    here.load<4>(tile, reinterpret_cast<const uint32_t*>(logits));
  else
    here.load<1>(tile, reinterpret_cast<const uint32_t*>(logits));
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();

  const int thread = static_cast<int>(threadIdx.x), words = here.words, word = thread % words;
  const int first_class = thread / words, step = plane_threads / words;
  const auto word_of = [&](int c) { return Word{{tile[c * words + word]}}; };
  const auto for_own = [&](auto visit) {
    constexpr int at_once = 4;
    const uint32_t* at = tile + thread;
    int c = first_class;
    for (; c + (at_once - 1) * step < here.classes; c += at_once * step, at += at_once * plane_threads)
#pragma unroll
      for (int u = 0; u < at_once; ++u) visit(c + u * step, Word{{at[u * plane_threads]}});
    for (; c < here.classes; c += step, at += plane_threads) visit(c, Word{{*at}});
  };
  float own[n], largest[n], sums[n], shifts[n], spread_weights[n] = {}, spread_logits[n] = {};
#pragma unroll
  for (int i = 0; i < n; ++i) own[i] = -INFINITY;
  Word top = pack<T>(own);
  for_own([&](int, const Word& logit) { top = larger(top, logit); });
#pragma unroll
  for (int i = 0; i < n; ++i) own[i] = top[i];
  share_word(largest_of, own, largest, words, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (int i = 0; i < n; ++i) own[i] = 0.0f, shifts[i] = largest[i] == -INFINITY ? 0.0f : -largest[i] * log2_e;
  for_own([&](int, const Word& logit) {
#pragma unroll
    for (int i = 0; i < n; ++i) own[i] += exp2_approx(fmaf(logit[i], log2_e, shifts[i]));
  });
  share_word(sum_of, own, sums, words, Add());
  if (labels.smoothing > 0.0f) {
    Spread own_spread[n] = {};
    for_own([&](int c, const Word& logit) {
#pragma unroll
      for (int i = 0; i < n; ++i) own_spread[i].add(labels, c, logit[i]);
    });
#pragma unroll
    for (int i = 0; i < n; ++i) own[i] = own_spread[i].weights;
    share_word(largest_of, own, spread_weights, words, Add());
#pragma unroll
    for (int i = 0; i < n; ++i) own[i] = own_spread[i].logits;
    share_word(sum_of, own, spread_logits, words, Add());
  }
  if (here.first + word >= here.plane) return;

  RowGradient gradients[n];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const int64_t row = here.sample * scores.inner + (here.first + word) * int64_t{n} + i;
    const Label label(labels, row, scores.classes);
    const float lse = RunningSum{largest[i], sums[i]}.log();
    if (first_class == 0)
      finish_row(scores, labels, results, row, label, lse,
                 label.counts() ? word_of(static_cast<int>(label.index))[i] : 0.0f,
                 {spread_weights[i], spread_logits[i]});
    gradients[i] = RowGradient(scores, labels, label, row_gradient(labels, inputs.dloss, inputs.weight, row),
                               inputs.dlse, row, lse, spread_weights[i]);
  }
  const int64_t stride = step * here.plane;
  uint32_t* to = reinterpret_cast<uint32_t*>(dlogits) + here.at(first_class, word);
  const auto write = [&](const float(&results_of)[n]) {
    *to = pack<T>(results_of).word[0];
    to += stride;
  };
  bool is_plain = labels.smoothing == 0.0f;
#pragma unroll
  for (int i = 0; i < n; ++i) is_plain &= !gradients[i].is_constant;
  if (!is_plain) {
#pragma unroll 1
    for (int c = first_class; c < here.classes; c += step) {
      float results_of[n];
#pragma unroll
      for (int i = 0; i < n; ++i)
        results_of[i] = gradients[i].is_constant ? gradients[i].constant : gradients[i].at(labels, c, word_of(c)[i]);
      write(results_of);
    }
    return;
  }
  // All classes are alike but the label, whose own gradient is written over what it got among the others.
  const auto share_of_class = [&](int i, float logit) {
    return gradients[i].of_softmax * exp2_approx(fmaf(logit, log2_e, -gradients[i].lse * log2_e));
  };
  for_own([&](int, const Word& logit) {
    float results_of[n];
#pragma unroll
    for (int i = 0; i < n; ++i) results_of[i] = share_of_class(i, logit[i]);
    write(results_of);
  });
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const auto c = static_cast<int>(gradients[i].label);
    if (c >= 0 && c % step == first_class)
      dlogits[here.at(c, word) * n + i] =
          narrow<T>(share_of_class(i, word_of(c)[i]) - gradients[i].dloss * gradients[i].target);
  }
}

}  // namespace

cudaError_t plane_losses_with_grads(const LossWithGradient& call, const RowResults& results, cudaStream_t stream) {
  const ClassScores& scores = call.scores;
  return with_f32_math(scores.type, [&]<typename T>(T*) {
    const ClassPlanes planes(scores.classes, scores.inner, sizeof(T));
    const int bytes = static_cast<int>(planes.shared_bytes(scores.classes));
    if (cudaError_t error =
            cudaFuncSetAttribute(plane_losses_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        error != cudaSuccess)
      return error;
    plane_losses_kernel<T>
        <<<static_cast<unsigned>(scores.outer * planes.tiles), plane_threads, static_cast<size_t>(bytes), stream>>>(
            scores, call.labels, planes, results, static_cast<T*>(call.dlogits), static_cast<const T*>(call.logits),
            {call.weight, call.dloss, call.dlse});
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
