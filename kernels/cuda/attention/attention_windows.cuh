#pragma once

// Attention in thousands of small windows, as Swin's of 49 rows: what bounds it is memory. A block of four warps walks
// over windows of one head, and the copies of the next ones run meanwhile. A warp owns sixteen rows of a window, or
// sixteen columns backward, and keeps what the mask adds to them, the same in every window, in registers or in shared
// memory in the order in which it reads it.
//
// A window's rows of a tensor are a tile of shared memory, 64 rows of 32 elements. Word w of the four of 16 bytes that
// a row has stands at place w ^ (row / 2 % 4), so that reads of eight rows meet no bank twice.
//
// Thread 4 g + t reads elements 8 t to 8 t + 7 of row g of eight. Word i of the four of 4 bytes are, for the matrix
// units, elements 2 t and 2 t + 1 of a left operand's row g or of a right operand's column g: that both sides number
// the depth in this order leaves products as they are.

#include "kernels/cuda/attention/attention_masks.cuh"
#include "kernels/cuda/common/card_attributes.h"

namespace plimsoll::cuda {

inline constexpr int max_window = 64, window_depth = 32, window_groups = max_window / 8, window_tiles = max_window / 16;
inline constexpr int window_threads = 32 * window_tiles;
inline constexpr int window_row_bytes = 2 * window_depth, window_bytes = max_window * window_row_bytes;
inline constexpr int eight_rows_bytes = 8 * window_row_bytes, sixteen_rows_bytes = 2 * eight_rows_bytes;

// Eight rows of a head: 16 bytes of each for every thread.
union EightRows {
  uint4 vector;
  uint32_t words[4];
};

// Sums of sixteen rows of a head: 16 x 8 products side by side.
using RowSums = float[4][4];

// Where a row's 16-byte word lies in a tile.
__device__ inline int place_in_window(int row, int word) {
  return row * window_row_bytes + ((word ^ (row / 2 % 4)) << 4);
}

// Where this thread's words of a tile are, whatever rows of it are meant.
struct WindowPlaces {
  int of_eight;       // word t of row g of eight
  int transposed[2];  // what ldmatrix wants of sixteen rows' elements 0 to 15 and 16 to 31

  __device__ WindowPlaces() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    of_eight = place_in_window(lane / 4, lane % 4);
    transposed[0] = place_in_window(lane % 16, lane / 16);
    transposed[1] = place_in_window(lane % 16, lane / 16 + 2);
  }

  __device__ EightRows rows(const unsigned char* tile, int group) const {
    return {*reinterpret_cast<const uint4*>(tile + of_eight + group * eight_rows_bytes)};
  }
  // sums += weights * rows 16 k to 16 k + 15.
  template <typename T>
  __device__ void add_rows(RowSums& sums, const LeftFragment& weights, const unsigned char* tile, int k) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      RightFragments right;
      load_matrices_transposed(right.at, tile + transposed[half] + k * sixteen_rows_bytes);
      multiply_add<T>(sums[2 * half], weights, right, 0);
      multiply_add<T>(sums[2 * half + 1], weights, right, 1);
    }
  }
};

// sum += sixteen rows * (eight rows)^T over the whole depth.
template <typename T>
__device__ void add_products(float (&sum)[4], const EightRows (&left)[2], const EightRows& right) {
  const uint32_t *upper = left[0].words, *lower = left[1].words, *r = right.words;
  const RightFragments fragments{{r[0], r[1], r[2], r[3]}};
  multiply_add<T>(sum, {{upper[0], lower[0], upper[1], lower[1]}}, fragments, 0);
  multiply_add<T>(sum, {{upper[2], lower[2], upper[3], lower[3]}}, fragments, 1);
}

