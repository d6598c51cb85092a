#include "runtime/checkpoint/stored_moments.h"

#include "ir/eight_bit_moments.h"
#include "ir/support/parallel.h"

#include <algorithm>

namespace plimsoll {
namespace {

// What a state is to its parameter.
enum class Part : uint8_t { Mean, Square, Scales };
struct Named {
  llvm::StringRef parameter;
  Part part;
};

std::optional<Named> parse(llvm::StringRef name) {
  if (name.consume_back(scales_suffix)) return Named{name, Part::Scales};
  if (name.consume_back(square_suffix)) return Named{name, Part::Square};
  if (name.consume_back(mean_suffix)) return Named{name, Part::Mean};
  return std::nullopt;
}

}  // namespace

StoredMoments::Stored StoredMoments::find(llvm::StringRef parameter, bool is_signed) const {
  Stored moment{.is_signed = is_signed};
  const TensorEntry* entry = file_.find((parameter + (is_signed ? mean_suffix : square_suffix)).str());
  if (!entry) return moment;
  if (is_float(entry->type.dtype)) {
    moment.entry = entry;
    return moment;
  }
  const TensorEntry* scales = file_.find((parameter + scales_suffix).str());
  const bool is_whole = entry->type.dtype == DType::U8 && scales && scales->type.dtype == DType::F32 &&
                        scales->type.elements() == 2 * moment_blocks(entry->type.elements());
  if (is_whole) moment.entry = entry, moment.scales = scales;
  return moment;
}

std::optional<std::vector<std::string>> StoredMoments::sources_of(const WholeState& state) const {
  const std::optional<Named> named = parse(state.name);
  if (!named || state.role != StateRole::Optimizer) return std::nullopt;
  const Stored mean = find(named->parameter, true), square = find(named->parameter, false);
  if (!mean.entry || !square.entry) return std::nullopt;
  if (named->part == Part::Scales) {
    if (mean.scales || square.scales) return std::nullopt;
    if (state.type.elements() != 2 * moment_blocks(mean.entry->type.elements())) return std::nullopt;
    return std::vector<std::string>{mean.entry->name, square.entry->name};
  }
  const Stored& own = named->part == Part::Mean ? mean : square;
  const bool other_form = is_float(state.type.dtype) ? own.scales != nullptr : own.scales == nullptr;
  if (!other_form || own.entry->type.shape != state.type.shape) return std::nullopt;
  std::vector<std::string> sources{own.entry->name};
  if (own.scales) sources.push_back(own.scales->name);
  return sources;
}

Result<std::vector<float>> StoredMoments::read(const Stored& moment, int64_t first, int64_t count) const {
  std::vector<float> numbers(static_cast<size_t>(count));
  Tensor stored(Type(moment.entry->type.dtype, {count}));
  if (Status s = file_.read_range(*moment.entry, first, count, stored.data())) return s;
  if (!moment.scales) {
    for (int64_t i = 0; i < count; ++i) numbers[static_cast<size_t>(i)] = static_cast<float>(stored.get(i));
    return numbers;
  }
  const int64_t first_block = first / moment_block, blocks = moment_blocks(first + count) - first_block;
  std::vector<float> scales(static_cast<size_t>(2 * blocks));
  if (Status s = file_.read_range(*moment.scales, 2 * first_block, 2 * blocks, scales.data())) return s;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t block = (first + i) / moment_block - first_block;
    const float scale = scales[static_cast<size_t>(2 * block + (moment.is_signed ? 0 : 1))];
    numbers[static_cast<size_t>(i)] = moment_of(stored.view().as<uint8_t>()[i], scale, moment.is_signed);
  }
  return numbers;
}

Status StoredMoments::load_some(const WholeState& state, int64_t first, const TensorView& into) const {
  const Named named = *parse(state.name);
  const int64_t count = into.elements();
  if (named.part == Part::Scales) {
    const int64_t block = first / 2, blocks = (first + count + 1) / 2 - block;
    for (bool is_signed : {true, false}) {
      const Stored moment = find(named.parameter, is_signed);
      const int64_t begin = block * moment_block,
                    end = std::min((block + blocks) * moment_block, moment.entry->type.elements());
      Result<std::vector<float>> numbers = read(moment, begin, end - begin);
      if (!numbers) return numbers.takeError();
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t at = 2 * (block + b) + (is_signed ? 0 : 1) - first;
        if (at < 0 || at >= count) continue;
        const auto own = llvm::ArrayRef<float>(*numbers).drop_front(static_cast<size_t>(b * moment_block));
        into.set(at, moment_scale(own.take_front(static_cast<size_t>(moment_block))));
      }
    }
    return Status::success();
  }
  const Stored moment = find(named.parameter, named.part == Part::Mean);
  if (is_float(into.type.dtype)) {
    Result<std::vector<float>> numbers = read(moment, first, count);
    if (!numbers) return numbers.takeError();
    for (int64_t i = 0; i < count; ++i) into.set(i, (*numbers)[static_cast<size_t>(i)]);
    return Status::success();
  }
  const int64_t begin = first / moment_block * moment_block,
                end = std::min(moment_blocks(first + count) * moment_block, moment.entry->type.elements());
  Result<std::vector<float>> numbers = read(moment, begin, end - begin);
  if (!numbers) return numbers.takeError();
  const llvm::ArrayRef<float> all(*numbers);
  parallel_for(static_cast<size_t>(moment_blocks(end - begin)), [&](size_t b) {
    const size_t from = b * static_cast<size_t>(moment_block);
    const llvm::ArrayRef<float> block = all.drop_front(from).take_front(static_cast<size_t>(moment_block));
    const float scale = moment_scale(block);
    for (size_t i = 0; i < block.size(); ++i) {
      const int64_t at = begin + static_cast<int64_t>(from + i) - first;
      if (at >= 0 && at < count) into.as<uint8_t>()[at] = moment_code(block[i], scale, moment.is_signed);
    }
  });
  return Status::success();
}

// A million numbers at a time.
Status StoredMoments::load(const WholeState& state, int64_t first, const TensorView& into) const {
  constexpr int64_t most = int64_t{1} << 20;
  const bool are_scales = parse(state.name)->part == Part::Scales;
  const int64_t step = are_scales ? most / moment_block * 2 : most;
  for (int64_t done = 0; done < into.elements();) {
    // Whole blocks behind the first ones, so that no block is read twice.
    const int64_t end = (first + done) / step * step + step - first, count = std::min(end, into.elements()) - done;
    const TensorView some{Type(into.type.dtype, {count}), into.as<char>() + done * dtype_bytes(into.type.dtype)};
    if (Status s = load_some(state, first + done, some)) return s;
    done += count;
  }
  return Status::success();
}

}  // namespace plimsoll
