#pragma once

// What happens to an image between its file and the batch. The numbers follow torchvision's transforms of these names.

#include "ir/support/philox.h"
#include "runtime/data/image.h"

#include <array>

namespace plimsoll {

enum class Crop : uint8_t {
  None,           // the whole image, stretched to the size that the model takes
  Center,         // after scaling the shorter side
  Random,         // the same at a random place
  RandomResized,  // a random part of the area with a random ratio of its sides
};

struct ImageTransforms {
  bool decode_at_fraction = true;  // JPEG at 1/2, 1/4 or 1/8 where that is still as large as shown
  // Center and Random scale the shorter side to so many pixels before they crop; 0: as few as the crop covers.
  int64_t resize = 0;
  Crop crop = Crop::Center;
  std::array<double, 2> area = {0.08, 1}, ratio = {3.0 / 4, 4.0 / 3};  // of RandomResized
  double flip = 0;                                                     // probability of mirroring left and right
  // Factors are drawn from [1 - x, 1 + x].
  double brightness = 0, contrast = 0, saturation = 0;
  // Strengths of mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019): rows of a batch share their images and labels
  // by a number from Beta(x, x); 0: not at all. With both a batch does one or the other.
  double mixup = 0, cutmix = 0;
  // Of red, green and blue in [0, 1]; (value - mean) / deviation.
  std::array<double, 3> mean = {0, 0, 0}, deviation = {1, 1, 1};
};

// Of a sample: whether it is mirrored, and what follows decoding and scaling, in place: colors, mean and deviation.
bool is_mirrored(const ImageTransforms& transforms, const RandomStream& random);
void change_colors(const ImageTransforms& transforms, const RandomStream& random, int64_t pixels, float* planes);

// Decodes the image and writes it to planes[3][height][width].
Status show_image(llvm::StringRef where, llvm::ArrayRef<uint8_t> bytes, const ImageTransforms& transforms,
                  ImageSize size, const RandomStream& random, Image& image, std::vector<float>& row, float* planes);

// The same in two parts, the first of which need not be repeated from epoch to epoch. `decode_to_keep` gives what every
// epoch shows, or where that is drawn all of the image, at the fraction that the smallest part needs; so drawn parts
// may differ a little from those that show_image() decodes alone.
Status decode_to_keep(llvm::StringRef where, llvm::ArrayRef<uint8_t> bytes, const ImageTransforms& transforms,
                      ImageSize size, Image& into);
void show_kept(const Image& kept, const ImageTransforms& transforms, ImageSize size, const RandomStream& random,
               std::vector<float>& row, float* planes);

// How the rows of one batch are mixed.
struct BatchMix {
  double share = 1;  // of the row's own image and label; the rest is its partner's
  bool is_cut = false;
  Region cut;  // of CutMix, as shares of the image: what comes from the partner
};
BatchMix choose_mix(const ImageTransforms& transforms, const RandomStream& random);

// The part of an image of this size that the transforms show.
Region choose_region(ImageSize image, const ImageTransforms& transforms, ImageSize shown, const RandomStream& random);

}  // namespace plimsoll
