#include "ir/ops/common/samples.h"
#include "ir/support/strings.h"
#include "tests/cuda/on_card/case_on_card.h"

#include <functional>

// Our own convolutions of channels in groups, and sums along lines, on tensors that cross their tiles, with what the
// ops' own samples are too small for. cuDNN's kernels are compared on the samples.

using namespace plimsoll;
using namespace plimsoll::testing;
using namespace plimsoll::samples;

namespace {

struct ConvCase {
  const char* name;
  Shape x, w;  // channels last
  int64_t groups;
  Ints strides, pads, dilations;
  bool bias = false;
};

std::vector<ConvCase> conv_cases() {
  return {
      {"3 x 3, groups of 24", {2, 21, 30, 72}, {72, 3, 3, 24}, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3, groups of 24, stride 2", {2, 23, 22, 48}, {48, 3, 3, 24}, 2, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3, groups of 8", {3, 14, 14, 80}, {80, 3, 3, 8}, 10, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3, groups of 64 to 40", {1, 9, 17, 128}, {80, 3, 3, 64}, 2, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"groups of 112 to 120", {1, 5, 6, 224}, {240, 3, 2, 112}, 2, {1, 1}, {1, 1, 1, 0}, {1, 1}},
      {"groups of 32, stride 3 and 4, dilation 2", {1, 20, 18, 96}, {168, 3, 3, 32}, 3, {4, 3}, {1, 1, 1, 1}, {2, 1}},
      {"1 x 1, stride 2", {2, 9, 9, 40}, {40, 1, 1, 8}, 5, {2, 2}, {0, 0, 0, 0}, {1, 1}},
      {"a line of 32 taps", {2, 150, 96}, {96, 32, 48}, 2, {1}, {16, 16}, {1}, true},
      {"a line of 128 taps", {1, 140, 96}, {96, 128, 48}, 2, {1}, {64, 64}, {1}},
      {"groups of 8, several tiles a block", {6, 30, 40, 528}, {528, 1, 3, 8}, 66, {1, 1}, {0, 1, 0, 1}, {1, 1}, true},
      {"groups of 8, many tiles a block", {42, 64, 64, 16}, {16, 1, 3, 8}, 2, {1, 1}, {0, 1, 0, 1}, {1, 1}, true},
      {"3 x 3, groups of 24, stride 2, many groups",
       {9, 14, 15, 240},
       {240, 3, 3, 24},
       10,
       {2, 2},
       {1, 1, 1, 1},
       {1, 1},
       true},
      {"7 x 7, groups of 32 to 16", {2, 19, 23, 64}, {32, 7, 7, 32}, 2, {1, 1}, {3, 3, 3, 3}, {1, 1}, true},
      {"groups of 56 to 48, pads of one side", {3, 15, 14, 112}, {96, 3, 2, 56}, 2, {1, 1}, {0, 1, 2, 0}, {1, 1}},
      {"1 x 1, groups of 24", {5, 9, 12, 72}, {72, 1, 1, 24}, 3, {1, 1}, {0, 0, 0, 0}, {1, 1}, true},
      {"3 x 3, groups of 4", {3, 14, 15, 64}, {64, 3, 3, 4}, 16, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3, groups of 4, stride 2", {2, 23, 22, 152}, {152, 3, 3, 4}, 38, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {"5 x 5, groups of 2", {2, 13, 17, 32}, {32, 5, 5, 2}, 16, {1, 1}, {2, 2, 2, 2}, {1, 1}, true},
      {"3 x 3, two groups of 4", {2, 9, 11, 8}, {8, 3, 3, 4}, 2, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"groups of 12 to 4, dilation 2", {2, 11, 13, 48}, {16, 3, 3, 12}, 4, {1, 1}, {2, 2, 2, 2}, {2, 2}, true},
      {"groups of 2 to 6", {3, 10, 9, 16}, {48, 2, 3, 2}, 8, {1, 1}, {0, 1, 1, 1}, {1, 1}},
      {"3 x 3, groups of 16, pads of one side", {3, 28, 31, 96}, {96, 3, 3, 16}, 6, {1, 1}, {0, 2, 1, 0}, {1, 1}, true},
      {"3 x 3, groups of 32", {2, 57, 56, 64}, {64, 3, 3, 32}, 2, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3, groups of 40", {3, 30, 33, 120}, {120, 3, 3, 40}, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3, groups of 56, wide pads", {3, 11, 63, 112}, {112, 3, 3, 56}, 2, {1, 1}, {2, 2, 2, 2}, {1, 1}, true},
      {"3 x 3, groups of 64, small images", {9, 7, 7, 192}, {192, 3, 3, 64}, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3, groups of 48, stride 2", {2, 15, 30, 240}, {240, 3, 3, 48}, 5, {2, 2}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3, groups of 32, stride 2", {3, 29, 28, 96}, {96, 3, 3, 32}, 3, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3, groups of 8, many lines a block", {24, 28, 28, 528}, {528, 3, 3, 8}, 66, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3, groups of 24, small images", {30, 7, 7, 264}, {264, 3, 3, 24}, 11, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3, groups of 24, many bands a block",
       {150, 13, 29, 72},
       {72, 3, 3, 24},
       3,
       {1, 1},
       {1, 1, 1, 1},
       {1, 1},
       true},
      {"3 x 3, groups of 24, whole strips and bands", {3, 56, 56, 72}, {72, 3, 3, 24}, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3, groups of 24, boxes of channels",
       {40, 14, 28, 216},
       {216, 3, 3, 24},
       9,
       {1, 1},
       {1, 1, 1, 1},
       {1, 1},
       true},
      {"3 x 3, groups of 24, stride 2, nine groups",
       {3, 29, 30, 216},
       {216, 3, 3, 24},
       9,
       {2, 2},
       {1, 1, 1, 1},
       {1, 1}},
      {"3 x 3, groups of 8, stride 2, wide pads", {5, 14, 13, 168}, {168, 3, 3, 8}, 21, {2, 2}, {2, 2, 1, 1}, {1, 1}},
      {"3 x 3, groups of 24, stride 2 of many small images",
       {70, 7, 7, 264},
       {264, 3, 3, 24},
       11,
       {2, 2},
       {1, 1, 1, 1},
       {1, 1}},
      {"3 x 3, groups of 16, stride 2 without pads", {3, 20, 17, 80}, {80, 3, 3, 16}, 5, {2, 2}, {0, 0, 0, 0}, {1, 1}},
      {"3 x 3, groups of 32, stride 2, squares of an image",
       {40, 14, 14, 96},
       {96, 3, 3, 32},
       3,
       {2, 2},
       {1, 1, 1, 1},
       {1, 1}},
      {"3 x 3, groups of 16, several small images a chunk",
       {37, 7, 7, 144},
       {144, 3, 3, 16},
       9,
       {1, 1},
       {1, 1, 1, 1},
       {1, 1},
       true},
      {"3 x 3 of 24 channels", {3, 29, 31, 24}, {24, 3, 3, 24}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3 of 32 channels, many tiles a block", {150, 9, 7, 32}, {32, 3, 3, 32}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3 of 64 channels", {5, 30, 57, 64}, {64, 3, 3, 64}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3 of 64 channels, several tiles across", {2, 11, 200, 64}, {64, 3, 3, 64}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3 of 48 channels, stride 2", {4, 23, 30, 48}, {48, 3, 3, 48}, 1, {2, 2}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3 of 32 channels, stride 2, small images", {70, 7, 7, 32}, {32, 3, 3, 32}, 1, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3 of 64 channels, stride 2, wide", {5, 112, 112, 64}, {64, 3, 3, 64}, 1, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3 of 32 channels, wide", {9, 56, 56, 32}, {32, 3, 3, 32}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3 of 64 channels, several lines a chunk",
       {40, 28, 28, 64},
       {64, 3, 3, 64},
       1,
       {1, 1},
       {1, 1, 1, 1},
       {1, 1}},
      {"3 x 3, four groups of 8", {9, 14, 15, 32}, {32, 3, 3, 8}, 4, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"depthwise, several tiles a block", {70, 9, 12, 528}, {528, 3, 3, 1}, 528, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"depthwise 3 x 3", {2, 30, 33, 40}, {40, 3, 3, 1}, 40, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"depthwise 3 x 3, several tiles across", {2, 9, 131, 24}, {24, 3, 3, 1}, 24, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"depthwise 5 x 5", {2, 17, 20, 72}, {72, 5, 5, 1}, 72, {1, 1}, {2, 2, 2, 2}, {1, 1}},
      {"depthwise 7 x 7", {2, 29, 28, 96}, {96, 7, 7, 1}, 96, {1, 1}, {3, 3, 3, 3}, {1, 1}, true},
      {"depthwise 7 x 7 of small images", {5, 7, 7, 200}, {200, 7, 7, 1}, 200, {1, 1}, {3, 3, 3, 3}, {1, 1}, true},
      {"depthwise 7 x 7, several tiles across",
       {2, 26, 130, 24},
       {24, 7, 7, 1},
       24,
       {1, 1},
       {3, 3, 3, 3},
       {1, 1},
       true},
      {"depthwise 5 x 5 of images side by side",
       {7, 13, 14, 72},
       {72, 5, 5, 1},
       72,
       {1, 1},
       {2, 2, 2, 2},
       {1, 1},
       true},
      {"depthwise 3 x 3, pads of one side", {3, 25, 57, 40}, {40, 3, 3, 1}, 40, {1, 1}, {0, 2, 2, 0}, {1, 1}},
      {"depthwise 7 x 7 without pads", {1, 20, 22, 8}, {8, 7, 7, 1}, 8, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {"depthwise 3 x 3, wide pads", {1, 6, 5, 16}, {16, 3, 3, 1}, 16, {1, 1}, {4, 3, 2, 5}, {1, 1}},
      {"depthwise 5 x 5, stride 2", {2, 25, 31, 48}, {48, 5, 5, 1}, 48, {2, 2}, {2, 2, 2, 2}, {1, 1}, true},
      {"depthwise 3 x 3, stride 2", {2, 30, 30, 136}, {136, 3, 3, 1}, 136, {2, 2}, {0, 0, 1, 1}, {1, 1}},
      {"depthwise 5 x 5, stride 2, tall", {2, 90, 29, 36}, {36, 5, 5, 1}, 36, {2, 2}, {1, 2, 2, 1}, {1, 1}},
      {"depthwise 3 x 3, stride 2, wide pads", {3, 12, 11, 20}, {20, 3, 3, 1}, 20, {2, 2}, {4, 3, 3, 4}, {1, 1}, true},
      {"depthwise 5 x 5, stride 2, several tiles across",
       {2, 21, 150, 24},
       {24, 5, 5, 1},
       24,
       {2, 2},
       {1, 1, 2, 2},
       {1, 1},
       true},
      {"depthwise 5 x 5, stride 2 of small images", {37, 14, 14, 72}, {72, 5, 5, 1}, 72, {2, 2}, {2, 2, 2, 2}, {1, 1}},
      {"depthwise 3 x 3, stride 2, wide pads of whole vectors",
       {3, 12, 11, 24},
       {24, 3, 3, 1},
       24,
       {2, 2},
       {4, 3, 3, 4},
       {1, 1},
       true},
      {"depthwise 3 x 3, stride 2 of many images", {70, 7, 7, 40}, {40, 3, 3, 1}, 40, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {"depthwise 7 x 7, pads of one side, several tiles across",
       {9, 20, 100, 32},
       {32, 7, 7, 1},
       32,
       {1, 1},
       {6, 0, 0, 6},
       {1, 1}},
      {"depthwise 7 x 7, many tiles a block",
       {61, 14, 14, 584},
       {584, 7, 7, 1},
       584,
       {1, 1},
       {3, 3, 3, 3},
       {1, 1},
       true},
      {"depthwise 3 x 3, dilation 3, odd channels", {1, 20, 21, 37}, {37, 3, 3, 1}, 37, {1, 1}, {3, 3, 3, 3}, {3, 3}},
      {"depthwise, a line of 31 taps", {2, 100, 33}, {33, 31, 1}, 33, {1}, {15, 15}, {1}, true},
      {"depthwise 11 x 1", {5, 56, 57, 12}, {12, 11, 1, 1}, 12, {1, 1}, {5, 0, 5, 0}, {1, 1}, true},
      {"depthwise 1 x 11", {5, 57, 56, 12}, {12, 1, 11, 1}, 12, {1, 1}, {0, 5, 0, 5}, {1, 1}, true},
      {"depthwise 1 x 5 of small images", {70, 3, 3, 264}, {264, 1, 5, 1}, 264, {1, 1}, {0, 2, 0, 2}, {1, 1}},
      {"depthwise 5 x 1 of pairs of channels", {7, 14, 15, 26}, {26, 5, 1, 1}, 26, {1, 1}, {2, 0, 2, 0}, {1, 1}, true},
      {"depthwise 7 x 3 of single channels", {3, 19, 9, 5}, {5, 7, 3, 1}, 5, {1, 1}, {0, 2, 3, 0}, {1, 1}, true},
      {"depthwise 3 x 21, wide pads", {2, 9, 40, 36}, {36, 3, 21, 1}, 36, {1, 1}, {4, 22, 3, 23}, {1, 1}},
      {"depthwise, a line of 31 taps in several segments", {2, 199, 512}, {512, 31, 1}, 512, {1}, {15, 15}, {1}, true},
      {"depthwise 3 x 3 of fours of channels", {3, 15, 29, 100}, {100, 3, 3, 1}, 100, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"depthwise 3 x 3 of twos of channels", {5, 9, 57, 42}, {42, 3, 3, 1}, 42, {1, 1}, {2, 0, 1, 1}, {1, 1}},
      {"depthwise 3 x 3 of lines of words", {5, 15, 16, 30}, {30, 3, 3, 1}, 30, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"depthwise 3 x 3 of lines of words, many a block",
       {70, 29, 28, 36},
       {36, 3, 3, 1},
       36,
       {1, 1},
       {1, 1, 1, 1},
       {1, 1}},
      {"depthwise 3 x 3 of lines of words, few", {2, 3, 12, 10}, {10, 3, 3, 1}, 10, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"depthwise 5 x 5 of 28 pixels", {9, 27, 28, 72}, {72, 5, 5, 1}, 72, {1, 1}, {2, 2, 2, 2}, {1, 1}},
      {"depthwise 7 x 7 of 56 pixels", {3, 19, 56, 40}, {40, 7, 7, 1}, 40, {1, 1}, {3, 3, 3, 3}, {1, 1}},
      {"depthwise 7 x 7 of 112 pixels", {2, 9, 112, 32}, {32, 7, 7, 1}, 32, {1, 1}, {3, 3, 3, 3}, {1, 1}},
      {"depthwise 7 x 7 of 16 pixels", {37, 16, 16, 96}, {96, 7, 7, 1}, 96, {1, 1}, {3, 3, 3, 3}, {1, 1}},
      {"depthwise 3 x 3 of two rows", {300, 2, 14, 520}, {520, 3, 3, 1}, 520, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"depthwise 9 x 9 of whole images", {70, 8, 8, 168}, {168, 9, 9, 1}, 168, {1, 1}, {4, 4, 4, 4}, {1, 1}, true},
      {"depthwise 3 x 5 of whole images, pads of one side, in parts",
       {220, 5, 4, 488},
       {488, 3, 5, 1},
       488,
       {1, 1},
       {1, 4, 1, 0},
       {1, 1},
       true},
      {"depthwise 3 x 3 of whole images, many a block",
       {900, 2, 3, 1064},
       {1064, 3, 3, 1},
       1064,
       {1, 1},
       {1, 1, 1, 1},
       {1, 1}},
      {"depthwise 1 x 11 of whole images", {9, 7, 7, 96}, {96, 1, 11, 1}, 96, {1, 1}, {0, 5, 0, 5}, {1, 1}, true},
      {"depthwise 5 x 15 of whole images", {3, 8, 8, 24}, {24, 5, 15, 1}, 24, {1, 1}, {2, 7, 2, 7}, {1, 1}, true},
      {"depthwise 24 x 24", {2, 25, 26, 160}, {160, 24, 24, 1}, 160, {1, 1}, {0, 1, 1, 0}, {1, 1}},
      {"depthwise, a wide kernel", {1, 12, 30, 16}, {16, 11, 13, 1}, 16, {1, 2}, {5, 6, 5, 6}, {1, 1}},
  };
}

Attrs attrs_of(const ConvCase& c) {
  return {{"strides", c.strides},
          {"pads", c.pads},
          {"dilations", c.dilations},
          {"groups", c.groups},
          {"channels_last", int64_t{1}}};
}

Type float_of(DType dtype, llvm::ArrayRef<int64_t> shape) { return {dtype, Shape(shape.begin(), shape.end())}; }

SampleOperand tensor(DType dtype, llvm::ArrayRef<int64_t> shape) {
  SampleOperand operand = normal({1}, dtype);
  operand.type = float_of(dtype, shape);
  return operand;
}

// By all kernels of our own; there must be one.
void check_own(const KernelCase& c, llvm::StringRef library) {
  const CudaCatalog catalog(card_under_test(), /*any_order=*/true);
  const std::vector<Tensor> wanted = run_reference(c);
  size_t checked = 0;
  for (const KernelCandidate& kernel : candidates_of(catalog, c)) {
    if (kernel.name == "reference" || starts_with(kernel.name, library)) continue;
    INFO(kernel.name);
    const std::vector<Tensor> first = CaseOnCard(c, kernel, {}).run(c), again = CaseOnCard(c, kernel, {}).run(c);
    check_results(c, first, wanted);
    for (size_t r = 0; r < first.size(); ++r)
      CHECK(std::memcmp(first[r].data(), again[r].data(), static_cast<size_t>(first[r].type().bytes())) == 0);
    ++checked;
  }
  CHECK(checked > 0);
}

void check_conv(const ConvCase& c, DType dtype) {
  Attrs attrs = attrs_of(c);
  std::vector<SampleOperand> operands{tensor(dtype, c.x), tensor(dtype, c.w)};
  if (c.bias) operands.push_back(tensor(dtype, {c.w[0]}));
  const KernelCase forward("conv", attrs, operands, 1);
  const Shape y = result_types_of(forward)[0].shape;
  check_own(forward, "cudnn");
  attrs.set("shape", Ints(c.x.begin(), c.x.end()));
  check_own(KernelCase("conv_dx", attrs, {tensor(dtype, y), tensor(dtype, c.w)}, 2), "cudnn");
  attrs.set("shape", Ints(c.w.begin(), c.w.end()));
  check_own(KernelCase("conv_dw", attrs, {tensor(dtype, c.x), tensor(dtype, y)}, 3), "cudnn");
  attrs.set("dtype", DType::F32);
  check_own(KernelCase("conv_dw", attrs, {tensor(dtype, c.x), tensor(dtype, y)}, 4), "cudnn");
}

std::vector<ConvCase> dense_cases() {
  return {
      {"3 x 3", {2, 21, 30, 72}, {200, 3, 3, 72}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3 of small images", {9, 7, 7, 136}, {64, 3, 3, 136}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3, dilation 4", {2, 19, 70, 64}, {136, 3, 3, 64}, 1, {1, 1}, {4, 4, 4, 4}, {4, 4}},
      {"3 x 3, dilation 12", {2, 15, 64, 128}, {128, 3, 3, 128}, 1, {1, 1}, {12, 12, 12, 12}, {12, 12}},
      {"3 x 3, stride 2", {2, 23, 22, 200}, {72, 3, 3, 200}, 1, {2, 2}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3, stride and dilation 2", {2, 23, 22, 64}, {72, 3, 3, 64}, 1, {2, 2}, {2, 2, 2, 2}, {2, 2}},
      {"5 x 5, pads of one side", {1, 17, 20, 40}, {40, 5, 5, 40}, 1, {1, 1}, {4, 0, 0, 4}, {1, 1}},
      {"a line of 3 taps, stride 2", {2, 333, 64}, {64, 3, 64}, 1, {2}, {0, 0}, {1}},
  };
}

// Volumes: tiles that reach beyond them, channels that do not fill a tile, several ranges of planes, and folded ones.
std::vector<ConvCase> volume_cases() {
  const Ints one{1, 1, 1}, pads{1, 1, 1, 1, 1, 1};
  return {
      {"3 x 3 x 3 of 32 channels", {2, 9, 17, 33, 32}, {32, 3, 3, 3, 32}, 1, one, pads, one, true},
      {"3 x 3 x 3, 64 to 32", {1, 12, 18, 20, 64}, {32, 3, 3, 3, 64}, 1, one, pads, one, true},
      {"3 x 3 x 3, 32 to 64", {1, 7, 16, 40, 32}, {64, 3, 3, 3, 32}, 1, one, pads, one},
      {"3 x 3 x 3 of 64 channels", {2, 8, 16, 16, 64}, {64, 3, 3, 3, 64}, 1, one, pads, one, true},
      {"3 x 3 x 3, 136 to 72", {1, 5, 9, 11, 136}, {72, 3, 3, 3, 136}, 1, one, pads, one, true},
      {"3 x 3 x 3, 8 to 24, pads of one side", {3, 4, 6, 19, 8}, {24, 3, 3, 3, 8}, 1, one, {2, 0, 1, 0, 1, 2}, one},
      {"3 x 3 x 3, 48 to 40 without pads", {2, 10, 20, 12, 48}, {40, 3, 3, 3, 48}, 1, one, {0, 0, 0, 0, 0, 0}, one},
      {"1 x 3 x 3 of 32 channels", {2, 5, 14, 15, 32}, {32, 1, 3, 3, 32}, 1, one, {0, 1, 1, 0, 1, 1}, one, true},
      {"3 x 1 x 1 of 64 channels", {2, 9, 7, 8, 64}, {64, 3, 1, 1, 64}, 1, one, {1, 0, 0, 1, 0, 0}, one},
      {"1 x 3 x 3, depthwise", {2, 4, 9, 11, 24}, {24, 1, 3, 3, 1}, 24, one, {0, 1, 1, 0, 1, 1}, one, true},
      {"9 x 9 x 1, 1 to 16", {1, 12, 11, 32, 1}, {16, 9, 9, 1, 1}, 1, one, {4, 4, 0, 4, 4, 0}, one, true},
      {"9 x 9 x 1, 1 to 16, small", {2, 8, 8, 64, 1}, {16, 9, 9, 1, 1}, 1, one, {4, 4, 0, 4, 4, 0}, one},
      {"7 x 9 x 1, 1 to 16, odd", {2, 6, 9, 48, 1}, {16, 7, 9, 1, 1}, 1, one, {3, 2, 0, 1, 5, 0}, one, true},
      {"2 x 2 x 1, 1 to 16, no pads", {600, 3, 3, 16, 1}, {16, 2, 2, 1, 1}, 1, one, {0, 0, 0, 0, 0, 0}, one},
      {"2 x 4 x 1, 1 to 16, wide pads", {2, 3, 2, 32, 1}, {16, 2, 4, 1, 1}, 1, one, {1, 3, 0, 2, 6, 0}, one, true},
  };
}

// One channel a group: pairs of channels and single ones, tiles that reach beyond planes, several ranges of planes, and
// taps and strides with which planes of results are made one by one.
std::vector<ConvCase> depthwise_volume_cases() {
  const Ints one{1, 1, 1}, pads{1, 1, 1, 1, 1, 1};
  return {
      {"3 x 3 x 3 of 54", {2, 9, 17, 13, 54}, {54, 3, 3, 3, 1}, 54, one, pads, one, true},
      {"3 x 3 x 3 of many", {1, 16, 7, 7, 432}, {432, 3, 3, 3, 1}, 432, one, pads, one},
      {"3 x 3 x 3 of 5", {2, 6, 9, 30, 5}, {5, 3, 3, 3, 1}, 5, one, pads, one, true},
      {"3 x 3 x 3, stride 2 in planes", {2, 7, 15, 18, 54}, {54, 3, 3, 3, 1}, 54, {1, 2, 2}, pads, one, true},
      {"3 x 3 x 3, stride 2", {2, 9, 14, 11, 76}, {76, 3, 3, 3, 1}, 76, {2, 2, 2}, pads, one, true},
      {"3 x 3 x 3, stride 2 in depth", {1, 8, 10, 9, 30}, {30, 3, 3, 3, 1}, 30, {2, 1, 1}, pads, one},
      {"5 x 5 x 5", {2, 7, 11, 12, 20}, {20, 5, 5, 5, 1}, 20, one, {2, 2, 2, 2, 2, 2}, one, true},
      {"5 x 4 x 5, stride 2 in planes", {1, 6, 13, 12, 7}, {7, 5, 4, 5, 1}, 7, {1, 2, 2}, {2, 1, 2, 2, 2, 1}, one},
      {"2 x 3 x 2, pads of one side", {2, 5, 8, 9, 18}, {18, 2, 3, 2, 1}, 18, one, {1, 2, 0, 0, 1, 1}, one, true},
      {"7 x 3 x 3, wide pads", {1, 4, 5, 6, 12}, {12, 7, 3, 3, 1}, 12, one, {6, 4, 3, 5, 3, 4}, one},
      {"3 x 3 x 3 of 54, lines of words", {1, 6, 10, 56, 54}, {54, 3, 3, 3, 1}, 54, one, pads, one, true},
      {"3 x 3 x 3 of 108, lines of words", {2, 4, 9, 28, 108}, {108, 3, 3, 3, 1}, 108, one, pads, one, true},
      {"3 x 3 x 3 of 72, many columns", {1, 40, 9, 70, 72}, {72, 3, 3, 3, 1}, 72, one, pads, one, true},
      {"3 x 3 x 3 of 216", {9, 5, 15, 14, 216}, {216, 3, 3, 3, 1}, 216, one, pads, one},
      {"3 x 3 x 3 of 152, pads of one side", {2, 6, 7, 7, 152}, {152, 3, 3, 3, 1}, 152, one, {2, 0, 1, 0, 2, 1}, one},
      {"3 x 3 x 3 of 100, no pads", {2, 5, 9, 16, 100}, {100, 3, 3, 3, 1}, 100, one, {0, 0, 0, 0, 0, 0}, one, true},
      {"3 x 3 x 3 of 54, stride 2, lines of words", {1, 4, 11, 112, 54}, {54, 3, 3, 3, 1}, 54, {1, 2, 2}, pads, one},
      {"3 x 3 x 3 of 40, stride 2, many columns", {1, 30, 7, 150, 40}, {40, 3, 3, 3, 1}, 40, {1, 2, 2}, pads, one},
      {"3 x 3 x 3 of 64, one window a line", {3, 5, 7, 8, 64}, {64, 3, 3, 3, 1}, 64, one, pads, one, true},
      {"3 x 3 x 3 of 24, lines of one pixel", {2, 3, 17, 1, 24}, {24, 3, 3, 3, 1}, 24, one, pads, one, true},
      {"3 x 3 x 3 of 80, wide pads", {2, 3, 9, 15, 80}, {80, 3, 3, 3, 1}, 80, one, {2, 2, 2, 2, 2, 2}, one, true},
      {"3 x 3 x 3 of 136, no pads", {2, 6, 18, 16, 136}, {136, 3, 3, 3, 1}, 136, one, {0, 0, 0, 0, 0, 0}, one},
      {"3 x 3 x 3 of 432, stride 2", {2, 5, 14, 14, 432}, {432, 3, 3, 3, 1}, 432, {1, 2, 2}, pads, one},
  };
}

// Lines of whole words of 16 bytes, of pixels that are none.
std::vector<ConvCase> packed_cases() {
  return {
      {"3 x 3 of 18 channels, lines of words", {3, 29, 32, 18}, {18, 3, 3, 18}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3 of 18 channels, many lines a block", {20, 31, 28, 18}, {18, 3, 3, 18}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3 of 36 channels, lines of words", {5, 15, 14, 36}, {36, 3, 3, 36}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3 of 36 channels, long lines", {1, 30, 200, 36}, {36, 3, 3, 36}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3 of 72 channels", {7, 14, 14, 72}, {72, 3, 3, 72}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3, 10 to 42, many tiles a block", {60, 14, 20, 10}, {42, 3, 3, 10}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3 of 10 channels", {7, 13, 20, 10}, {10, 3, 3, 10}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3 of 50 channels", {9, 19, 24, 50}, {50, 3, 3, 50}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3 of 24 channels, few lines", {1, 2, 31, 24}, {24, 3, 3, 24}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3, 30 to 12", {5, 17, 16, 30}, {12, 3, 3, 30}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3, 18 to 36, stride 2, lines of words",
       {3, 28, 28, 18},
       {36, 3, 3, 18},
       1,
       {2, 2},
       {1, 1, 1, 1},
       {1, 1},
       true},
      {"3 x 3, 36 to 72, stride 2, lines of words", {9, 15, 28, 36}, {72, 3, 3, 36}, 1, {2, 2}, {1, 1, 1, 1}, {1, 1}},
  };
}

// Pixels that are no whole words of 16 bytes, and results in several parts.
std::vector<ConvCase> odd_cases() {
  return {
      {"3 x 3 of 18 channels", {3, 29, 31, 18}, {18, 3, 3, 18}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3 of 36 channels", {5, 15, 14, 36}, {36, 3, 3, 36}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3, 18 to 72, stride 2", {3, 28, 27, 18}, {72, 3, 3, 18}, 1, {2, 2}, {1, 1, 1, 1}, {1, 1}, true},
      {"3 x 3, 36 to 144, stride 2", {9, 14, 14, 36}, {144, 3, 3, 36}, 1, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3 of 144 channels", {6, 7, 7, 144}, {144, 3, 3, 144}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"1 x 1, 58 to 18", {4, 13, 17, 58}, {18, 1, 1, 58}, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}, true},
      {"1 x 1, 61 to 90", {3, 11, 12, 61}, {90, 1, 1, 61}, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}, true},
      {"1 x 1, 54 to 24, whole chunks", {3, 16, 40, 54}, {24, 1, 1, 54}, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}, true},
      {"1 x 1, 24 to 108", {5, 20, 16, 24}, {108, 1, 1, 24}, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {"1 x 1, 108 to 48", {5, 17, 16, 108}, {48, 1, 1, 108}, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}, true},
      {"1 x 1, 216 to 96", {2, 14, 16, 216}, {96, 1, 1, 216}, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {"1 x 1, 10 to 6, many chunks a block", {70, 32, 32, 10}, {6, 1, 1, 10}, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {"1 x 1, 10 to 6", {1, 4, 4, 10}, {6, 1, 1, 10}, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}, true},
      {"1 x 1, 126 to 52", {2, 16, 41, 126}, {52, 1, 1, 126}, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {"3 x 3, 27 to 9, pads of one side", {2, 19, 18, 27}, {9, 3, 3, 27}, 1, {1, 1}, {0, 2, 1, 0}, {1, 1}, true},
      {"5 x 5, 20 to 100, dilation 2", {2, 17, 16, 20}, {100, 5, 5, 20}, 1, {1, 1}, {4, 4, 4, 4}, {2, 2}},
      {"a line of 3 taps of 44 channels", {2, 301, 44}, {52, 3, 44}, 1, {1}, {1, 1}, {1}, true},
  };
}

// Images of few channels, whose blocks of pixels are multiplied.
std::vector<ConvCase> first_cases() {
  return {
      {"7 x 7 of 3 channels, stride 2", {3, 37, 45, 3}, {64, 7, 7, 3}, 1, {2, 2}, {3, 3, 3, 3}, {1, 1}, true},
      {"3 x 3 of 3 channels, stride 2", {5, 30, 31, 3}, {40, 3, 3, 3}, 1, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {"3 x 3 of 3 channels", {2, 19, 70, 3}, {136, 3, 3, 3}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, true},
      {"7 x 5 of a channel, strides 3 and 2", {2, 31, 18, 1}, {72, 7, 5, 1}, 1, {3, 2}, {1, 0, 2, 3}, {1, 1}},
      {"8 x 8 of 4 channels, stride 2", {4, 21, 33, 4}, {264, 8, 8, 4}, 1, {2, 2}, {3, 3, 3, 3}, {1, 1}, true},
  };
}

// By the kernels of our own alone, which for dx know no strides.
void check_dense(const ConvCase& c, DType dtype, bool has_dx) {
  Attrs attrs = attrs_of(c);
  std::vector<SampleOperand> operands{tensor(dtype, c.x), tensor(dtype, c.w)};
  if (c.bias) operands.push_back(tensor(dtype, {c.w[0]}));
  const KernelCase forward("conv", attrs, operands, 1);
  const Shape y = result_types_of(forward)[0].shape;
  check_own(forward, "cudnn");
  attrs.set("shape", Ints(c.x.begin(), c.x.end()));
  if (has_dx) check_own(KernelCase("conv_dx", attrs, {tensor(dtype, y), tensor(dtype, c.w)}, 2), "cudnn");
  attrs.set("shape", Ints(c.w.begin(), c.w.end()));
  check_own(KernelCase("conv_dw", attrs, {tensor(dtype, c.x), tensor(dtype, y)}, 3), "cudnn");
  attrs.set("dtype", DType::F32);
  check_own(KernelCase("conv_dw", attrs, {tensor(dtype, c.x), tensor(dtype, y)}, 4), "cudnn");
}

bool has_strides(const ConvCase& c) {
  return llvm::any_of(c.strides, [](int64_t stride) { return stride != 1; });
}

bool is_depthwise(const ConvCase& c) { return c.w.back() == 1; }

void check_in_groups(llvm::function_ref<bool(const ConvCase&)> belongs, DType dtype) {
  for (const ConvCase& c : conv_cases()) {
    if (belongs(c)) SUBCASE(c.name) check_conv(c, dtype);
  }
}

void check_lines(DType dtype, llvm::ArrayRef<int64_t> x, int64_t axis, int64_t count, int64_t distinct,
                 DType index = DType::I64) {
  Shape indices(x.begin(), x.end());
  indices[static_cast<size_t>(axis)] = count;
  SampleOperand places = integers({1}, -distinct, distinct - 1, index);
  places.type = Type(index, indices);
  check_own(KernelCase("scatter_elements", {{"axis", axis}, {"reduction", std::string("add")}},
                       {tensor(dtype, x), places, tensor(dtype, indices)}, 5),
            "sorted");
}

}  // namespace

TEST_CASE("depthwise convolutions in bf16 agree with the reference across tiles, and give the same bits twice") {
  check_in_groups(is_depthwise, DType::BF16);
}
TEST_CASE("depthwise convolutions in f16 agree with the reference across tiles, and give the same bits twice") {
  check_in_groups(is_depthwise, DType::F16);
}
TEST_CASE("depthwise convolutions in f32 agree with the reference across tiles, and give the same bits twice") {
  check_in_groups(is_depthwise, DType::F32);
}
TEST_CASE("convolutions in groups in bf16 agree with the reference across tiles, and give the same bits twice") {
  check_in_groups(std::not_fn(is_depthwise), DType::BF16);
}
TEST_CASE("convolutions in groups in f16 agree with the reference across tiles, and give the same bits twice") {
  check_in_groups(std::not_fn(is_depthwise), DType::F16);
}

TEST_CASE("convolutions over volumes agree with the reference across tiles, and give the same bits twice") {
  for (const ConvCase& c : volume_cases()) SUBCASE(c.name) {
      for (DType dtype : {DType::BF16, DType::F16}) check_conv(c, dtype);
    }
  for (const ConvCase& c : depthwise_volume_cases()) SUBCASE(c.name) {
      for (DType dtype : {DType::F32, DType::BF16, DType::F16}) check_conv(c, dtype);
    }
}

TEST_CASE("convolutions without groups agree with the reference across tiles, and give the same bits twice") {
  for (const ConvCase& c : dense_cases()) SUBCASE(c.name) {
      for (DType dtype : {DType::BF16, DType::F16}) check_dense(c, dtype, !has_strides(c));
    }
  for (const ConvCase& c : first_cases()) SUBCASE(c.name) {
      for (DType dtype : {DType::BF16, DType::F16}) check_dense(c, dtype, false);
    }
  for (const auto& cases : {odd_cases(), packed_cases()})
    for (const ConvCase& c : cases) SUBCASE(c.name) {
        for (DType dtype : {DType::BF16, DType::F16}) check_conv(c, dtype);
      }
}

TEST_CASE("sums along lines agree with the reference, and give the same bits twice") {
  for (DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    check_lines(dtype, {40, 513}, 1, 300, 513);
    check_lines(dtype, {6, 50, 512}, 2, 512, 9);
    check_lines(dtype, {2, 9000}, 1, 100, 9000, DType::I32);
    check_lines(dtype, {3, 64}, 1, 500, 1);
    check_lines(dtype, {4, 197, 100}, 1, 60, 197);
    check_lines(dtype, {70, 33}, 0, 200, 5, DType::I32);
  }
}
