// Images per second that the loader reads from a folder, decodes, crops at random to 224 x 224 and normalises, as
// training with ImageNet's recipe does. compare_torchvision.py runs it beside PyTorch's DataLoader.
//
// Usage: load_images FOLDER THREADS BATCHES     batches of 64

#include "ir/support/units.h"
#include "runtime/data/batch_source.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"

#include <chrono>

using namespace plimsoll;

namespace {

constexpr int64_t rows = 64, size = 224;

Result<double> images_per_s(llvm::StringRef folder, int threads, int batches) {
  ImageTransforms transforms;
  transforms.crop = Crop::RandomResized;
  transforms.flip = 0.5;
  transforms.mean = {0.485, 0.456, 0.406};
  transforms.deviation = {0.229, 0.224, 0.225};
  Tensor images(Type(DType::F32, {rows, 3, size, size})), labels(Type(DType::I64, {rows}));
  Result<std::unique_ptr<BatchSource>> source =
      open_data(folder, {{"pixel_values", images.type()}, {"labels", labels.type()}},
                {.transforms = transforms, .threads = threads});
  if (!source) return source.takeError();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < batches; ++i)
    if (Status s = (*source)->next({images.view(), labels.view()})) return s;
  return static_cast<double>(rows * batches) /
         std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    llvm::errs() << "usage: load_images FOLDER THREADS BATCHES\n";
    return 2;
  }
  Result<double> speed = images_per_s(argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
  if (!speed) {
    llvm::errs() << "load_images: " << llvm::toString(speed.takeError()) << "\n";
    return 1;
  }
  llvm::outs() << llvm::formatv("{0:f1} images/s\n", *speed);
  return 0;
}
