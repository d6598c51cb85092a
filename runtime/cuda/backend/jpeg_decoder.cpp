#include "runtime/cuda/backend/jpeg_decoder.h"

#include "ir/machine/image_decoding.h"
#include "kernels/cuda/resize/sample_images.h"
#include "runtime/cuda/backend/device_memory.h"
#include "runtime/cuda/backend/nvjpeg.h"
#include "runtime/cuda/byte_arena.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

// Images are decoded a few at a time by the card's own JPEG decoders, where it has them, else by nvJPEG's kernels; one
// kernel scales what is shown of them, and the result goes back to the host, where the rest of the transforms are.
// nvJPEG takes its memory out of an arena of fixed size: a call that needs more fails and is left to the CPU.

namespace plimsoll {
namespace {

using Memory = ImageDecodingMemory;
static_assert(Memory::images == cuda::max_sampled_images);

// The arena of one allocation, in the form that nvJPEG calls.
class LentMemory {
 public:
  Status create(Result<CudaMemory> memory) {
    if (!memory) return memory.takeError();
    memory_ = std::move(*memory);
    arena_.emplace(memory_.bytes());
    return Status::success();
  }
  NvjpegAllocator allocator() { return {take, give_back, this}; }

  std::byte* take(int64_t bytes) {
    std::lock_guard lock(mutex_);
    const std::optional<int64_t> offset = arena_->take(bytes);
    return offset ? memory_.data() + *offset : nullptr;
  }
  void give_back(std::byte* at) {
    std::lock_guard lock(mutex_);
    arena_->give_back(at - memory_.data());
  }

 private:
  static int take(void* owner, void** at, size_t bytes, cudaStream_t) {
    *at = static_cast<LentMemory*>(owner)->take(static_cast<int64_t>(bytes));
    return *at ? cudaSuccess : cudaErrorMemoryAllocation;
  }
  static int give_back(void* owner, void* at, size_t, cudaStream_t) {
    if (at) static_cast<LentMemory*>(owner)->give_back(static_cast<std::byte*>(at));
    return cudaSuccess;
  }

  CudaMemory memory_;
  std::optional<ByteArena> arena_;
  std::mutex mutex_;  // nvJPEG may have threads of its own
};

// One call of nvJPEG at a time.
class Lane {
 public:
  explicit Lane(const NvjpegFunctions& nvjpeg) : nvjpeg_(nvjpeg) {}
  Lane(const Lane&) = delete;
  ~Lane() {
    cudaStreamSynchronize(stream_);
    if (state_) nvjpeg_.destroy_state(state_);
    if (header_) nvjpeg_.destroy_stream(header_);
    if (handle_) nvjpeg_.destroy(handle_);
  }

  Status create() {
    if (Status s = stream_.create(CudaStream::Priority::Low)) return s;
    if (Status s = done_.create_sleeping()) return s;
    if (Status s = device_.create(CudaMemory::on_device(Memory::lane_bytes, "JPEG decoding"))) return s;
    if (Status s = pinned_.create(CudaMemory::pinned(Memory::pinned_lane_bytes, "JPEG decoding"))) return s;
    Result<CudaMemory> planes = CudaMemory::on_device(Memory::planes_bytes, "JPEG decoding");
    if (!planes) return planes.takeError();
    planes_ = std::move(*planes);
    Result<CudaMemory> shown = CudaMemory::pinned(Memory::planes_bytes, "JPEG decoding");
    if (!shown) return shown.takeError();
    shown_ = std::move(*shown);
    if (!create_handle() || nvjpeg_.create_stream(handle_, &header_) != NvjpegResult::Success || !renew_state())
      return system_error("nvJPEG cannot decode on this card");
    return Status::success();
  }

  bool supports(llvm::ArrayRef<uint8_t> jpeg) {
    int unsupported = 1;
    return nvjpeg_.parse(handle_, jpeg.data(), jpeg.size(), 0, 0, header_) == NvjpegResult::Success &&
           nvjpeg_.supports(handle_, header_, &unsupported) == NvjpegResult::Success && unsupported == 0;
  }

