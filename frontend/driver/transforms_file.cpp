#include "frontend/driver/transforms_file.h"

#include "ir/support/did_you_mean.h"
#include "ir/support/read_file.h"

#include "llvm/ADT/STLExtras.h"

#include <CLI/CLI.hpp>

#include <functional>
#include <map>
#include <sstream>

namespace plimsoll {
namespace {

using Words = std::vector<std::string>;
// Reads the words of a value; false when they make no sense.
using Reader = std::function<bool(const Words&)>;

constexpr double largest_pad = 4294967295;  // the largest token number

bool read_number(const std::string& word, double least, double largest, double& into) {
  return !llvm::StringRef(word).getAsDouble(into) && into >= least && into <= largest;
}

Reader number(double& into, double largest) {
  return [&into, largest](const Words& words) { return words.size() == 1 && read_number(words[0], 0, largest, into); };
}

template <size_t Count>
Reader numbers(std::array<double, Count>& into, double least, double largest) {
  return [&into, least, largest](const Words& words) {
    if (words.size() != Count) return false;
    for (size_t i = 0; i < Count; ++i)
      if (!read_number(words[i], least, largest, into[i])) return false;
    return true;
  };
}

// One number stands for all channels.
Reader by_channel(std::array<double, 3>& into, double least, double largest) {
  return [&into, least, largest](const Words& words) {
    return words.size() == 1 ? numbers(into, least, largest)(Words(into.size(), words[0]))
                             : numbers(into, least, largest)(words);
  };
}

template <typename T>
Reader one_of(T& into, std::map<std::string, T> names) {
  return [&into, names = std::move(names)](const Words& words) {
    const auto found = words.size() == 1 ? names.find(words[0]) : names.end();
    if (found == names.end()) return false;
    into = found->second;
    return true;
  };
}

Reader count(int64_t& into) {
  return [&into](const Words& words) {
    return words.size() == 1 && !llvm::StringRef(words[0]).getAsInteger(10, into) && into >= 1 && into <= 1 << 16;
  };
}

Reader optional_number(std::optional<double>& into) {
  return [&into](const Words& words) {
    return words.size() == 1 && read_number(words[0], -largest_pad, largest_pad, into.emplace());
  };
}

Reader optional_integer(std::optional<int64_t>& into) {
  return [&into](const Words& words) {
    return words.size() == 1 && !llvm::StringRef(words[0]).getAsInteger(10, into.emplace());
  };
}

Reader names(std::vector<std::string>& into) {
  return [&into](const Words& words) { return into = words, !words.empty() && !words[0].empty(); };
}

constexpr double smallest_ratio = 1e-3, largest_value = 1e3, largest_strength = 4;

std::map<std::string, Reader> readers_of(ImageTransforms& t) {
  return {
      {"decode", one_of<bool>(t.decode_at_fraction, {{"fraction", true}, {"full", false}})},
      {"resize", count(t.resize)},
      {"crop", one_of<Crop>(t.crop, {{"none", Crop::None},
                                     {"center", Crop::Center},
                                     {"random", Crop::Random},
                                     {"random-resized", Crop::RandomResized}})},
      {"scale", numbers(t.area, smallest_ratio, 1)},
      {"ratio", numbers(t.ratio, smallest_ratio, largest_value)},
      {"flip", number(t.flip, 1)},
      {"brightness", number(t.brightness, largest_value)},
      {"contrast", number(t.contrast, largest_value)},
      {"saturation", number(t.saturation, largest_value)},
      {"mixup", number(t.mixup, largest_strength)},
      {"cutmix", number(t.cutmix, largest_strength)},
      {"mean", by_channel(t.mean, -largest_value, largest_value)},
      {"std", by_channel(t.deviation, 1.0 / largest_value, largest_value)},
  };
}

std::map<std::string, Reader> readers_of(Padding& padding) {
  using Longer = std::optional<LongSample>;
  return {{"pad", optional_number(padding.value)},
          {"pad-labels", optional_integer(padding.label)},
          {"pad-side", one_of<PadSide>(padding.side, {{"right", PadSide::Right}, {"left", PadSide::Left}})},
          {"longer",
           one_of<Longer>(padding.longer,
                          {{"refuse", LongSample::Refuse}, {"cut", LongSample::Cut}, {"split", LongSample::Split}})},
          {"mask", names(padding.masks)}};
}

Status read_item(const std::string& path, const CLI::ConfigItem& item, const std::map<std::string, Reader>& readers,
                 const std::map<std::string, Reader>& others) {
  const auto reader = readers.find(item.name);
  if (reader == readers.end()) {
    std::vector<llvm::StringRef> names;
    for (const auto* known : {&readers, &others})
      for (const auto& [name, unused] : *known) names.push_back(name);
    const std::vector<std::string> near = did_you_mean(item.name, names, 1);
    return usage_error(path + ": no transform is called " + item.name +
                       (near.empty() ? "" : "; did you mean " + near.front() + "?"));
  }
  if (reader->second(item.inputs)) return Status::success();
  std::string words;
  for (const std::string& word : item.inputs) words += (words.empty() ? "" : ", ") + word;
  return usage_error(path + ": " + item.name + " cannot be " + words + " (docs/data.md)");
}

}  // namespace

Result<Transforms> read_transforms(const std::string& path) {
  Result<std::unique_ptr<llvm::MemoryBuffer>> file = read_file(path);
  if (!file) return file.takeError();
  std::istringstream text((*file)->getBuffer().str());
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(text);
  } catch (const CLI::Error& error) {
    return usage_error(path + ": " + error.what());
  }
  ImageTransforms image;
  Padding padding;
  const std::map<std::string, Reader> of_images = readers_of(image), of_padding = readers_of(padding);
  Transforms transforms;
  const bool has_sections = llvm::any_of(items, [](const CLI::ConfigItem& item) { return !item.parents.empty(); });
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks for sections
    if (has_sections && (item.parents.size() != 1 || item.parents.front() != "transforms")) continue;
    const bool is_padding = of_padding.count(item.name) > 0;
    if (Status s = read_item(path, item, is_padding ? of_padding : of_images, of_padding)) return s;
    is_padding ? void(transforms.padding = padding) : void(transforms.image = image);
  }
  if (image.area[0] > image.area[1] || image.ratio[0] > image.ratio[1])
    return usage_error(path + ": scale and ratio are [LEAST, LARGEST]");
  return transforms;
}

}  // namespace plimsoll