// What a thread has of a tensor's rows in a window, and in the windows that its block takes after it: 16 bytes of two.
template <typename T>
class WindowWords {
 public:
  // `first_row` and `row_distance` say which two; `step` is that of rows.
  __device__ WindowWords(T* head, int64_t step, int64_t all_rows, int depth, int window, int windows, int first_row,
                         int row_distance)
      : distance_(row_distance * static_cast<int>(step)), window_step_(windows * all_rows * step) {
    const int d = static_cast<int>(threadIdx.x) % 4 * 8, rows = d < depth ? static_cast<int>(all_rows) : 0;
    at_ = head + (window * all_rows + first_row) * step + d;
    has_[0] = first_row < rows;
    has_[1] = first_row + row_distance < rows;
  }

  __device__ bool has(int i) const { return has_[i]; }
  __device__ T* at(int i) const { return at_ + i * distance_; }
  __device__ void advance() { at_ += window_step_; }

 private:
  T* at_;
  int distance_;
  bool has_[2];
  int64_t window_step_;
};

// Rows r and r + 32 of a tile are filled by thread 4 r + word.
__device__ inline int copied_place() { return place_in_window(static_cast<int>(threadIdx.x) / 4, threadIdx.x % 4); }

template <typename T>
class WindowCopies : public WindowWords<const T> {
 public:
  __device__ WindowCopies(const T* head, int64_t step, int64_t rows, int depth, int window, int windows)
      : WindowWords<const T>(head, step, rows, depth, window, windows, static_cast<int>(threadIdx.x) / 4,
                             max_window / 2) {}

  __device__ void copy(unsigned char* tile) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (this->has(i)) copy_async(tile + copied_place() + i * (window_bytes / 2), this->at(i), true);
  }
  // What no window has is written once.
  __device__ void clear_rest(unsigned char* tile) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (!this->has(i)) *reinterpret_cast<uint4*>(tile + copied_place() + i * (window_bytes / 2)) = uint4{};
  }
};

// Sixteen rows of results, of rows 16 warp + g and 8 more.
template <typename T>
class WindowResults : public WindowWords<T> {
 public:
  __device__ WindowResults(T* head, int64_t step, int64_t rows, int depth, int window, int windows)
      : WindowWords<T>(head, step, rows, depth, window, windows,
                       static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4, 8) {}

  // Sums times a factor for each half of the rows, by way of sixteen rows of shared memory that are the warp's.
  __device__ void write(const RowSums& sums, const float (&factors)[2], unsigned char* rows,
                        const WindowPlaces& places) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    __syncwarp();  // they may still be read
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int word = 0; word < 4; ++word)
        *reinterpret_cast<uint32_t*>(rows + half * eight_rows_bytes + place_in_window(lane / 4, word) + lane % 4 * 4) =
            packed_pair<T>(sums[word][2 * half] * factors[half], sums[word][2 * half + 1] * factors[half]);
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (this->has(half)) *reinterpret_cast<uint4*>(this->at(half)) = places.rows(rows, half).vector;
  }
};

__device__ inline float addition_of(uint8_t open) { return open ? 0.0f : -INFINITY; }
template <typename M>
__device__ float addition_of(M value) {
  return widen(value);
}

// What the masks of a head add to scores between the sixteen rows or columns that a warp owns and the others, in units
// of log 2, and -inf outside: four numbers for each thread, 16 x 8 scores after the other. Large finite numbers stay
// finite.
template <int groups>
class WindowAdditions {
 public:
  __device__ const float4& at(int group, int thread) const {
    return of_threads_[group][place(thread / 4, thread % 4 * 2)];
  }

