#include "ir/machine/image_decoding.h"
#include "runtime/cuda/card_decoder.h"
#include "runtime/data/jpeg_header.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
// jpeglib.h needs cstdio's types.
#include <jpeglib.h>

// JPEGs that the card decodes beside those that libjpeg-turbo does.

using namespace plimsoll;

namespace {

using Bytes = std::vector<uint8_t>;

// Smooth in all colors, so that decoders differ by rounding and little else.
Bytes jpeg_of(int width, int height, int across, int down, int quality = 95) {
  jpeg_compress_struct codec;
  jpeg_error_mgr errors;
  codec.err = jpeg_std_error(&errors);
  jpeg_create_compress(&codec);
  unsigned char* bytes = nullptr;
  unsigned long count = 0;
  jpeg_mem_dest(&codec, &bytes, &count);
  codec.image_width = static_cast<JDIMENSION>(width);
  codec.image_height = static_cast<JDIMENSION>(height);
  codec.input_components = 3;
  codec.in_color_space = JCS_RGB;
  jpeg_set_defaults(&codec);
  jpeg_set_quality(&codec, quality, TRUE);
  codec.comp_info[0].h_samp_factor = across;
  codec.comp_info[0].v_samp_factor = down;
  jpeg_start_compress(&codec, TRUE);
  Bytes row(static_cast<size_t>(3 * width));
  const auto wave = [](double turns) { return static_cast<uint8_t>(127.5 + 120 * std::sin(6.283 * turns)); };
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const double u = static_cast<double>(x) / width, v = static_cast<double>(y) / height;
      row[static_cast<size_t>(3 * x)] = wave(2 * u + v);
      row[static_cast<size_t>(3 * x + 1)] = wave(u - 3 * v);
      row[static_cast<size_t>(3 * x + 2)] = wave(u * v);
    }
    JSAMPROW at = row.data();
    jpeg_write_scanlines(&codec, &at, 1);
  }
  jpeg_finish_compress(&codec);
  Bytes out(bytes, bytes + count);
  jpeg_destroy_compress(&codec);
  std::free(bytes);
  return out;
}

std::vector<float> by_libjpeg(const JpegJob& job, ImageSize shown) {
  Image image;
  std::vector<float> row, planes(static_cast<size_t>(3 * shown.width * shown.height));
  llvm::cantFail(decode_jpeg("jpeg", job.bytes, {[&](ImageSize) { return job.region; }, shown, false}, image));
  sample_image(image, image.region, shown, job.mirrored, row, planes.data());
  return planes;
}

struct Difference {
  double largest = 0, mean = 0;
};
Difference difference(llvm::ArrayRef<float> a, llvm::ArrayRef<float> b) {
  Difference found;
  for (size_t i = 0; i < a.size(); ++i) {
    const double each = std::abs(a[i] - b[i]);
    found.largest = std::max(found.largest, each);
    found.mean += each / static_cast<double>(a.size());
  }
  return found;
}

struct Jobs {
  std::vector<Bytes> files;
  std::vector<std::vector<float>> planes;
  std::vector<JpegJob> jobs;
};

Jobs jobs_of(std::vector<Bytes> files, ImageSize shown) {
  Jobs all{std::move(files), {}, {}};
  all.planes.assign(all.files.size(), std::vector<float>(static_cast<size_t>(3 * shown.width * shown.height), -1));
  for (size_t i = 0; i < all.files.size(); ++i) {
    JpegJob& job = all.jobs.emplace_back();
    job.planes = all.planes[i].data();
    const std::optional<ImageSize> size = size_of_plain_jpeg(all.files[i]);
    if (!size) continue;
    job.bytes = all.files[i];
    job.size = *size;
    const auto width = static_cast<double>(size->width), height = static_cast<double>(size->height);
    job.region = {0.1 * width, 0.05 * height, 0.7 * width, 0.9 * height};
    job.mirrored = i % 2 == 1;
  }
  return all;
}

std::shared_ptr<ImageDecoder> decoder_here() {
  Result<std::shared_ptr<ImageDecoder>> decoder = open_card_decoder();
  if (decoder) return std::move(*decoder);
  MESSAGE("skipped: ", take_diag(decoder.takeError()).text());
  return nullptr;
}

