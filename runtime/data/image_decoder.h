#pragma once

// Decodes many JPEGs at once, beside the threads that read: a GPU, where there is one.

#include "runtime/data/image.h"

namespace plimsoll {

struct JpegJob {
  llvm::ArrayRef<uint8_t> bytes;  // of a JPEG that size_of_plain_jpeg() knows; empty: there is nothing to do
  ImageSize size;                 // of the file's image
  Region region;                  // what is shown, in its pixels
  bool mirrored = false;
  float* planes = nullptr;  // [3][height][width] of the size shown, in [0, 1]: what sample_image() writes
  bool is_done = false;     // set by the decoder; what it leaves undone is decoded by the CPU
};

class ImageDecoder {
 public:
  virtual ~ImageDecoder() = default;

  // Waits for the images. Any thread may call it. Which images it leaves undone depends on the jobs alone, so that a
  // run is the same every time. An error is of the machine; a bad image is left undone.
  virtual Status decode(ImageSize shown, llvm::MutableArrayRef<JpegJob> jobs) = 0;
  // What suits it: images of one call, and threads that call.
  virtual int images_at_once() const = 0;
  virtual int threads() const = 0;
};

}  // namespace plimsoll
