#include "runtime/data/image_files.h"

#include "ir/support/units.h"
#include "runtime/data/image_cache.h"
#include "runtime/data/image_decoder.h"
#include "runtime/data/input_file.h"
#include "runtime/data/jpeg_header.h"
#include "runtime/data/match_inputs.h"

#include "llvm/ADT/StringMap.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

namespace plimsoll {
namespace {

enum class Feed : uint8_t { PlanarImage, InterleavedImage, Class, OneHot };

bool is_channels(int64_t count) { return count == 1 || count == 3; }

bool is_image(Feed feed) { return feed == Feed::PlanarImage || feed == Feed::InterleavedImage; }

std::optional<Feed> feed_of(const InputSpec& input) {
  const llvm::ArrayRef<int64_t> shape = input.type.shape;
  const bool is_float_input = is_float(input.type.dtype);
  if (shape.size() == 4 && (is_float_input || input.type.dtype == DType::U8)) {
    if (is_channels(shape[1])) return Feed::PlanarImage;
    if (is_channels(shape[3])) return Feed::InterleavedImage;
  }
  if (shape.size() == 1 && is_integer(input.type.dtype)) return Feed::Class;
  if (shape.size() == 2 && is_float_input && holds_labels(input)) return Feed::OneHot;
  return std::nullopt;
}

class ImageFiles : public Dataset {
 public:
  ImageFiles(std::string path, ImageList list, llvm::StringMap<InputFile> shards, std::vector<Field> fields,
             std::vector<Feed> feeds, const ImageTransforms& transforms, int64_t cache_bytes,
             std::shared_ptr<ImageDecoder> decoder)
      : path_(std::move(path)),
        list_(std::move(list)),
        shards_(std::move(shards)),
        fields_(std::move(fields)),
        feeds_(std::move(feeds)),
        transforms_(transforms),
        decoder_(std::move(decoder)) {
    if (cache_bytes > 0) cache_ = std::make_unique<ImageCache>(samples() * image_fields(), cache_bytes);
  }

  int64_t samples() const override { return static_cast<int64_t>(list_.items.size()); }
  llvm::ArrayRef<Field> fields() const override { return fields_; }
  std::string where() const override { return path_; }
  std::string where_is(int64_t sample) const override { return list_.items[static_cast<size_t>(sample)].path; }
  bool is_computed() const override { return true; }

  Status read(int64_t sample, size_t field, const TensorView& into, const RandomStream& random,
              ReadBuffers& buffers) const override {
    const ImageItem& item = list_.items[static_cast<size_t>(sample)];
    if (feeds_[field] == Feed::Class || feeds_[field] == Feed::OneHot) return read_label(item, feeds_[field], into);
    return read_image(sample, field, into, random, buffers);
  }

  Status read_rows(size_t field, llvm::ArrayRef<SampleRow> rows, ReadBuffers& buffers) const override {
    return decoder_ && is_image(feeds_[field]) ? decode_rows(field, rows, buffers)
                                               : Dataset::read_rows(field, rows, buffers);
  }
  int64_t rows_together() const override { return decoder_ ? decoder_->images_at_once() : 1; }
  int threads_wanted() const override { return decoder_ ? decoder_->threads() : 0; }
  std::string describe_decoding() const override {
    if (!decoder_) return "";
    return "the GPU decoded " + format_count(decoded_there_) + " of " + format_count(decoded_there_ + decoded_here_) +
           " images" + (decoded_here_ > 0 ? ", the CPU those that are no plain JPEG or too large" : "");
  }

  std::string describe_cache() const override { return cache_ ? cache_->describe() : ""; }

