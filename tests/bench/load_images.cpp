// Images per second that the loader reads from a folder, decodes, crops at random to 224 x 224 and normalises, as
// training with ImageNet's recipe does. compare_torchvision.py runs it beside PyTorch's DataLoader.
//
// Usage: load_images FOLDER THREADS BATCHES       batches of 64, decoded by the processor
//        load_images FOLDER gpu BATCHES           decoded by the card in this machine
//        load_images FOLDER compare BATCHES       both, whose pixels are compared: exits 1 where they differ by more
//        than
//                                                 rounding and the smoothing of colors explain

#include "runtime/cuda/card_decoder.h"
#include "runtime/data/batch_source.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"

#include <chrono>
#include <cmath>

using namespace plimsoll;

namespace {

constexpr int64_t rows = 64, size = 224;
// Of pixels in [0, 1].
constexpr double most_mean = 2.0 / 255, most_at_one_pixel = 40.0 / 255;

struct Loading {
  Tensor images{Type(DType::F32, {rows, 3, size, size})}, labels{Type(DType::I64, {rows})};
  std::unique_ptr<BatchSource> source;

  Status open(llvm::StringRef folder, const DataOptions& options) {
    Result<std::unique_ptr<BatchSource>> opened =
        open_data(folder, {{"pixel_values", images.type()}, {"labels", labels.type()}}, options);
    if (!opened) return opened.takeError();
    source = std::move(*opened);
    return Status::success();
  }
  Status next() { return source->next({images.view(), labels.view()}); }
};

DataOptions options_of_training(int threads) {
  ImageTransforms transforms;
  transforms.crop = Crop::RandomResized;
  transforms.flip = 0.5;
  transforms.mean = {0.485, 0.456, 0.406};
  transforms.deviation = {0.229, 0.224, 0.225};
  return {.transforms = transforms, .threads = threads};
}

Status add_decoder(DataOptions& options) {
  Result<std::shared_ptr<ImageDecoder>> decoder = open_card_decoder();
  if (!decoder) return decoder.takeError();
  options.decoder = std::move(*decoder);
  return Status::success();
}

Status time_batches(llvm::StringRef folder, const DataOptions& options, int batches) {
  Loading loading;
  if (Status s = loading.open(folder, options)) return s;
  if (options.decoder) loading.source->wait();  // nvJPEG is loaded with the first images
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < batches; ++i)
    if (Status s = loading.next()) return s;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  llvm::outs() << llvm::formatv("{0:f1} images/s", static_cast<double>(rows * batches) / seconds);
  if (const std::string decoding = loading.source->describe_decoding(); !decoding.empty())
    llvm::outs() << "; " << decoding;
  llvm::outs() << "\n";
  return Status::success();
}

// By all pixels, which are decoded before they are scaled.
Status compare(llvm::StringRef folder, int batches) {
  DataOptions options = options_of_training(0);
  options.transforms->decode_at_fraction = false;
  options.transforms->mean = {0, 0, 0};
  options.transforms->deviation = {1, 1, 1};
  Loading here, there;
  if (Status s = here.open(folder, options)) return s;
  if (Status s = add_decoder(options)) return s;
  if (Status s = there.open(folder, options)) return s;
  double largest = 0, sum = 0;
  for (int i = 0; i < batches; ++i) {
    if (Status s = here.next()) return s;
    if (Status s = there.next()) return s;
    if (!(here.labels == there.labels)) return model_error("the labels differ");
    for (int64_t at = 0; at < here.images.type().elements(); ++at) {
      const double each = std::abs(here.images.get(at) - there.images.get(at));
      largest = std::max(largest, each);
      sum += each;
    }
  }
  const double mean = sum / static_cast<double>(batches * here.images.type().elements());
  llvm::outs() << llvm::formatv("levels of 255: mean difference {0:f3}, largest {1:f1}; ", 255 * mean, 255 * largest)
               << there.source->describe_decoding() << "\n";
  return mean <= most_mean && largest <= most_at_one_pixel ? Status::success() : model_error("the pixels differ");
}

Status load(llvm::StringRef folder, llvm::StringRef how, int batches) {
  if (how == "compare") return compare(folder, batches);
  int threads = 0;
  if (how != "gpu" && how.getAsInteger(10, threads)) return usage_error("'" + how + "' is no number of threads");
  DataOptions options = options_of_training(threads);
  if (how == "gpu")
    if (Status s = add_decoder(options)) return s;
  return time_batches(folder, options, batches);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    llvm::errs() << "usage: load_images FOLDER THREADS|gpu|compare BATCHES\n";
    return 2;
  }
  if (Status failure = load(argv[1], argv[2], std::atoi(argv[3]))) {
    llvm::errs() << "load_images: " << llvm::toString(std::move(failure)) << "\n";
    return 1;
  }
  return 0;
}
