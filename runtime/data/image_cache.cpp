#include "runtime/data/image_cache.h"

#include "ir/support/units.h"

namespace plimsoll {

ImageCache::ImageCache(int64_t images, int64_t bytes) : limit_(bytes), held_(static_cast<size_t>(images)) {
  bytes_ = static_cast<int64_t>(held_.size() * sizeof(held_[0]));
}

std::shared_ptr<const Image> ImageCache::find(size_t image) {
  std::lock_guard lock(mutex_);
  ++asked_;
  found_ += held_[image] != nullptr;
  return held_[image];
}

void ImageCache::add(size_t image, const Image& decoded) {
  const auto bytes = static_cast<int64_t>(decoded.pixels.size() + sizeof(Image));
  {
    std::lock_guard lock(mutex_);
    if (held_[image] || bytes_ + bytes > limit_) return;
    bytes_ += bytes;
  }
  // A vector that is copied has no bytes to spare.
  auto copy = std::make_shared<const Image>(decoded);
  std::lock_guard lock(mutex_);
  count_ += held_[image] == nullptr;
  held_[image] = std::move(copy);
}

std::string ImageCache::describe() const {
  std::lock_guard lock(mutex_);
  const double share = asked_ > 0 ? static_cast<double>(found_) / static_cast<double>(asked_) : 0;
  return "the cache held " + format_count(count_) + " of " + format_count(static_cast<int64_t>(held_.size())) +
         " images in " + format_bytes(bytes_) + " of " + format_bytes(limit_) + ", and gave " + format_share(share) +
         " of all that were read";
}

}  // namespace plimsoll