  // Row i is mixed with row rows - 1 - i, which after shuffling is any other one.
  void mix(llvm::ArrayRef<TensorView> batch, const RandomStream& random) const override {
    const BatchMix mix = choose_mix(transforms_, random);
    if (mix.share == 1) return;
    for (size_t field = 0; field < batch.size(); ++field) {
      const Cut cut = mix.is_cut ? cut_of(mix.cut, field) : Cut();
      for (int64_t row = 0, other = batch[field].type.shape[0] - 1; row < other; ++row, --other) {
        const TensorView a = row_of(batch[field], row), b = row_of(batch[field], other);
        if (is_image(feeds_[field]) && mix.is_cut)
          swap_cut(cut, a, b);
        else
          blend(a, b, mix.is_cut ? 1 - cut_of(mix.cut, image_field()).share() : mix.share);
      }
    }
  }

 private:
  // A box of pixels, in the strides of an image's type.
  struct Cut {
    int64_t left = 0, top = 0, right = 0, bottom = 0, width = 1, height = 1, channels = 0;
    bool planar = true;
    double share() const {
      return static_cast<double>((right - left) * (bottom - top)) / static_cast<double>(width * height);
    }
    int64_t at(int64_t channel, int64_t y, int64_t x) const {
      return planar ? (channel * height + y) * width + x : (y * width + x) * channels + channel;
    }
  };

  size_t image_field() const {
    const auto found = llvm::find_if(feeds_, is_image);
    return static_cast<size_t>(found - feeds_.begin());
  }

  Cut cut_of(const Region& shares, size_t field) const {
    Cut cut;
    cut.planar = feeds_[field] != Feed::InterleavedImage;
    const llvm::ArrayRef<int64_t> shape = fields_[field].type.shape;
    if (shape.size() != 3) return cut;
    cut.channels = cut.planar ? shape[0] : shape[2];
    cut.height = cut.planar ? shape[1] : shape[0];
    cut.width = cut.planar ? shape[2] : shape[1];
    auto pixels = [](double share, int64_t size) { return std::lround(share * static_cast<double>(size)); };
    cut.left = pixels(shares.x, cut.width);
    cut.right = pixels(shares.x + shares.width, cut.width);
    cut.top = pixels(shares.y, cut.height);
    cut.bottom = pixels(shares.y + shares.height, cut.height);
    return cut;
  }

  static TensorView row_of(const TensorView& batch, int64_t row) {
    const Type type(batch.type.dtype, llvm::ArrayRef<int64_t>(batch.type.shape).drop_front());
    return {type, batch.as<char>() + row * type.bytes()};
  }

  static void swap_cut(const Cut& cut, const TensorView& a, const TensorView& b) {
    for (int64_t c = 0; c < cut.channels; ++c)
      for (int64_t y = cut.top; y < cut.bottom; ++y)
        for (int64_t x = cut.left; x < cut.right; ++x) {
          const double own = a.get(cut.at(c, y, x));
          a.set(cut.at(c, y, x), b.get(cut.at(c, y, x)));
          b.set(cut.at(c, y, x), own);
        }
  }

  static void blend(const TensorView& a, const TensorView& b, double share) {
    const int64_t count = a.elements();
    if (a.type.dtype == DType::F32) return blend_floats(a.as<float>(), b.as<float>(), static_cast<float>(share), count);
    for (int64_t i = 0; i < count; ++i) {
      const double own = a.get(i), other = b.get(i);
      a.set(i, share * own + (1 - share) * other);
      b.set(i, share * other + (1 - share) * own);
    }
  }

  static void blend_floats(float* a, float* b, float share, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const float own = a[i], other = b[i];
      a[i] = share * own + (1 - share) * other;
      b[i] = share * other + (1 - share) * own;
    }
  }

  Status read_bytes(const ImageItem& item, std::vector<uint8_t>& bytes) const {
    if (item.bytes >= 0) {
      bytes.resize(static_cast<size_t>(item.bytes));
      return shards_.find(item.path)->second.read_at(item.offset, bytes.data(), item.bytes);
    }
    Result<InputFile> file = InputFile::open(item.path);
    if (!file) return file.takeError();
    bytes.resize(static_cast<size_t>(file->bytes()));
    return file->read_at(0, bytes.data(), file->bytes());
  }

  int64_t image_fields() const { return llvm::count_if(feeds_, is_image); }

