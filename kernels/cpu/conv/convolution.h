#pragma once

// f32 convolution of 1 to 3 spatial dimensions and its two gradients through oneDNN. Tensors come and go
// dense, channels first or last; where oneDNN is faster on a blocked one, they are reordered into the workspace.

#include <cstdint>
#include <memory>
#include <string>

namespace plimsoll::cpu {

class Library;

// x [batch, in_channels, input...], w [out_channels, in_channels / groups, kernel...],
// y [batch, out_channels, output...]; with channels_last all three have their second dimension last.
struct ConvolutionShape {
  int spatial_rank;
  int64_t batch, in_channels, out_channels, groups;
  int64_t input[3], output[3], kernel[3];
  int64_t strides[3], dilations[3], pads_begin[3], pads_end[3];
  bool bias;
  bool channels_last;
};

enum class ConvolutionPass : uint8_t { Forward, InputGradient, WeightGradient };

// Enough for the blocked copies of all three tensors. Channels round up to 16, output channels of weights
// to 64: the largest blocks oneDNN uses in f32.
int64_t convolution_workspace_bytes(const ConvolutionShape& shape);

class PreparedConvolution {
 public:
  // Null when oneDNN refuses; `why` then says what it said.
  static std::unique_ptr<PreparedConvolution> create(Library& library, ConvolutionPass pass,
                                                     const ConvolutionShape& shape, std::string& why);
  ~PreparedConvolution();

  // Writes x, w or y (or their gradients), as the pass says. Bias belongs to Forward. False when
  // oneDNN fails.
  [[nodiscard]] bool run(const float* x, const float* w, const float* y, const float* bias, void* workspace);

 private:
  struct State;
  explicit PreparedConvolution(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// y[n, c, :] += bias[c]
void add_channel_bias(float* y, const float* bias, int64_t batch, int64_t channels, int64_t inner);

}  // namespace plimsoll::cpu
