#include "runtime/data/image.h"

#include <png.h>

namespace plimsoll {
namespace {

// Transparency is left out, as Pillow's convert("RGB") does.
void drop_alpha(std::vector<uint8_t>& pixels) {
  size_t out = 0;
  for (size_t at = 0; at + 4 <= pixels.size(); at += 4, out += 3)
    for (size_t c = 0; c < 3; ++c) pixels[out + c] = pixels[at + c];
  pixels.resize(out);
}

}  // namespace

Status decode_png(llvm::StringRef where, llvm::ArrayRef<uint8_t> bytes, const DecodeRequest& request, Image& into) {
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) != 0) {
    if (int64_t{png.width} * png.height > max_image_pixels) {
      png_image_free(&png);
      return model_error(where + ": has more than " + llvm::Twine(max_image_pixels) + " pixels");
    }
    const bool has_alpha = (png.format & PNG_FORMAT_FLAG_ALPHA) != 0;
    png.format = has_alpha ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB;
    into.size = into.original = {png.width, png.height};
    into.region = request.choose(into.size);
    into.pixels.resize(PNG_IMAGE_SIZE(png));
    if (png_image_finish_read(&png, nullptr, into.pixels.data(), 0, nullptr) != 0) {
      if (has_alpha) drop_alpha(into.pixels);
      return Status::success();
    }
  }
  const std::string why = png.message;
  png_image_free(&png);
  return model_error(where + ": " + why);
}

}  // namespace plimsoll
