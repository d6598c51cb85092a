#include "runtime/data/padding.h"

#include "runtime/data/match_inputs.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cstring>

namespace plimsoll {
namespace {

bool is_named_like_a_mask(const InputSpec& input) {
  const std::string name = llvm::StringRef(input.name).lower();
  return llvm::StringRef(name).contains("mask");
}

std::optional<size_t> find_field(const Dataset& data, llvm::StringRef name) {
  for (const auto& field : llvm::enumerate(data.fields()))
    if (field.value().name == name) return field.index();
  return std::nullopt;
}

void fill(const TensorView& into, double value) {
  for (int64_t i = 0; i < into.elements(); ++i)
    if (is_float(into.type.dtype))
      into.set(i, value);
    else
      into.set_int(i, static_cast<int64_t>(value));
}

// Where a row of the padded data comes from.
struct Source {
  size_t field = 0;
  bool is_mask = false;  // of the field, in the place of its elements
  double pad = 0;
};

class PaddedSamples : public Dataset {
 public:
  PaddedSamples(std::unique_ptr<Dataset> data, std::vector<Field> fields, std::vector<Source> sources,
                std::optional<size_t> counted, const Padding& padding)
      : data_(std::move(data)),
        fields_(std::move(fields)),
        sources_(std::move(sources)),
        counted_(counted),
        padding_(padding) {}

  int64_t samples() const override { return data_->samples(); }
  llvm::ArrayRef<Field> fields() const override { return fields_; }
  std::string where() const override { return data_->where(); }
  std::string where_is(int64_t sample) const override { return data_->where_is(sample); }
  bool is_computed() const override { return data_->is_computed(); }
  std::optional<int64_t> least_length(int64_t sample) const override {
    int64_t longest = 0;
    for (size_t i = 0; i < sources_.size(); ++i)
      if (fits_lengths(i))
        longest = std::max(longest, std::min(data_->length(sample, sources_[i].field), fields_[i].type.shape[0]));
    return longest;
  }
  bool fits_lengths(size_t field) const override { return data_->fields()[sources_[field].field].varies; }
  std::optional<int64_t> tokens_in(int64_t sample) const override {
    if (!counted_) return std::nullopt;
    return std::min(data_->length(sample, sources_[*counted_].field), fields_[*counted_].type.shape[0]);
  }

  std::string note() const override {
    std::string text = data_->note();
    for (size_t i = 0; i < sources_.size(); ++i)
      if (sources_[i].is_mask)
        text += (text.empty() ? "" : "; ") + ("'" + fields_[i].name) + "' is made from the padding of '" +
                data_->fields()[sources_[i].field].name + "'";
    return text;
  }

  Status read(int64_t sample, size_t field, const TensorView& into, const RandomStream& random,
              ReadBuffers& buffers) const override {
    const Source& source = sources_[field];
    const Field& from = data_->fields()[source.field];
    if (!from.varies) return data_->read(sample, source.field, into, random, buffers);
    const int64_t room = into.type.shape[0], length = data_->length(sample, source.field),
                  shown = std::min(length, room), first = padding_.side == PadSide::Left ? room - shown : 0;
    if (length > room && padding_.longer != LongSample::Cut) return is_longer(sample, from, length, room);
    fill(part(into, 0, first), source.pad);
    fill(part(into, first + shown, room - first - shown), source.pad);
    if (source.is_mask) return fill(part(into, first, shown), 1), Status::success();
    if (length == shown) return data_->read(sample, source.field, part(into, first, shown), random, buffers);
    Type whole = into.type;
    whole.shape[0] = length;
    buffers.sample.resize(static_cast<size_t>(whole.bytes()));
    if (Status s = data_->read(sample, source.field, {whole, buffers.sample.data()}, random, buffers)) return s;
    std::memcpy(into.data, buffers.sample.data(), static_cast<size_t>(into.type.bytes()));
    return Status::success();
  }

  void mix(llvm::ArrayRef<TensorView> batch, const RandomStream& random) const override { data_->mix(batch, random); }

 private:
  // Elements [first, first + count) of a row's first dimension.
  static TensorView part(const TensorView& row, int64_t first, int64_t count) {
    Type type = row.type;
    type.shape[0] = 1;
    const int64_t bytes = type.bytes();
    type.shape[0] = count;
    return {type, row.as<char>() + first * bytes};
  }

  Status is_longer(int64_t sample, const Field& field, int64_t length, int64_t room) const {
    return model_error(data_->where_is(sample) + ": '" + field.name + "' is " + llvm::Twine(length) +
                       " long, the plan takes " + llvm::Twine(room) +
                       "; compile it for a longer input, or cut samples with longer = \"cut\" in [transforms]");
  }

