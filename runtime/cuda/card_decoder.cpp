#include "runtime/cuda/card_decoder.h"

#include "ir/machine/image_decoding.h"
#include "runtime/comm/communicator.h"
#include "runtime/cuda/loader.h"

namespace plimsoll {
namespace {

class CardDecoder : public ImageDecoder {
 public:
  explicit CardDecoder(std::unique_ptr<CudaJpegDecoder> decoder) : decoder_(std::move(decoder)) {}

  Status decode(ImageSize shown, llvm::MutableArrayRef<JpegJob> jobs) override {
    return to_status(decoder_->decode(shown, jobs));
  }
  int images_at_once() const override { return ImageDecodingMemory::images; }
  // One waits for the card while another reads files or changes colors.
  int threads() const override { return 2 * ImageDecodingMemory::lanes; }

 private:
  std::unique_ptr<CudaJpegDecoder> decoder_;
};

}  // namespace

Result<std::shared_ptr<ImageDecoder>> open_card_decoder() {
  Result<std::unique_ptr<CudaBackend>> backend = load_cuda_backend();
  if (!backend) return backend.takeError();
  open_nvjpeg();
  std::unique_ptr<CudaJpegDecoder> decoder;
  if (Status s = to_status((*backend)->make_jpeg_decoder(local_rank(), decoder))) return s;
  return std::make_shared<CardDecoder>(std::move(decoder));
}

}  // namespace plimsoll
