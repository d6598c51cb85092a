#include "runtime/data/image_transforms.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace plimsoll {
namespace {

// Which number of a sample's stream decides what.
enum Draw : int64_t { FlipDraw, BrightnessDraw, ContrastDraw, SaturationDraw, PlaceDraws = 8, ResizedCropDraws = 16 };

double between(double low, double high, double uniform) { return low + (high - low) * uniform; }

// The region that fills the shown shape after the shorter side was scaled, at a place in [0, 1] along each side.
Region scaled_crop(ImageSize image, int64_t resize, ImageSize shown, double place_x, double place_y) {
  const auto width = static_cast<double>(image.width), height = static_cast<double>(image.height);
  const auto shown_width = static_cast<double>(shown.width), shown_height = static_cast<double>(shown.height);
  double scale = std::max(shown_width / width, shown_height / height);
  if (resize > 0) scale = std::max(scale, static_cast<double>(resize) / std::min(width, height));
  const double region_width = shown_width / scale, region_height = shown_height / scale;
  return {(width - region_width) * place_x, (height - region_height) * place_y, region_width, region_height};
}

// torchvision's RandomResizedCrop: ten tries, then the largest centered part of an allowed ratio.
Region resized_crop(ImageSize image, const ImageTransforms& transforms, const RandomStream& random) {
  const auto width = static_cast<double>(image.width), height = static_cast<double>(image.height);
  for (int64_t attempt = 0; attempt < 10; ++attempt) {
    const int64_t draw = ResizedCropDraws + 4 * attempt;
    const double area = width * height * between(transforms.area[0], transforms.area[1], random.uniform(draw));
    const double ratio =
        std::exp(between(std::log(transforms.ratio[0]), std::log(transforms.ratio[1]), random.uniform(draw + 1)));
    const double w = std::round(std::sqrt(area * ratio)), h = std::round(std::sqrt(area / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    return {std::floor(random.uniform(draw + 2) * (width - w + 1)),
            std::floor(random.uniform(draw + 3) * (height - h + 1)), w, h};
  }
  const double ratio = std::clamp(width / height, transforms.ratio[0], transforms.ratio[1]);
  const double w = std::min(width, height * ratio), h = std::min(height, width / ratio);
  return {(width - w) / 2, (height - h) / 2, w, h};
}

// Weights of red, green and blue in brightness, as in torchvision.
constexpr std::array<float, 3> luminance = {0.2989F, 0.587F, 0.114F};

// Brightness, contrast and saturation in this order; torchvision draws the order.
void jitter(const ImageTransforms& transforms, const RandomStream& random, int64_t pixels, float* planes) {
  auto factor = [&](double strength, Draw draw) {
    return static_cast<float>(between(std::max(0.0, 1 - strength), 1 + strength, random.uniform(draw)));
  };
  auto gray = [&](int64_t i) {
    return luminance[0] * planes[i] + luminance[1] * planes[pixels + i] + luminance[2] * planes[2 * pixels + i];
  };
  auto blend = [](float& value, float other, float share) {
    value = std::clamp(share * value + (1 - share) * other, 0.0F, 1.0F);
  };
  if (transforms.brightness > 0) {
    const float share = factor(transforms.brightness, BrightnessDraw);
    for (int64_t i = 0; i < 3 * pixels; ++i) blend(planes[i], 0, share);
  }
  if (transforms.contrast > 0) {
    const float share = factor(transforms.contrast, ContrastDraw);
    double mean = 0;
    for (int64_t i = 0; i < pixels; ++i) mean += gray(i);
    mean /= static_cast<double>(pixels);
    for (int64_t i = 0; i < 3 * pixels; ++i) blend(planes[i], static_cast<float>(mean), share);
  }
  if (transforms.saturation > 0) {
    const float share = factor(transforms.saturation, SaturationDraw);
    for (int64_t i = 0; i < pixels; ++i) {
      const float colourless = gray(i);
      for (int64_t c = 0; c < 3; ++c) blend(planes[c * pixels + i], colourless, share);
    }
  }
}

void normalise(const ImageTransforms& transforms, int64_t pixels, float* planes) {
  for (size_t c = 0; c < 3; ++c) {
    const auto mean = static_cast<float>(transforms.mean[c]), inverse = static_cast<float>(1 / transforms.deviation[c]);
    if (mean == 0 && inverse == 1) continue;
    float* plane = planes + static_cast<int64_t>(c) * pixels;
    for (int64_t i = 0; i < pixels; ++i) plane[i] = (plane[i] - mean) * inverse;
  }
}

// Jöhnk's method (1964): few tries for the strengths of at most 4 that are allowed.
double draw_beta(double strength, const RandomStream& random, int64_t first_draw) {
  for (int64_t draw = first_draw;; draw += 2) {
    const double a = std::pow(random.uniform(draw), 1 / strength), b = std::pow(random.uniform(draw + 1), 1 / strength);
    if (a + b > 0 && a + b <= 1) return a / (a + b);
  }
}

}  // namespace

bool is_mirrored(const ImageTransforms& transforms, const RandomStream& random) {
  return transforms.flip > 0 && random.uniform(FlipDraw) < transforms.flip;
}

void change_colors(const ImageTransforms& transforms, const RandomStream& random, int64_t pixels, float* planes) {
  jitter(transforms, random, pixels, planes);
  normalise(transforms, pixels, planes);
}

BatchMix choose_mix(const ImageTransforms& transforms, const RandomStream& random) {
  constexpr int64_t beta_draws = 4;
  BatchMix mix;
  if (transforms.mixup <= 0 && transforms.cutmix <= 0) return mix;
  mix.is_cut = transforms.mixup <= 0 || (transforms.cutmix > 0 && random.uniform(0) < 0.5);
  mix.share = draw_beta(mix.is_cut ? transforms.cutmix : transforms.mixup, random, beta_draws);
  if (!mix.is_cut) return mix;
  // A box of the images' ratio around a random point, as far as it lies inside.
  const double half = std::sqrt(1 - mix.share) / 2, x = random.uniform(1), y = random.uniform(2);
  const double left = std::max(0.0, x - half), top = std::max(0.0, y - half);
  mix.cut = {left, top, std::min(1.0, x + half) - left, std::min(1.0, y + half) - top};
  return mix;
}

Region choose_region(ImageSize image, const ImageTransforms& transforms, ImageSize shown, const RandomStream& random) {
  switch (transforms.crop) {
    case Crop::None: return {0, 0, static_cast<double>(image.width), static_cast<double>(image.height)};
    case Crop::Center: return scaled_crop(image, transforms.resize, shown, 0.5, 0.5);
    case Crop::Random:
      return scaled_crop(image, transforms.resize, shown, random.uniform(PlaceDraws), random.uniform(PlaceDraws + 1));
    case Crop::RandomResized: return resized_crop(image, transforms, random);
  }
  return {};
}

namespace {

bool draws_region(const ImageTransforms& transforms) {
  return transforms.crop == Crop::Random || transforms.crop == Crop::RandomResized;
}

// As large as the smallest part that may be drawn.
Region smallest_region(ImageSize image, const ImageTransforms& transforms, ImageSize shown) {
  if (transforms.crop != Crop::RandomResized) return scaled_crop(image, transforms.resize, shown, 0, 0);
  const auto width = static_cast<double>(image.width), height = static_cast<double>(image.height);
  const double area = transforms.area[0] * width * height;
  return {0, 0, std::min(width, std::sqrt(area * transforms.ratio[0])),
          std::min(height, std::sqrt(area / transforms.ratio[1]))};
}

void show_region(const Image& image, const Region& region, const ImageTransforms& transforms, ImageSize size,
                 const RandomStream& random, std::vector<float>& row, float* planes) {
  sample_image(image, region, size, is_mirrored(transforms, random), row, planes);
  change_colors(transforms, random, size.width * size.height, planes);
}

}  // namespace

Status decode_to_keep(llvm::StringRef where, llvm::ArrayRef<uint8_t> bytes, const ImageTransforms& transforms,
                      ImageSize size, Image& into) {
  const bool is_drawn = draws_region(transforms);
  auto choose = [&](ImageSize whole) {
    return is_drawn ? smallest_region(whole, transforms, size) : choose_region(whole, transforms, size, {0, 0, 0});
  };
  return decode_image(where, bytes, {choose, size, transforms.decode_at_fraction, is_drawn}, into);
}

void show_kept(const Image& kept, const ImageTransforms& transforms, ImageSize size, const RandomStream& random,
               std::vector<float>& row, float* planes) {
  if (!draws_region(transforms)) return show_region(kept, kept.region, transforms, size, random, row, planes);
  const Region drawn = choose_region(kept.original, transforms, size, random);
  const double x = static_cast<double>(kept.size.width) / static_cast<double>(kept.original.width),
               y = static_cast<double>(kept.size.height) / static_cast<double>(kept.original.height);
  show_region(kept, {drawn.x * x, drawn.y * y, drawn.width * x, drawn.height * y}, transforms, size, random, row,
              planes);
}

Status show_image(llvm::StringRef where, llvm::ArrayRef<uint8_t> bytes, const ImageTransforms& transforms,
                  ImageSize size, const RandomStream& random, Image& image, std::vector<float>& row, float* planes) {
  auto choose = [&](ImageSize whole) { return choose_region(whole, transforms, size, random); };
  if (Status s = decode_image(where, bytes, {choose, size, transforms.decode_at_fraction}, image)) return s;
  show_region(image, image.region, transforms, size, random, row, planes);
  return Status::success();
}

}  // namespace plimsoll