  // Through the cache, where there is one.
  Status show(int64_t sample, size_t field, ImageSize size, const RandomStream& random, ReadBuffers& buffers,
              float* planes) const {
    const ImageItem& item = list_.items[static_cast<size_t>(sample)];
    if (!cache_) {
      if (Status s = read_bytes(item, buffers.file)) return s;
      return show_image(item.path, buffers.file, transforms_, size, random, buffers.image, buffers.row, planes);
    }
    const auto before = std::count_if(feeds_.begin(), feeds_.begin() + static_cast<std::ptrdiff_t>(field), is_image);
    const auto key = static_cast<size_t>(sample * image_fields() + before);
    const std::shared_ptr<const Image> kept = cache_->find(key);
    if (!kept) {
      if (Status s = read_bytes(item, buffers.file)) return s;
      if (Status s = decode_to_keep(item.path, buffers.file, transforms_, size, buffers.image)) return s;
      cache_->add(key, buffers.image);
    }
    show_kept(kept ? *kept : buffers.image, transforms_, size, random, buffers.row, planes);
    return Status::success();
  }

  // How an input of images is laid out.
  struct Shown {
    bool planar, in_place;  // in_place: the input itself is three planes of f32
    int64_t channels;
    ImageSize size;
    Shown(Feed feed, const Type& type) : planar(feed == Feed::PlanarImage), channels(type.shape[planar ? 0 : 2]) {
      size = {type.shape[planar ? 2 : 1], type.shape[planar ? 1 : 0]};
      in_place = planar && channels == 3 && type.dtype == DType::F32;
    }
    int64_t pixels() const { return size.width * size.height; }
    size_t floats() const { return static_cast<size_t>(3 * pixels()); }
  };

  Status read_image(int64_t sample, size_t field, const TensorView& into, const RandomStream& random,
                    ReadBuffers& buffers) const {
    const Shown shown(feeds_[field], into.type);
    if (!shown.in_place) buffers.planes.resize(shown.floats());
    float* planes = shown.in_place ? into.as<float>() : buffers.planes.data();
    if (Status s = show(sample, field, shown.size, random, buffers, planes)) return s;
    write_planes(shown, planes, into);
    return Status::success();
  }

  // The decoder gives the shown part of each image; what it leaves undone, and all that follows, is done here.
  Status decode_rows(size_t field, llvm::ArrayRef<SampleRow> rows, ReadBuffers& buffers) const {
    const Shown shown(feeds_[field], rows.front().into.type);
    if (!shown.in_place) buffers.planes.resize(rows.size() * shown.floats());
    if (buffers.files.size() < rows.size()) buffers.files.resize(rows.size());
    buffers.jobs.assign(rows.size(), JpegJob());
    for (size_t i = 0; i < rows.size(); ++i) {
      JpegJob& job = buffers.jobs[i];
      if (Status s = read_bytes(item_of(rows[i]), buffers.files[i])) return s;
      job.planes = shown.in_place ? rows[i].into.as<float>() : buffers.planes.data() + i * shown.floats();
      const std::optional<ImageSize> size = size_of_plain_jpeg(buffers.files[i]);
      if (!size) continue;
      job.bytes = buffers.files[i];
      job.size = *size;
      job.region = choose_region(*size, transforms_, shown.size, rows[i].random);
      job.mirrored = is_mirrored(transforms_, rows[i].random);
    }
    if (Status s = decoder_->decode(shown.size, buffers.jobs)) return s;
    for (size_t i = 0; i < rows.size(); ++i) {
      const JpegJob& job = buffers.jobs[i];
      if (job.is_done)
        change_colors(transforms_, rows[i].random, shown.pixels(), job.planes);
      else if (Status s = show_image(item_of(rows[i]).path, buffers.files[i], transforms_, shown.size, rows[i].random,
                                     buffers.image, buffers.row, job.planes))
        return s;
      ++(job.is_done ? decoded_there_ : decoded_here_);
      write_planes(shown, job.planes, rows[i].into);
    }
    return Status::success();
  }

  const ImageItem& item_of(const SampleRow& row) const { return list_.items[static_cast<size_t>(row.sample)]; }