// Of values in [0, 1]: two levels of 255 for decoding, one for its rounding to bytes. Color planes of half the
// resolution may be smoothed otherwise.
constexpr double largest_difference = 3.0 / 255, largest_smoothed = 12.0 / 255, mean_difference = 1.0 / 255;

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE("jpeg decoder: images of all samplings are those of libjpeg, within rounding") {
    const std::shared_ptr<ImageDecoder> decoder = decoder_here();
    if (!decoder) return;
    constexpr ImageSize shown{96, 80};
    std::vector<Bytes> files;
    for (const auto& [across, down] : {std::pair(1, 1), std::pair(2, 1), std::pair(2, 2), std::pair(1, 2)})
      for (const auto& [width, height] :
           {std::pair(500, 375), std::pair(64, 64), std::pair(333, 501), std::pair(97, 81), std::pair(1600, 1200)})
        files.push_back(jpeg_of(width, height, across, down));
    Jobs all = jobs_of(std::move(files), shown);
    llvm::cantFail(decoder->decode(shown, all.jobs));
    size_t done = 0;
    for (size_t i = 0; i < all.jobs.size(); ++i) {
      if (!all.jobs[i].is_done) continue;
      ++done;
      const Difference found = difference(all.planes[i], by_libjpeg(all.jobs[i], shown));
      INFO("image ", i, " of ", all.jobs[i].size.width, " x ", all.jobs[i].size.height);
      CHECK(found.largest <= (i < 5 ? largest_difference : largest_smoothed));
      CHECK(found.mean <= mean_difference);
    }
    MESSAGE(done, " of ", all.jobs.size(), " images were decoded on the card");
    CHECK(done >= all.jobs.size() / 2);
  }

  TEST_CASE("jpeg decoder: the same bits every time, from several threads") {
    const std::shared_ptr<ImageDecoder> decoder = decoder_here();
    if (!decoder) return;
    constexpr ImageSize shown{64, 64};
    std::vector<Bytes> files;
    for (int i = 0; i < 16; ++i) files.push_back(jpeg_of(200 + 17 * i, 300 - 9 * i, 2, 2, 60 + 2 * i));
    Jobs first = jobs_of(files, shown);
    llvm::cantFail(decoder->decode(shown, first.jobs));
    std::vector<std::thread> threads;
    std::vector<Jobs> all;
    for (int t = 0; t < 8; ++t) all.push_back(jobs_of(files, shown));
    for (Jobs& each : all)
      threads.emplace_back([&] {
        for (int turn = 0; turn < 20; ++turn) {
          for (JpegJob& job : each.jobs) job.is_done = false;
          llvm::cantFail(decoder->decode(shown, each.jobs));
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const Jobs& each : all) CHECK(each.planes == first.planes);
  }

  TEST_CASE("jpeg decoder: damaged and too large images are left to the processor, and others still decode") {
    const std::shared_ptr<ImageDecoder> decoder = decoder_here();
    if (!decoder) return;
    constexpr ImageSize shown{64, 64};
    for (int seed = 0; seed < 40; ++seed) {
      std::vector<Bytes> files = {jpeg_of(300, 200, 2, 2), jpeg_of(300, 200, 2, 2)};
      std::srand(static_cast<unsigned>(seed));
      for (int i = 0; i < 1 + seed % 5; ++i) {
        const size_t at = files[1].size() / 2 + static_cast<size_t>(std::rand()) % (files[1].size() / 2 - 2);
        files[1][at] = static_cast<uint8_t>(std::rand() % 255);  // no marker by itself
      }
      Jobs all = jobs_of(std::move(files), shown);
      llvm::cantFail(decoder->decode(shown, all.jobs));
    }
    Jobs large = jobs_of({jpeg_of(3000, 2000, 2, 2), jpeg_of(300, 200, 1, 1)}, shown);
    REQUIRE(large.jobs[0].size.width * large.jobs[0].size.height > ImageDecodingMemory::pixels);
    llvm::cantFail(decoder->decode(shown, large.jobs));
    CHECK_FALSE(large.jobs[0].is_done);
    CHECK(large.jobs[1].is_done);
    CHECK(difference(large.planes[1], by_libjpeg(large.jobs[1], shown)).largest <= largest_difference);
  }
}