  // Of images that fit a call together.
  Status decode(ImageSize shown, llvm::ArrayRef<JpegJob*> jobs) {
    NvjpegResult result = decode_once(shown, jobs);
    // What it holds of earlier calls may be in the way.
    if (result == NvjpegResult::AllocatorFailure && renew_state()) result = decode_once(shown, jobs);
    if (failure_ != cudaSuccess) return cuda_status(failure_, "JPEG decoding");
    if (result != NvjpegResult::Success) {
      renew_state();
      return Status::success();
    }
    const int64_t floats = 3 * shown.width * shown.height;
    for (size_t i = 0; i < jobs.size(); ++i) {
      std::memcpy(jobs[i]->planes, shown_.data() + static_cast<int64_t>(i) * floats * 4,
                  static_cast<size_t>(floats) * 4);
      jobs[i]->is_done = true;
    }
    return Status::success();
  }

 private:
  // The card's own decoders leave its multiprocessors to the step. Without them nvJPEG's kernels decode.
  bool create_handle() {
    allocators_[0] = device_.allocator();
    allocators_[1] = pinned_.allocator();
    for (NvjpegBackend backend : {NvjpegBackend::Hardware, NvjpegBackend::GpuHybrid})
      for (unsigned flags : {nvjpeg_interpolates, 0U})
        if (nvjpeg_.create(backend, &allocators_[0], &allocators_[1], flags, &handle_) == NvjpegResult::Success)
          return true;
    handle_ = nullptr;
    return false;
  }

  // Gives back all memory that nvJPEG has taken for earlier calls.
  bool renew_state() {
    wait();
    if (state_) nvjpeg_.destroy_state(state_);
    state_ = nullptr;
    images_ = 0;
    return nvjpeg_.create_state(handle_, &state_) == NvjpegResult::Success;
  }

  void wait() {
    keep_failure(cudaEventRecord(done_, stream_));
    keep_failure(cudaEventSynchronize(done_));
  }
  void keep_failure(cudaError_t code) {
    if (failure_ == cudaSuccess) failure_ = code;
  }

  NvjpegResult decode_once(ImageSize shown, llvm::ArrayRef<JpegJob*> jobs) {
    if (!state_) return NvjpegResult::AllocatorFailure;
    std::vector<NvjpegImage> images(jobs.size());
    std::vector<std::byte*> taken;
    NvjpegResult result = NvjpegResult::Success;
    for (size_t i = 0; i < jobs.size() && result == NvjpegResult::Success; ++i) {
      std::byte* pixels = device_.take(3 * jobs[i]->size.width * jobs[i]->size.height);
      if (!pixels) {
        result = NvjpegResult::AllocatorFailure;
        break;
      }
      taken.push_back(pixels);
      images[i].channel[0] = reinterpret_cast<unsigned char*>(pixels);
      images[i].pitch[0] = static_cast<size_t>(3 * jobs[i]->size.width);
    }
    if (result == NvjpegResult::Success) result = send(shown, jobs, images);
    wait();  // the images are read until then
    for (std::byte* pixels : taken) device_.give_back(pixels);
    return result;
  }

  NvjpegResult send(ImageSize shown, llvm::ArrayRef<JpegJob*> jobs, std::vector<NvjpegImage>& images) {
    const int count = static_cast<int>(jobs.size());
    if (count != images_) {
      const NvjpegResult begun = nvjpeg_.begin_batches(handle_, state_, count, 1, NvjpegOutput::InterleavedRgb);
      if (begun != NvjpegResult::Success) return begun;
      images_ = count;
    }
    const unsigned char* data[Memory::images];
    size_t bytes[Memory::images];
    cuda::SampledImages sampled;
    sampled.count = count;
    sampled.shown_width = static_cast<int>(shown.width);
    sampled.shown_height = static_cast<int>(shown.height);
    for (size_t i = 0; i < jobs.size(); ++i) {
      const JpegJob& job = *jobs[i];
      data[i] = job.bytes.data();
      bytes[i] = job.bytes.size();
      sampled.image[i] = {images[i].channel[0],
                          static_cast<int>(job.size.width),
                          static_cast<int>(job.size.height),
                          job.region.x,
                          job.region.y,
                          job.region.width,
                          job.region.height,
                          job.mirrored};
    }
    const NvjpegResult decoded = nvjpeg_.decode_batch(handle_, state_, data, bytes, images.data(), stream_);
    if (decoded != NvjpegResult::Success) return decoded;
    (void)cudaGetLastError();  // of what nvJPEG tried and did otherwise
    keep_failure(cuda::sample_images(reinterpret_cast<float*>(planes_.data()), sampled, stream_));
    keep_failure(cudaMemcpyAsync(shown_.data(), planes_.data(),
                                 static_cast<size_t>(count * 3 * shown.width * shown.height) * 4,
                                 cudaMemcpyDeviceToHost, stream_));
    return decoded;
  }

