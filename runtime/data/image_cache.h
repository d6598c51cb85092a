#pragma once

// Decoded images in host memory, so that later epochs do not decode them again.

#include "runtime/data/image.h"

#include <atomic>
#include <memory>
#include <mutex>

namespace plimsoll {

// Holds the images that come first until its bytes are used up and lets none go: an epoch reads each image once, so
// that replacing one by another would gain nothing. Any thread may use it.
class ImageCache {
 public:
  ImageCache(int64_t images, int64_t bytes);

  // Null: it is not held.
  std::shared_ptr<const Image> find(size_t image);
  // Copies the image, if there is room.
  void add(size_t image, const Image& decoded);

  // "the cache held 1,400 of 1,797 images in 250 MiB of 256 MiB, and gave 70 % of all that were read"
  std::string describe() const;

 private:
  const int64_t limit_;
  mutable std::mutex mutex_;  // guards all that follows
  std::vector<std::shared_ptr<const Image>> held_;
  int64_t count_ = 0, bytes_;
  int64_t found_ = 0, asked_ = 0;
};

}  // namespace plimsoll
