#pragma once

// Quantised weights of a plan, made of the model's as they are loaded. Which states are a weight's codes and scales,
// and how they stand for its numbers, is what the plan's dequantize instructions say.

#include "ir/plan/plan.h"

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringMap.h"

#include <functional>
#include <memory>

namespace plimsoll {

// One weight of the model in several states.
struct PackedWeight {
  std::string source;                               // the model's name of the weight, and of its codes
  std::string scales, scale_scales, offset;         // names that loaders are asked for; the latter two may be empty
  Type codes_type, scales_type, scale_scales_type;  // of the whole states
  std::string format;                               // of the op
  DType dtype = DType::BF16;                        // of the numbers that it makes
  int64_t block = 0;
  Shape shape;              // [outputs, inputs]
  bool transposed = false;  // the model's weight is [inputs, outputs]

  Type model_type() const { return Type(DType::F32, transposed ? Shape{shape[1], shape[0]} : shape); }
};
std::vector<PackedWeight> packed_weights_of(const Plan& plan);

// The codes and scales of one weight, in the types of its states.
struct Packed {
  Tensor codes, scales, scale_scales, offset;
};

// Floats that are not initialised, kept from one weight to the next: fresh memory costs more than packing does.
class FloatBuffer {
 public:
  float* at_least(int64_t count) {
    if (count > count_) floats_.reset(new float[static_cast<size_t>(count_ = count)]);
    return floats_.get();
  }

 private:
  std::unique_ptr<float[]> floats_;
  int64_t count_ = 0;
};

// Numbers of a weight in the order of its codes, where they lie or in the buffer. Several threads ask at once.
using NumbersOf = llvm::function_ref<Result<const float*>(int64_t first, int64_t count, FloatBuffer& buffer)>;

// Packs a weight in pieces of whole blocks, so that a piece is read, packed and gone while it is in the cache. Codes go
// to `codes`, scales to `packed`; `buffers` are as many as reading_threads().
Status pack(const PackedWeight& weight, NumbersOf numbers, llvm::MutableArrayRef<FloatBuffer> buffers,
            const TensorView& codes, Packed& packed);
// The same of numbers of model_type() in memory, which are turned piece by piece where it is transposed.
Status pack(const PackedWeight& weight, const TensorView& numbers, llvm::MutableArrayRef<FloatBuffer> buffers,
            const TensorView& codes, Packed& packed);

// Serves the parts of quantised weights to who loads the states of a plan.
class WeightPacker {
 public:
  using Load = std::function<Status(llvm::StringRef name, const TensorView& into)>;
  using LoadRange =
      std::function<Status(llvm::StringRef name, const Type& whole, int64_t first, const TensorView& into)>;
  using TypeOf = std::function<std::optional<Type>(llvm::StringRef name)>;

  // `load` gives the model's weights in f32, and `load_range`, on several threads at once, as many elements as `into`
  // has; empty: weights are loaded whole. Where `type_of` (it may be empty) says that the file has a weight's codes
  // themselves, these and their scales go through unchanged.
  WeightPacker(const Plan& plan, Load load, LoadRange load_range, TypeOf type_of);

  bool makes(llvm::StringRef name) const { return by_part_.count(name) > 0; }
  // Which weight a part is of; it must be one.
  size_t weight_of(llvm::StringRef name) const { return by_part_.lookup(name); }
  // One of the parts, whole. A weight is loaded once for all its parts, where each is asked for once and before those
  // of another weight.
  Status load(llvm::StringRef name, const TensorView& into);

 private:
  // Codes go to `codes`, scales to packed_.
  Status make(const PackedWeight& weight, const TensorView& codes);
  Status take_stored(const PackedWeight& weight, const TensorView& codes);

  std::vector<PackedWeight> weights_;
  llvm::StringMap<size_t> by_part_;
  Load load_;
  LoadRange load_range_;
  TypeOf type_of_;
  std::string made_;                  // of which weight packed_ is
  Packed packed_;                     // without codes where these are at who asked for them
  FloatBuffer numbers_;               // of one weight
  std::vector<FloatBuffer> buffers_;  // of a piece of it, by thread
};

}  // namespace plimsoll
