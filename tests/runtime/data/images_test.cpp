#include "runtime/data/batch_source.h"
#include "runtime/data/image_decoder.h"
#include "runtime/data/image_files.h"
#include "runtime/data/jpeg_header.h"
#include "runtime/data/tar_file.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/raw_ostream.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
// jpeglib.h needs cstdio's types.
#include <jpeglib.h>
#include <png.h>

using namespace plimsoll;

namespace {

// Red grows to the right, green downwards, and blue is the image's own.
struct Picture {
  int width, height, blue;
  std::vector<uint8_t> pixels() const {
    std::vector<uint8_t> all;
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x) {
        all.push_back(static_cast<uint8_t>(255 * x / width));
        all.push_back(static_cast<uint8_t>(255 * y / height));
        all.push_back(static_cast<uint8_t>(blue));
      }
    return all;
  }
};

std::string png_of(const Picture& picture) {
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(picture.width);
  png.height = static_cast<png_uint_32>(picture.height);
  png.format = PNG_FORMAT_RGB;
  const std::vector<uint8_t> pixels = picture.pixels();
  png_alloc_size_t bytes = 0;
  REQUIRE(png_image_write_to_memory(&png, nullptr, &bytes, 0, pixels.data(), 0, nullptr));
  std::string out(bytes, '\0');
  REQUIRE(png_image_write_to_memory(&png, out.data(), &bytes, 0, pixels.data(), 0, nullptr));
  return out;
}

