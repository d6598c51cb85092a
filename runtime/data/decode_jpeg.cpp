#include "runtime/data/image.h"

#include <csetjmp>
#include <cstdio>
// jpeglib.h needs cstdio's types.
#include <jpeglib.h>
#include <cmath>

// Decodes through libjpeg-turbo no more than is shown: at 1/2, 1/4 or 1/8 of the size, for which the library has scaled
// inverse DCTs with vector instructions, and only the rows and columns around the region.

namespace plimsoll {
namespace {

// libjpeg reports errors by a function that must not return.
struct ErrorExit {
  jpeg_error_mgr base;
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave(j_common_ptr codec) {
  auto* exit = reinterpret_cast<ErrorExit*>(codec->err);
  codec->err->format_message(codec, exit->text);
  std::longjmp(exit->back, 1);
}

void say_nothing(j_common_ptr) {}

// The largest of 1, 2, 4, 8 that leaves the region at least as large as it is shown.
unsigned denominator_for(const Region& region, ImageSize shown) {
  unsigned denominator = 1;
  while (denominator < 8 && region.width / (2 * denominator) >= static_cast<double>(shown.width) &&
         region.height / (2 * denominator) >= static_cast<double>(shown.height))
    denominator *= 2;
  return denominator;
}

struct Span {
  JDIMENSION first, count;
};

// The pixels that the filter reads for the region, of `pixels` there are.
Span pixels_around(double start, double length, int64_t shown, JDIMENSION pixels) {
  const double support = std::max(length / static_cast<double>(shown), 1.0) + 1;
  const auto first = static_cast<JDIMENSION>(std::max(0.0, std::floor(start - support)));
  const auto last = static_cast<JDIMENSION>(std::min(static_cast<double>(pixels), std::ceil(start + length + support)));
  return {std::min(first, pixels - 1), std::max<JDIMENSION>(last, first + 1) - first};
}

// Inverted CMYK, as Adobe's programs write it, in place.
void to_rgb(std::vector<uint8_t>& pixels) {
  size_t out = 0;
  for (size_t at = 0; at + 4 <= pixels.size(); at += 4, out += 3)
    for (size_t c = 0; c < 3; ++c) pixels[out + c] = static_cast<uint8_t>(pixels[at + c] * pixels[at + 3] / 255);
  pixels.resize(out);
}

bool is_too_large(const jpeg_decompress_struct& codec) {
  return int64_t{codec.image_width} * codec.image_height > max_image_pixels;
}

// Only plain data here: libjpeg's errors jump over the frames between.
void decode(jpeg_decompress_struct& codec, const DecodeRequest& request, Image& into) {
  into.original = {codec.image_width, codec.image_height};
  const Region whole = request.choose(into.original);
  codec.scale_num = 1;
  codec.scale_denom = request.at_fraction ? denominator_for(whole, request.shown) : 1;
  const bool is_cmyk = codec.jpeg_color_space == JCS_CMYK || codec.jpeg_color_space == JCS_YCCK;
  codec.out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&codec);
  const double fraction_x = static_cast<double>(codec.output_width) / codec.image_width;
  const double fraction_y = static_cast<double>(codec.output_height) / codec.image_height;
  const Region wanted{whole.x * fraction_x, whole.y * fraction_y, whole.width * fraction_x, whole.height * fraction_y};
  Span columns{0, codec.output_width}, rows{0, codec.output_height};
  if (!request.keeps_all) {
    columns = pixels_around(wanted.x, wanted.width, request.shown.width, codec.output_width);
    rows = pixels_around(wanted.y, wanted.height, request.shown.height, codec.output_height);
  }
  if (columns.count < codec.output_width)
    jpeg_crop_scanline(&codec, &columns.first, &columns.count);
  else
    columns.first = 0;
  const size_t row_bytes = size_t{codec.output_width} * static_cast<size_t>(codec.output_components);
  into.pixels.resize(rows.count * row_bytes);
  if (rows.first > 0) jpeg_skip_scanlines(&codec, rows.first);
  for (JDIMENSION read = 0; read < rows.count;) {
    JSAMPROW row = into.pixels.data() + read * row_bytes;
    read += jpeg_read_scanlines(&codec, &row, 1);
  }
  into.size = {codec.output_width, rows.count};
  into.region = {wanted.x - columns.first, wanted.y - rows.first, wanted.width, wanted.height};
  if (is_cmyk) to_rgb(into.pixels);
}

}  // namespace

Status decode_jpeg(llvm::StringRef where, llvm::ArrayRef<uint8_t> bytes, const DecodeRequest& request, Image& into) {
  jpeg_decompress_struct codec;
  ErrorExit errors;
  codec.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = leave;
  errors.base.output_message = say_nothing;
  const bool failed = setjmp(errors.back) != 0;
  if (!failed) {
    jpeg_create_decompress(&codec);
    jpeg_mem_src(&codec, bytes.data(), bytes.size());
    jpeg_read_header(&codec, TRUE);
    if (!is_too_large(codec)) decode(codec, request, into);
  }
  const bool too_large = !failed && is_too_large(codec);
  jpeg_destroy_decompress(&codec);
  if (too_large) return model_error(where + ": has more than " + llvm::Twine(max_image_pixels) + " pixels");
  return failed ? model_error(where + ": " + errors.text) : Status::success();
}

}  // namespace plimsoll