  const NvjpegFunctions& nvjpeg_;
  LentMemory device_, pinned_;
  CudaMemory planes_, shown_;
  CudaStream stream_;
  CudaEvent done_;
  NvjpegAllocator allocators_[2] = {};
  nvjpegHandle* handle_ = nullptr;
  nvjpegJpegState* state_ = nullptr;
  nvjpegJpegStream* header_ = nullptr;
  int images_ = 0;                     // of the calls that the state is made for
  cudaError_t failure_ = cudaSuccess;  // the first one: of the card, and not of an image
};

class Decoder : public CudaJpegDecoder {
 public:
  Status create(int card) {
    card_ = card;
    if (Status s = cuda_status(cudaSetDevice(card_), "card " + llvm::Twine(card_))) return s;
    Result<const NvjpegFunctions*> nvjpeg = open_nvjpeg_functions();
    if (!nvjpeg) return nvjpeg.takeError();
    for (int i = 0; i < Memory::lanes; ++i) {
      lanes_.push_back(std::make_unique<Lane>(**nvjpeg));
      if (Status s = lanes_.back()->create()) return s;
      free_.push_back(lanes_.back().get());
    }
    return Status::success();
  }

  CudaOutcome decode(ImageSize shown, llvm::MutableArrayRef<JpegJob> jobs) override {
    if (Status s = cuda_status(cudaSetDevice(card_), "card " + llvm::Twine(card_))) return s;
    Lane* lane = take_lane();
    Status status = decode_on(*lane, shown, jobs);
    {
      std::lock_guard lock(mutex_);
      free_.push_back(lane);
    }
    is_free_.notify_one();
    return status;
  }

 private:
  Lane* take_lane() {
    std::unique_lock lock(mutex_);
    is_free_.wait(lock, [&] { return !free_.empty(); });
    Lane* lane = free_.back();
    free_.pop_back();
    return lane;
  }

  // As many images in a call as its memory is made for.
  static Status decode_on(Lane& lane, ImageSize shown, llvm::MutableArrayRef<JpegJob> jobs) {
    const int64_t shown_bytes = 3 * shown.width * shown.height * 4;
    const auto most = std::min<size_t>(Memory::images, static_cast<size_t>(Memory::planes_bytes / shown_bytes));
    if (most == 0) return Status::success();
    llvm::SmallVector<JpegJob*, Memory::images> call;
    int64_t pixels = 0;
    for (JpegJob& job : jobs) {
      const int64_t own = job.size.width * job.size.height;
      if (job.bytes.empty() || own > Memory::pixels || !lane.supports(job.bytes)) continue;
      if (call.size() == most || pixels + own > Memory::pixels) {
        if (Status s = lane.decode(shown, call)) return s;
        call.clear();
        pixels = 0;
      }
      call.push_back(&job);
      pixels += own;
    }
    return call.empty() ? Status::success() : lane.decode(shown, call);
  }

  int card_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable is_free_;
  std::vector<Lane*> free_;
};

}  // namespace

CudaOutcome make_jpeg_decoder(int card, std::unique_ptr<CudaJpegDecoder>& decoder) {
  auto made = std::make_unique<Decoder>();
  if (Status s = made->create(card)) return s;
  decoder = std::move(made);
  return {};
}

}  // namespace plimsoll