std::string jpeg_of(
    const Picture& picture, llvm::function_ref<void(j_compress_ptr)> change = [](j_compress_ptr) {}) {
  jpeg_compress_struct codec;
  jpeg_error_mgr errors;
  codec.err = jpeg_std_error(&errors);
  jpeg_create_compress(&codec);
  unsigned char* bytes = nullptr;
  unsigned long count = 0;
  jpeg_mem_dest(&codec, &bytes, &count);
  codec.image_width = static_cast<JDIMENSION>(picture.width);
  codec.image_height = static_cast<JDIMENSION>(picture.height);
  codec.input_components = 3;
  codec.in_color_space = JCS_RGB;
  jpeg_set_defaults(&codec);
  jpeg_set_quality(&codec, 95, TRUE);
  change(&codec);
  jpeg_start_compress(&codec, TRUE);
  std::vector<uint8_t> pixels = picture.pixels();
  for (int y = 0; y < picture.height; ++y) {
    JSAMPROW row = pixels.data() + static_cast<ptrdiff_t>(y) * 3 * picture.width;
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
  std::string out(reinterpret_cast<char*>(bytes), count);
  jpeg_destroy_compress(&codec);
  std::free(bytes);
  return out;
}

class Folder {
 public:
  Folder() { REQUIRE_FALSE(llvm::sys::fs::createUniqueDirectory("images", path_)); }
  ~Folder() { llvm::sys::fs::remove_directories(path_); }
  std::string path() const { return path_.str().str(); }
  void add(const std::string& name, llvm::StringRef content) const {
    const std::string file = path() + "/" + name;
    REQUIRE_FALSE(llvm::sys::fs::create_directories(file.substr(0, file.rfind('/'))));
    std::error_code failure;
    llvm::raw_fd_ostream(file, failure) << content;
    REQUIRE_FALSE(failure);
  }

 private:
  llvm::SmallString<64> path_;
};

std::string tar_member(const std::string& name, const std::string& content) {
  std::string header(512, '\0');
  std::memcpy(header.data(), name.data(), name.size());
  std::snprintf(header.data() + 124, 12, "%011zo", content.size());
  header[156] = '0';
  std::memcpy(header.data() + 257, "ustar\00000", 8);
  std::memset(header.data() + 148, ' ', 8);
  unsigned sum = 0;
  for (char c : header) sum += static_cast<uint8_t>(c);
  std::snprintf(header.data() + 148, 8, "%06o", sum);
  return header + content + std::string((512 - content.size() % 512) % 512, '\0');
}

struct Batch {
  Tensor images, labels;
};

Batch first_batch(const std::string& path, int64_t rows, int64_t size, const DataOptions& options) {
  Batch batch{Tensor(Type(DType::F32, {rows, 3, size, size})), Tensor(Type(DType::I64, {rows}))};
  const auto source =
      llvm::cantFail(open_data(path, {{"pixels", batch.images.type()}, {"labels", batch.labels.type()}}, options));
  llvm::cantFail(source->next({batch.images.view(), batch.labels.view()}));
  return batch;
}

// The largest difference from the picture's colours at the middles of the shown pixels, of a square that shows the part
// from `left` and `top` on with `share` of each side.
double distance(const Tensor& images, int64_t row, int64_t size, double left, double top, double share, double blue) {
  double largest = 0;
  for (int64_t y = 0; y < size; ++y)
    for (int64_t x = 0; x < size; ++x) {
      const int64_t plane = size * size, at = row * 3 * plane + y * size + x;
      const auto across = left + share * (static_cast<double>(x) + 0.5) / static_cast<double>(size),
                 down = top + share * (static_cast<double>(y) + 0.5) / static_cast<double>(size);
      largest = std::max({largest, std::abs(images.get(at) - across), std::abs(images.get(at + plane) - down),
                          std::abs(images.get(at + 2 * plane) - blue)});
    }
  return largest;
}

// Decodes every pixel, as a GPU does, and no image whose width is odd.
class EvenDecoder : public ImageDecoder {
 public:
  Status decode(ImageSize shown, llvm::MutableArrayRef<JpegJob> jobs) override {
    CHECK(jobs.size() <= 4);
    std::vector<float> row;
    Image image;
    for (JpegJob& job : jobs) {
      if (job.bytes.empty() || job.size.width % 2 == 1) continue;
      llvm::cantFail(decode_jpeg("jpeg", job.bytes, {[&](ImageSize) { return job.region; }, shown, false}, image));
      sample_image(image, image.region, shown, job.mirrored, row, job.planes);
      job.is_done = true;
    }
    return Status::success();
  }
  int images_at_once() const override { return 4; }
  int threads() const override { return 2; }
};

std::optional<ImageSize> plain_size(const std::string& jpeg) {
  return size_of_plain_jpeg({reinterpret_cast<const uint8_t*>(jpeg.data()), jpeg.size()});
}

constexpr double rounding = 0.03;  // of JPEG, and half a source pixel of the smallest picture

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("images: a folder's subfolders are the classes, and pixels are where they belong") {
    const Folder folder;
    folder.add("cat/a.png", png_of({64, 64, 51}));
    folder.add("dog/b.jpg", jpeg_of({160, 160, 102}));
    folder.add("dog/c.JPEG", jpeg_of({96, 96, 153}));
    folder.add("notes.txt", "no image");
    for (const bool at_fraction : {true, false}) {
      ImageTransforms transforms;
      transforms.decode_at_fraction = at_fraction;
      const Batch batch = first_batch(folder.path(), 3, 32, {.shuffle = false, .transforms = transforms});
      CHECK(batch.labels == Tensor::of_ints({0, 1, 1}));
      CHECK(distance(batch.images, 0, 32, 0, 0, 1, 0.2) < rounding);
      CHECK(distance(batch.images, 1, 32, 0, 0, 1, 0.4) < rounding);
      CHECK(distance(batch.images, 2, 32, 0, 0, 1, 0.6) < rounding);
    }
  }

  // 400 x 200 scales to 80 x 40, of which 32 x 32 in the middle are shown: a share of 0.4 across, 0.8 down.
  TEST_CASE("images: the shorter side is scaled and the center cropped, also by the decoder") {
    const Folder folder;
    folder.add("a.jpg", jpeg_of({400, 200, 0}));
    folder.add("labels.json", R"({"a.jpg": 7})");
    ImageTransforms transforms;
    transforms.resize = 40;
    for (const bool at_fraction : {true, false}) {
      transforms.decode_at_fraction = at_fraction;
      const Batch batch = first_batch(folder.path(), 1, 32, {.transforms = transforms});
      CHECK(batch.labels.get_int(0) == 7);
      CHECK(std::abs(batch.images.get(0) - (0.3 + 0.4 * 0.5 / 32)) < rounding);
      CHECK(std::abs(batch.images.get(31) - (0.3 + 0.4 * 31.5 / 32)) < rounding);
      CHECK(std::abs(batch.images.get(32 * 32) - (0.1 + 0.8 * 0.5 / 32)) < rounding);
      CHECK(std::abs(batch.images.get(2 * 32 * 32 - 1) - (0.1 + 0.8 * 31.5 / 32)) < rounding);
    }
  }

  TEST_CASE("images: flips mirror, and values are normalised by channel") {
    const Folder folder;
    folder.add("x/a.png", png_of({32, 32, 255}));
    ImageTransforms transforms;
    transforms.flip = 1;
    transforms.mean = {0.5, 0, 0.5};
    transforms.deviation = {0.25, 1, 0.1};
    const Batch batch = first_batch(folder.path(), 1, 32, {.transforms = transforms});
    CHECK(std::abs(batch.images.get(0) - (31.0 / 32 - 0.5) / 0.25) < 4 * rounding);
    CHECK(std::abs(batch.images.get(31) - (0 - 0.5) / 0.25) < 4 * rounding);
    CHECK(std::abs(batch.images.get(2 * 32 * 32) - 5) < 1e-4);
  }

  TEST_CASE("images: a random crop keeps within its scale and its ratio, and differs from draw to draw") {
    ImageTransforms transforms;
    transforms.crop = Crop::RandomResized;
    double last_x = -1;
    for (int64_t sample = 0; sample < 100; ++sample) {
      const Region region = choose_region({500, 375}, transforms, {224, 224}, {1, 0, sample});
      const double area = region.width * region.height / (500 * 375), ratio = region.width / region.height;
      CHECK(area > 0.07);
      CHECK(area <= 1);
      CHECK(ratio > 0.74);
      CHECK(ratio < 1.35);
      CHECK(region.x >= 0);
      CHECK(region.x + region.width <= 500);
      CHECK(region.y + region.height <= 375);
      CHECK((region.x != last_x || region.x == 0));
      last_x = region.x;
    }
  }

  TEST_CASE("images: the cache gives what was decoded in the first epoch, and transforms are drawn anew") {
    const Folder folder;
    folder.add("x/a.png", png_of({64, 48, 51}));
    folder.add("x/b.jpg", jpeg_of({160, 120, 102}));
    ImageTransforms transforms;
    const Batch plain = first_batch(folder.path(), 2, 32, {.transforms = transforms});
    for (const Crop crop : {Crop::Center, Crop::RandomResized}) {
      transforms.crop = crop;
      Batch batch{Tensor(plain.images.type()), Tensor(plain.labels.type())};
      const std::vector<InputSpec> specs = {{"pixels", batch.images.type()}, {"labels", batch.labels.type()}};
      const DataOptions options{.transforms = transforms, .cache_bytes = 1 << 20, .threads = 1};
      const auto source = llvm::cantFail(open_data(folder.path(), specs, options));
      llvm::cantFail(source->next({batch.images.view(), batch.labels.view()}));
      CHECK((batch.images == plain.images) == (crop == Crop::Center));
      REQUIRE_FALSE(llvm::sys::fs::rename(folder.path() + "/x", folder.path() + "/y"));
      const Batch first{Tensor(batch.images.type(), batch.images.data()), Tensor(batch.labels.type())};
      for (int epoch = 0; epoch < 8; ++epoch) {
        llvm::cantFail(source->next({batch.images.view(), batch.labels.view()}));
        CHECK((batch.images == first.images) == (crop == Crop::Center));
      }
      CHECK(source->describe_cache().find("the cache held 2 of 2 images") == 0);
      REQUIRE_FALSE(llvm::sys::fs::rename(folder.path() + "/y", folder.path() + "/x"));
    }
  }

  // The PNG takes 9,216 bytes, the JPEG more than is left; what is shown does not depend on that.
  TEST_CASE("images: the cache takes no more bytes than it may") {
    const Folder folder;
    folder.add("x/a.png", png_of({64, 48, 51}));
    folder.add("x/b.png", png_of({160, 120, 102}));
    ImageTransforms transforms;
    transforms.crop = Crop::RandomResized;
    DataOptions options{.transforms = transforms, .cache_bytes = 10000, .threads = 1};
    const Batch small = first_batch(folder.path(), 2, 32, options);
    options.cache_bytes = 1 << 20;
    CHECK(small.images == first_batch(folder.path(), 2, 32, options).images);
    options.cache_bytes = 10000;
    const auto source = llvm::cantFail(
        open_data(folder.path(), {{"pixels", small.images.type()}, {"labels", small.labels.type()}}, options));
    for (int epoch = 0; epoch < 8; ++epoch) llvm::cantFail(source->next({small.images.view(), small.labels.view()}));
    CHECK(source->describe_cache().find("the cache held 1 of 2 images in 9.") == 0);
  }

  // Blue and the classes are the pictures' own: they are mixed by the same share.
  TEST_CASE("images: mixup and CutMix share images and labels alike") {
    const Folder folder;
    folder.add("x/a.png", png_of({32, 32, 0}));
    folder.add("y/b.png", png_of({32, 32, 255}));
    const Type pixels(DType::F32, {2, 3, 32, 32}), classes(DType::F32, {2, 2});
    for (const bool is_cut : {true, false}) {
      ImageTransforms transforms;
      (is_cut ? transforms.cutmix : transforms.mixup) = 1;
      const auto source = llvm::cantFail(
          open_data(folder.path(), {{"pixels", pixels}, {"labels", classes}}, {.transforms = transforms}));
      Tensor images(pixels), labels(classes);
      double least = 1;
      for (int batch = 0; batch < 20; ++batch) {
        llvm::cantFail(source->next({images.view(), labels.view()}));
        for (int64_t row = 0; row < 2; ++row) {
          double blue = 0;
          for (int64_t i = 0; i < 32 * 32; ++i) blue += images.get((3 * row + 2) * 32 * 32 + i) / (32 * 32);
          CHECK(std::abs(labels.get(2 * row) + labels.get(2 * row + 1) - 1) < 1e-5);
          CHECK(std::abs(labels.get(2 * row + 1) - blue) < 1e-4);
          least = std::min(least, std::max(labels.get(2 * row), labels.get(2 * row + 1)));
        }
      }
      CHECK(least < 0.8);
    }
    auto refused = open_data(folder.path(), {{"pixels", pixels}, {"labels", Type(DType::I64, {2})}},
                             {.transforms = ImageTransforms{.mixup = 1}});
    REQUIRE_FALSE(bool(refused));
    CHECK(take_diag(refused.takeError()).text().find("labels of [rows, classes]") != std::string::npos);
  }

  TEST_CASE("images: tar shards have an image and a class per key") {
    const Folder folder;
    folder.add("0.tar", tar_member("a/1.jpg", jpeg_of({48, 48, 0})) + tar_member("a/1.cls", "3\n") +
                            tar_member("a/2.json", R"({"label": 5})") + tar_member("a/2.png", png_of({40, 40, 255})) +
                            std::string(1024, '\0'));
    const Batch batch = first_batch(folder.path(), 2, 32, {.shuffle = false});
    CHECK(batch.labels == Tensor::of_ints({3, 5}));
    CHECK(distance(batch.images, 0, 32, 0, 0, 1, 0) < rounding);
    CHECK(distance(batch.images, 1, 32, 0, 0, 1, 1) < rounding);
  }

  TEST_CASE("images: a decoder of many images at once gives what the threads that read would") {
    const Folder folder;
    for (int i = 0; i < 10; ++i) folder.add("x/" + std::to_string(i) + ".jpg", jpeg_of({64 + i, 48, 20 * i}));
    folder.add("x/a.jpg", jpeg_of({64, 48, 0}, [](j_compress_ptr codec) { jpeg_simple_progression(codec); }));
    folder.add("x/b.png", png_of({64, 48, 51}));
    DataOptions options{.seed = 3, .transforms = ImageTransforms()};
    options.transforms->crop = Crop::RandomResized;
    options.transforms->decode_at_fraction = false;
    options.transforms->flip = 0.5;
    options.transforms->brightness = 0.4;
    options.transforms->mean = {0.5, 0.4, 0.3};
    const Batch alone = first_batch(folder.path(), 12, 16, options);
    options.decoder = std::make_shared<EvenDecoder>();
    const Batch together = first_batch(folder.path(), 12, 16, options);
    CHECK(together.images == alone.images);
    CHECK(together.labels == alone.labels);

    const InputSpec interleaved{"pixels", Type(DType::U8, {12, 16, 16, 3})};
    Tensor bytes[2] = {Tensor(interleaved.type), Tensor(interleaved.type)};
    for (Tensor& each : bytes) {
      const auto source = llvm::cantFail(open_data(folder.path(), interleaved, options));
      llvm::cantFail(source->next(each.view()));
      // How many were read ahead is not known.
      CHECK(llvm::StringRef(source->describe_decoding()).contains("the CPU those") == (options.decoder != nullptr));
      options.decoder = nullptr;
    }
    CHECK(bytes[0] == bytes[1]);
  }

  TEST_CASE("images: a decoder's damaged image is refused by name") {
    const Folder folder;
    folder.add("x/a.jpg", jpeg_of({64, 48, 0}));
    folder.add("x/b.jpg", jpeg_of({64, 48, 0}).substr(0, 40));
    DataOptions options{.shuffle = false};
    options.decoder = std::make_shared<EvenDecoder>();
    Tensor images(Type(DType::F32, {2, 3, 8, 8}));
    const auto source = llvm::cantFail(open_data(folder.path(), {{"pixels", images.type()}}, options));
    source->wait();
    Status refused = source->next(images.view());
    REQUIRE(bool(refused));
    CHECK(take_diag(std::move(refused)).text().find(folder.path() + "/x/b.jpg") == 0);
  }

  TEST_CASE("images: plain JPEGs are told by their markers") {
    const Picture picture{50, 34, 0};
    const auto sampled = [&](int across, int down) {
      return jpeg_of(picture, [=](j_compress_ptr codec) {
        codec->comp_info[0].h_samp_factor = across;
        codec->comp_info[0].v_samp_factor = down;
      });
    };
    for (const auto& [across, down] : {std::pair(1, 1), std::pair(2, 1), std::pair(2, 2), std::pair(1, 2)}) {
      const std::optional<ImageSize> size = plain_size(sampled(across, down));
      REQUIRE(size);
      CHECK(size->width == 50);
      CHECK(size->height == 34);
    }
    CHECK(plain_size(jpeg_of(picture, [](j_compress_ptr codec) { codec->restart_interval = 2; })));
    CHECK_FALSE(plain_size(sampled(4, 1)));
    CHECK_FALSE(plain_size(jpeg_of(picture, [](j_compress_ptr codec) { jpeg_simple_progression(codec); })));
    CHECK_FALSE(plain_size(jpeg_of(picture, [](j_compress_ptr codec) { jpeg_set_colorspace(codec, JCS_RGB); })));
    CHECK_FALSE(plain_size(jpeg_of(picture, [](j_compress_ptr codec) { jpeg_set_colorspace(codec, JCS_GRAYSCALE); })));
    CHECK_FALSE(plain_size(jpeg_of(picture, [](j_compress_ptr codec) { codec->arith_code = TRUE; })));
    CHECK_FALSE(plain_size(png_of(picture)));
    const std::string whole = sampled(2, 2);
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) CHECK_FALSE(plain_size(whole.substr(0, bytes)));
    CHECK_FALSE(plain_size(whole + "x"));
    std::string twice = whole;
    twice.insert(twice.size() - 2, "\xff\xda");
    CHECK_FALSE(plain_size(twice));
  }

  TEST_CASE("images: damaged files and archives are refused by name") {
    const Folder folder;
    folder.add("x/a.jpg", jpeg_of({32, 32, 0}).substr(0, 40));
    folder.add("x/b.png", png_of({32, 32, 0}).substr(0, 60));
    folder.add("bad.tar.txt", std::string(600, 'x'));
    for (const char* name : {"/x/a.jpg", "/x/b.png"}) {
      Image image;
      std::vector<uint8_t> bytes;
      const auto content = llvm::cantFail(llvm::errorOrToExpected(llvm::MemoryBuffer::getFile(folder.path() + name)));
      bytes.assign(content->getBufferStart(), content->getBufferEnd());
      const auto all = [](ImageSize size) {
        return Region{0, 0, static_cast<double>(size.width), static_cast<double>(size.height)};
      };
      Status refused = decode_image(name, bytes, {all, {8, 8}}, image);
      REQUIRE(bool(refused));
      CHECK(take_diag(std::move(refused)).text().find(name) == 0);
    }
    Result<std::vector<TarMember>> members = list_tar(folder.path() + "/bad.tar.txt");
    REQUIRE_FALSE(bool(members));
    CHECK(take_diag(members.takeError()).text().find("no header at byte 0") != std::string::npos);
  }
}
