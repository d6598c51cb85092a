#pragma once

// Images as the data sets decode them, and the part of one that a sample shows.

#include "ir/support/status.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <cstdint>
#include <vector>

namespace plimsoll {

// A rectangle in pixels, whose edges may lie within pixels.
struct Region {
  double x = 0, y = 0, width = 0, height = 0;
};

struct ImageSize {
  int64_t width = 0, height = 0;
};

// Which part of an image of this size is wanted.
using ChooseRegion = llvm::function_ref<Region(ImageSize)>;

// RGB, interleaved rows, with the part of the image that was decoded.
struct Image {
  ImageSize original;           // of the file's image
  ImageSize size;               // of what was decoded
  std::vector<uint8_t> pixels;  // [height, width, 3]; the vector's storage is reused from image to image
  Region region;                // the wanted one, in these pixels
};

// What of the image is wanted and how small it will be shown; a decoder may leave the rest out and decode at a fraction
// that is at least as large as shown.
struct DecodeRequest {
  ChooseRegion choose;
  ImageSize shown;
  bool at_fraction = true;
  bool keeps_all = false;  // decodes all of the image, at the fraction that the region is wanted in
};

// The formats that this build was configured with decode; others are refused with the package that lacks. Errors are of
// the file: `where` names it.
Status decode_jpeg(llvm::StringRef where, llvm::ArrayRef<uint8_t> bytes, const DecodeRequest& request, Image& into);
Status decode_png(llvm::StringRef where, llvm::ArrayRef<uint8_t> bytes, const DecodeRequest& request, Image& into);
Status decode_image(llvm::StringRef where, llvm::ArrayRef<uint8_t> bytes, const DecodeRequest& request, Image& into);

bool is_image_name(llvm::StringRef name);  // by its ending

// More pixels than any camera's: a header that claims them is damaged, or wants all memory.
inline constexpr int64_t max_image_pixels = int64_t{1} << 28;

// Scales the region, in the image's pixels, to `size`: planes[c][y][x] in [0, 1], c of red, green, blue. Where the
// region is larger it averages as Pillow does, with a triangle as wide as two shown pixels. `row` is room for one row.
void sample_image(const Image& image, const Region& region, ImageSize size, bool mirrored, std::vector<float>& row,
                  float* planes);

}  // namespace plimsoll