  // A warp's work. Code that runs once is waited for, and so it is short: each thread reads sixteen numbers at a time,
  // neighbouring lanes neighbouring columns, and slopes, the diagonal and windows have a loop of their own.
  template <Owner owner, typename T>
  __device__ void fill(const AttentionShape& n, const Head& head, int first_own) {
    constexpr bool owns_rows = owner == Owner::Rows;
    constexpr int reads = 16, others_at_a_time = 32;
    constexpr auto own_of = [](int read) { return owns_rows ? read % 8 : 0; };
    constexpr auto other_of = [](int read) { return owns_rows ? read / 8 * 16 : 2 * read; };
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int own = owns_rows ? lane / 16 * 8 : lane % 16, other = owns_rows ? lane % 16 : lane / 16;
    const int owns = static_cast<int>(owns_rows ? n.rows : n.columns) - first_own - own;
    const int own_step = made_here(static_cast<int>(n.mask_strides[owns_rows ? 2 : 3]));
    const int other_step = made_here(static_cast<int>(n.mask_strides[owns_rows ? 3 : 2]));
    const bool has_forms = n.slopes || n.causal || n.window > 0;
    const float to_log2 = has_forms ? 1.0f : log2_e;
#pragma unroll 1
    for (int first = 0; first < 8 * groups; first += others_at_a_time) {
      const int others = static_cast<int>(owns_rows ? n.columns : n.rows) - first - other;
      float read[reads];
      const auto visit = [&](auto read_at) {
#pragma unroll
        for (int i = 0; i < reads; ++i)
          read[i] = own_of(i) < owns && other_of(i) < others ? read_at(own_of(i), other_of(i)) : -INFINITY;
      };
      // All reads are on their way before the first is used.
      if (n.mask)
        with_mask<T>(n, head, [&](auto* mask) {
          // Computed once: the compiler would do so for each read.
          const auto* const start = mask + ((first_own + own) * own_step + (first + other) * other_step);
          const auto from = reinterpret_cast<decltype(start)>(made_here(reinterpret_cast<int64_t>(start)));
          visit([&](int i, int j) { return addition_of(from[i * own_step + j * other_step]); });
        });
      else
        visit([](int, int) { return 0.0f; });
      float* const numbers = &of_threads_[(first + other) / 8][0].x + own / 8 * 2 + other % 2;
      const int last = 8 * groups - first - other;
#pragma unroll
      for (int i = 0; i < reads; ++i) {
        const float added = read[i] == -INFINITY ? -INFINITY : fmaxf(read[i], -1e30f) * to_log2;
        const int of_read = place(own_of(i), other_of(i));
        if (other_of(i) < last) numbers[other_of(i) / 8 * 128 + (place(own, other) ^ of_read) * 4] = added;
      }
    }
    __syncwarp();
    if (has_forms) add_forms<owner>(n, head, first_own + lane / 4, lane);
  }

 private:
  // Where in its group the numbers lie of the thread that has an own row or column and one of the others. Those who
  // read places meet no bank twice, and those who fill them at most two of each other.
  __host__ __device__ static constexpr int place(int own, int other) {
    return own % 8 * 4 ^ own % 8 / 2 ^ other % 8 / 2;
  }

  template <Owner owner>
  __device__ void add_forms(const AttentionShape& n, const Head& head, int own, int lane) {
    const float slope = n.slopes ? n.slopes[head.h] : 0.0f;
#pragma unroll 1
    for (int i = 0; i < groups; ++i) {
      float4& all = of_threads_[i][place(lane / 4, lane % 4 * 2)];
      float added[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int from = own + e / 2 * 8, to = 8 * i + lane % 4 * 2 + e % 2;
        const int row = owner == Owner::Rows ? from : to, column = owner == Owner::Rows ? to : from;
        const int distance = row > column ? row - column : column - row;
        const bool is_closed =
            added[e] == -INFINITY || (n.causal && column > row) || (n.window > 0 && distance >= n.window);
        const float score = added[e] - slope * static_cast<float>(distance);
        added[e] = is_closed ? -INFINITY : fmaxf(score, -1e30f) * log2_e;
      }
      all = {added[0], added[1], added[2], added[3]};
    }
  }

  float4 of_threads_[groups][32];
};