  static void write_planes(const Shown& shown, const float* planes, const TensorView& into) {
    if (shown.in_place) return;
    const int64_t pixels = shown.pixels();
    for (int64_t c = 0; c < shown.channels; ++c)
      for (int64_t i = 0; i < pixels; ++i) {
        const float value = shown.channels == 3 ? planes[c * pixels + i] : gray(planes, pixels, i);
        write(into, shown.planar ? c * pixels + i : i * shown.channels + c, value);
      }
  }

  static float gray(const float* planes, int64_t pixels, int64_t i) {
    return 0.299F * planes[i] + 0.587F * planes[pixels + i] + 0.114F * planes[2 * pixels + i];
  }

  static void write(const TensorView& into, int64_t at, float value) {
    if (into.type.dtype == DType::U8)
      into.set_int(at, static_cast<int64_t>(255 * std::clamp(value, 0.0F, 1.0F) + 0.5F));
    else
      into.set(at, value);
  }

  Status read_label(const ImageItem& item, Feed feed, const TensorView& into) const {
    if (item.label < 0) return model_error(item.path + ": an image has no label");
    if (feed == Feed::Class) {
      into.set_int(0, item.label);
      return Status::success();
    }
    if (item.label >= into.elements())
      return model_error(item.path + ": has label " + llvm::Twine(item.label) + ", the plan has " +
                         llvm::Twine(into.elements()) + " classes");
    for (int64_t i = 0; i < into.elements(); ++i) into.set(i, i == item.label ? 1 : 0);
    return Status::success();
  }

  std::string path_;
  ImageList list_;
  llvm::StringMap<InputFile> shards_;  // by their paths
  std::vector<Field> fields_;
  std::vector<Feed> feeds_;  // of each field
  ImageTransforms transforms_;
  std::unique_ptr<ImageCache> cache_;      // null: every epoch decodes
  std::shared_ptr<ImageDecoder> decoder_;  // null: each image is decoded here
  mutable std::atomic<int64_t> decoded_there_ = 0, decoded_here_ = 0;
};

Result<llvm::StringMap<InputFile>> open_shards(const ImageList& list) {
  llvm::StringMap<InputFile> shards;
  for (const ImageItem& item : list.items) {
    if (item.bytes < 0 || shards.count(item.path) > 0) continue;
    Result<InputFile> file = InputFile::open(item.path);
    if (!file) return file.takeError();
    shards.try_emplace(item.path, std::move(*file));
  }
  return shards;
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_images(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs,
                                             const ImageTransforms& transforms, int64_t cache_bytes,
                                             std::shared_ptr<ImageDecoder> decoder) {
  std::vector<Field> fields;
  std::vector<Feed> feeds;
  for (const InputSpec& input : inputs) {
    const std::optional<Feed> feed = input.whole ? std::nullopt : feed_of(input);
    if (!feed)
      return model_error(path +
                         ": images feed inputs of [rows, 3, height, width], or with the channels last, and labels "
                         "of [rows] or [rows, classes]; '" +
                         input.name + "' is " + to_string(input.type));
    fields.push_back({input.name, Type(input.type.dtype, llvm::ArrayRef<int64_t>(input.type.shape).drop_front())});
    feeds.push_back(*feed);
  }
  if ((transforms.mixup > 0 || transforms.cutmix > 0) &&
      (!llvm::is_contained(feeds, Feed::OneHot) || llvm::is_contained(feeds, Feed::Class)))
    return usage_error(path +
                       ": mixup and cutmix share labels, so that the model needs labels of [rows, classes] floats");
  Result<ImageList> list = list_images(path);
  if (!list) return list.takeError();
  Result<llvm::StringMap<InputFile>> shards = open_shards(*list);
  if (!shards) return shards.takeError();
  return std::make_unique<ImageFiles>(path.str(), std::move(*list), std::move(*shards), std::move(fields),
                                      std::move(feeds), transforms, cache_bytes, std::move(decoder));
}

}  // namespace plimsoll