  std::unique_ptr<Dataset> data_;
  std::vector<Field> fields_;            // of the plan's length
  std::vector<Source> sources_;          // of each field
  const std::optional<size_t> counted_;  // the field whose lengths are a sample's tokens
  const Padding padding_;
};

class Padder {
 public:
  Padder(const Dataset& data, llvm::ArrayRef<InputSpec> inputs, const Padding& padding)
      : data_(data), inputs_(inputs), padding_(padding) {}

  std::vector<Field> fields;
  std::vector<Source> sources;
  std::optional<size_t> counted;

  Status plan() {
    for (const InputSpec& input : inputs_) {
      const std::optional<size_t> field = find_field(data_, input.name);
      if (Status s = field ? add_field(input, *field) : add_missing(input)) return s;
    }
    for (const std::string& mask : padding_.masks)
      if (llvm::none_of(inputs_, [&](const InputSpec& input) { return input.name == name_of(mask); }))
        return usage_error("[transforms]: mask: the plan has no input '" + name_of(mask) + "'");
    return Status::success();
  }

 private:
  static llvm::StringRef name_of(llvm::StringRef mask) { return mask.split(':').first; }

  Status add_field(const InputSpec& input, size_t index) {
    const Field& field = data_.fields()[index];
    if (!field.varies) {
      fields.push_back(field);
      sources.push_back({index});
      return Status::success();
    }
    if (input.whole || input.type.rank() < 2)
      return model_error(data_.where() + ": samples of '" + field.name + "' differ in length, the plan's input is " +
                         to_string(input.type));
    fields.push_back({field.name, with_length(field.type, input.type.shape[1])});
    const bool is_label = holds_class_labels(input);
    const double label = static_cast<double>(padding_.label.value_or(ignored_label_of(input)));
    sources.push_back({index, false, is_label ? label : padding_.value.value_or(0)});
    const bool is_token = input.type.rank() == 2 && is_integer(input.type.dtype) && !is_label;
    if (is_token && !counted) counted = fields.size() - 1;
    return Status::success();
  }

  // A mask, or an input that is reported as missing when the data are matched.
  Status add_missing(const InputSpec& input) {
    const auto named = llvm::find_if(padding_.masks, [&](llvm::StringRef mask) { return name_of(mask) == input.name; });
    const bool is_named = named != padding_.masks.end();
    if (!is_named && !(padding_.masks.empty() && is_named_like_a_mask(input))) return Status::success();
    Result<size_t> of = masked_field(input, is_named ? llvm::StringRef(*named).split(':').second : "");
    if (!of) return of.takeError();
    fields.push_back({input.name, Type(input.type.dtype, llvm::ArrayRef<int64_t>(input.type.shape).drop_front())});
    sources.push_back({*of, true});
    return Status::success();
  }

  // The field that a mask is of: the one that is named, else the first of token numbers with the mask's length.
  Result<size_t> masked_field(const InputSpec& mask, llvm::StringRef name) const {
    if (mask.type.rank() == 2)
      for (const InputSpec& input : inputs_) {
        const std::optional<size_t> field = find_field(data_, input.name);
        if (!field || !data_.fields()[*field].varies || (!name.empty() && input.name != name)) continue;
        if (name.empty() && (input.type.rank() < 2 || holds_class_labels(input))) continue;
        if (input.type.shape[1] == mask.type.shape[1]) return *field;
      }
    return model_error(data_.where() + ": '" + mask.name + "' " + to_string(mask.type) +
                       " cannot be made from padding: no input of samples that differ in length" +
                       (name.empty() ? llvm::Twine(" has its length") : " and has its length is called " + name));
  }

  static Type with_length(const Type& element, int64_t length) {
    Type type = element;
    type.shape.insert(type.shape.begin(), length);
    return type;
  }

  const Dataset& data_;
  llvm::ArrayRef<InputSpec> inputs_;
  const Padding& padding_;
};

}  // namespace

int64_t ignored_label_of(const InputSpec& input) {
  return input.index && input.index->ignored ? *input.index->ignored : ignored_label;
}

bool holds_class_labels(const InputSpec& input) {
  return is_signed_integer(input.type.dtype) && (holds_labels(input) || (input.index && input.index->is_label));
}

bool has_lengths(const Dataset& data, llvm::ArrayRef<InputSpec> inputs) {
  return llvm::any_of(inputs, [&](const InputSpec& input) {
    const std::optional<size_t> field = find_field(data, input.name);
    return field && data.fields()[*field].varies;
  });
}

Result<std::unique_ptr<Dataset>> pad_samples(std::unique_ptr<Dataset> data, llvm::ArrayRef<InputSpec> inputs,
                                             const Padding& padding) {
  Padder padder(*data, inputs, padding);
  if (Status s = padder.plan()) return s;
  return std::make_unique<PaddedSamples>(std::move(data), std::move(padder.fields), std::move(padder.sources),
                                         padder.counted, padding);
}

}  // namespace plimsoll