// The segments of a window's rows, which are those of its columns: thread r has row r, whose number is read a window
// ahead. Without segments there is nothing of it.
template <bool exist>
class WindowSegments {
 public:
  using Numbers = int64_t[exist ? max_window : 2];

  // Those of window b.
  __device__ void read(const AttentionShape& n, int b) {
    if constexpr (exist) {
      const int64_t* const numbers = n.segments + b * n.segments_step;
      next_ = numbers[min(static_cast<int>(threadIdx.x), static_cast<int>(n.rows) - 1)];
      next_first_ = numbers[0];
    }
  }
  // Writes the window's numbers, and meets the block's threads. Are there several segments?
  __device__ bool meet(Numbers& numbers) const {
    if constexpr (exist) {
      if (threadIdx.x < max_window) numbers[threadIdx.x] = next_;
      return __syncthreads_or(next_ != next_first_) != 0;
    } else {
      __syncthreads();
      return false;
    }
  }
  // Closes pairs of rows or columns `own` (elements 0 and 1) and `own` + 8 with those from `other` on, an even number.
  __device__ static void close(float (&additions)[4], const Numbers& numbers, int own, int other) {
    const longlong2 others = *reinterpret_cast<const longlong2*>(numbers + other);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (numbers[own + e / 2 * 8] != (e % 2 == 0 ? others.x : others.y)) additions[e] = -INFINITY;
  }

 private:
  int64_t next_ = 0, next_first_ = 0;
};

// Calls visit with whether windows have segments, as a constant.
template <typename Visit>
cudaError_t with_window_segments(const AttentionShape& n, Visit visit) {
  return n.segments ? visit(std::true_type()) : visit(std::false_type());
}

// Windows with the same mask, whose rows are whole words of 16 bytes.
[[nodiscard]] inline bool takes_windows(const AttentionShape& n, bool aligned) {
  return aligned && n.depth <= window_depth && n.value_depth == n.depth && n.rows <= max_window &&
         n.columns <= max_window && n.heads == n.kv_heads && n.dropout.blocks == 0 && n.mask_strides[0] == 0 &&
         n.softcap == 0.0f;
}

// A block has head blockIdx.x % heads and every blocks_per_head-th window. No more blocks than the multiprocessors
// hold: one that waits for a place of another takes twice as long as all the others.
struct WindowGrid {
  int64_t blocks, blocks_per_head;

  WindowGrid(const AttentionShape& n, int per_multiprocessor) {
    int multiprocessors = 1;  // where the card does not say
    (void)count_multiprocessors(multiprocessors);
    const int64_t wanted = std::max<int64_t>(int64_t{multiprocessors} * per_multiprocessor / n.heads, 1);
    blocks_per_head = wanted < n.batch ? wanted : n.batch;
    blocks = blocks_per_head * n.heads;
  }
};

// Whether the copy engine brings windows and takes results away: on Hopper, for heads of 32 elements, if there are any
// windows.
[[nodiscard]] bool takes_window_boxes(const AttentionShape& shape);

[[nodiscard]] cudaError_t attention_windows(const AttentionShape& shape, const AttentionCall& call,
                                            cudaStream_t stream);
[[nodiscard]] cudaError_t attention_window_boxes(const AttentionShape& shape, const AttentionCall& call,
                                                 cudaStream_t stream);
// These need no delta. The gradient of a mask [heads, rows, columns] comes in parts.
[[nodiscard]] cudaError_t attention_grad_windows(const AttentionShape& shape, const AttentionGradCall& grads,
                                                 cudaStream_t stream);
[[nodiscard]] cudaError_t mask_grad_windows(const AttentionShape& shape, const AttentionGradCall& grads,
                                            float* partials, int64_t parts, cudaStream_t stream);
// Both, in at most so many parts.
[[nodiscard]] cudaError_t attention_grads_windows(const AttentionShape& shape, const AttentionGradCall& grads,
                                                  float* partials, int64_t& parts, cudaStream_t stream);

}  // namespace plimsoll::cuda
