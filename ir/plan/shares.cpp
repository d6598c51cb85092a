#include "ir/plan/shares.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

class SharedOp {
 public:
  explicit SharedOp(const SharedCall& call) : call_(call), shares_(call.operands.begin(), call.operands.end()) {
    for (const std::optional<Share>& share : shares_) is_present_.push_back(share.has_value());
  }

  Result<Shares> results(size_t count) {
    const Collective& collective = call_.op.collective;
    if (collective && call_.attrs.get_string("axis") == axis_name(call_.axis)) return of_collective(count);
    if (draws_own(call_.attrs, call_.axis) && !reads_parts()) return all(count, Share::Unknown);
    if (collective) return all(count, shares_.size() == 1 ? shares_[0].value_or(Share::Unknown) : Share::Unknown);
    take_shares_of_loss();
    if (!reads(Share::Partial)) {
      if (reads_only({Share::Alike})) return all(count, Share::Alike);
      if (reads_only({Share::Whole})) return all(count, may_make_summands() ? Share::Alike : Share::Whole);
      if (call_.phase == Phase::Forward && reads_only({Share::Whole, Share::Alike})) return all(count, Share::Whole);
      if (std::optional<Shares> of_rows = results_of_rows(count)) return *of_rows;
    }
    Shares made;
    for (size_t r = 0; r < std::max<size_t>(count, 1); ++r) {
      Result<Share> share = by_form(r == 0 ? call_.op.linear.first : call_.op.linear.others, r);
      if (!share) return share.takeError();
      made.push_back(*share);
    }
    return made;
  }

 private:
  static Shares all(size_t count, Share share) { return Shares(std::max<size_t>(count, 1), share); }

  bool reads(Share share) const {
    return llvm::any_of(shares_, [&](const auto& each) { return each == share; });
  }
  bool reads_parts() const {
    return llvm::any_of(shares_, [](const auto& each) { return each && is_divided(*each); });
  }
  bool reads_only(llvm::ArrayRef<Share> some) const {
    return llvm::all_of(shares_, [&](const auto& each) { return !each || llvm::is_contained(some, *each); });
  }
  llvm::StringRef port(size_t operand) const {
    return operand < call_.op.operands.size() ? call_.op.operands[operand].name : llvm::StringRef("operand");
  }
  std::string axis() const { return axis_name(call_.axis).str(); }

  // Ranks hold the gradient of a sum over their rows whole, and alike what follows of it for each row. What they make
  // of that for a parameter that is added to each row is a summand by their own rows.
  bool may_make_summands() const { return call_.axis == MeshAxis::Data && call_.phase == Phase::Backward; }

  // Along tensor the gradient of a loss that ranks hold alike is the rank's share of it, until it is added up.
  void take_shares_of_loss() {
    if (call_.axis != MeshAxis::Tensor) return;
    for (size_t i = 0; i < shares_.size(); ++i)
      if (shares_[i] == Share::Alike && port(i) == "dloss") shares_[i] = Share::Partial;
  }

  Result<Shares> of_collective(size_t count) const {
    const auto [from, to] = std::pair(call_.op.collective.from, call_.op.collective.to);
    if (from == MeshPlacement::Partial && reads(Share::Whole)) return model_error("adds up what all ranks hold whole");
    if (from != MeshPlacement::Partial && reads(Share::Partial)) return not_added_up("a summand");
    if (to == MeshPlacement::Whole) return all(count, Share::Whole);
    if (to == from) return all(count, Share::Unknown);
    // A flat piece is a part of dimension 0 of what is flat, and the ranks along data take rows.
    if (to == MeshPlacement::Divided) return all(count, call_.axis == MeshAxis::Data ? Share::Rows : Share::Divided);
    return all(count, reads_parts() ? Share::Partial : Share::Unknown);
  }

  Status not_added_up(const llvm::Twine& what) const {
    return model_error("reads " + what + " that has not been added up over the ranks along " + axis());
  }

  // What the record says of a chunk of the batch is said of a rank's rows. A whole that is read in rows has equal ones.
  std::optional<Shares> results_of_rows(size_t count) const {
    if (!reads(Share::Rows)) return std::nullopt;
    const std::optional<ChunkCall> claim = chunk_of(call_.op, OpCall(call_.op, call_.attrs, call_.types), {0, 1});
    if (!claim) return std::nullopt;
    for (size_t i = 0; i < shares_.size(); ++i) {
      if (!shares_[i] || shares_[i] == Share::Whole || shares_[i] == Share::Alike) continue;
      if (shares_[i] != Share::Rows || !claim->cut[i]) return std::nullopt;
    }
    Shares made;
    for (size_t r = 0; r < std::max<size_t>(count, 1); ++r) {
      // What the samples weigh is read by means alone, for which divide-batch adds it up by itself. Of sums, where
      // nothing reads it, it is as good as a constant, of which nothing is claimed.
      const bool is_weight = call_.op.sample_weight && r > 0 && r + 1 == count;
      const Combine combine = combine_of(*claim, r);
      made.push_back(is_weight                  ? Share::Alike
                     : combine == Combine::Rows ? Share::Rows
                     : combine == Combine::Sum  ? Share::Partial
                                                : Share::Unknown);
    }
    return made;
  }

  // ---- By the products that add up to a result ----

  // Result 0 is refused where it cannot be meant; where others do not read an operand is not said.
  Result<Share> by_form(const LinearForm& form, size_t result) const {
    bool reads_other_summands = false;
    for (size_t i = 0; i < shares_.size(); ++i) {
      if (shares_[i] != Share::Partial || form.has(call_.op.operands, i)) continue;
      if (result == 0 && !form.is_open()) return not_added_up(port(i) + ", a summand");
      reads_other_summands = true;
    }
    if (form.is_open() || reads_other_summands) return Share::Unknown;
    const auto terms = present_terms(form, call_.op.operands, is_present_);
    if (scales_what_is_alike(form, terms)) return Share::Alike;
    size_t summands = 0, others = 0;
    bool may_sum_parts = false;
    for (const PresentTerm& term : terms) {
      Result<Term> found = find(form, term);
      if (!found) return found.takeError();
      summands += *found == Term::Summand;
      others += *found == Term::Other;
      may_sum_parts |= *found == Term::MaySumParts;
    }
    if (summands > 0 && others > 0) return model_error("adds a summand along " + axis() + " to what is none");
    if (summands > 0) return summands == terms.size() ? Share::Partial : Share::Unknown;
    if (may_sum_parts || !reads_parts() || reads(Share::Unknown)) return Share::Unknown;
    return !terms.empty() || call_.op.elementwise || call_.op.is_view() ? Share::Divided : Share::Unknown;
  }

  bool scales_what_is_alike(const LinearForm& form, llvm::ArrayRef<PresentTerm> terms) const {
    if (terms.empty() || !reads(Share::Alike) || !reads_only({Share::Whole, Share::Alike})) return false;
    for (size_t i = 0; i < shares_.size(); ++i)
      if (shares_[i] == Share::Alike && !form.has(call_.op.operands, i)) return false;
    return llvm::all_of(terms, [&](const PresentTerm& term) {
      return llvm::any_of(term.factors, [&](size_t factor) { return shares_[factor] == Share::Alike; });
    });
  }

  // What is known of a product.
  enum class Term : uint8_t { Unknown, MaySumParts, Summand, Other };
  Result<Term> find(const LinearForm& form, const PresentTerm& term) const {
    Counts factors, beside;
    for (size_t factor : term.factors) factors.add(*shares_[factor]);
    for (size_t i = 0; i < shares_.size(); ++i)
      if (shares_[i] && !form.has(call_.op.operands, i)) beside.add(*shares_[i]);
    const bool shares_dims = term.summed == SummedDims::Shared;
    if (factors.summands > 1)
      return model_error("multiplies summands that have not been added up over the ranks along " + axis());
    if (factors.summands > 0 && (beside.parts > 0 || (factors.parts > 0 && shares_dims)))
      return model_error("multiplies a summand along " + axis() + " with the rank's part");
    const bool beside_known = factors.unknown + beside.unknown + beside.parts == 0;
    if (factors.summands > 0) return beside_known && factors.parts == 0 ? Term::Summand : Term::Unknown;
    // A product over a dimension of which ranks have parts is their summand.
    if (shares_dims && factors.parts > 1) return beside_known ? Term::Summand : Term::MaySumParts;
    if (term.summed == SummedDims::Some && factors.parts > 0) return Term::MaySumParts;
    return factors.unknown + factors.alike > 0 ? Term::Unknown : Term::Other;
  }

  struct Counts {
    size_t unknown = 0, alike = 0, parts = 0, summands = 0;
    void add(Share share) {
      unknown += share == Share::Unknown;
      alike += share == Share::Alike;
      parts += is_divided(share);
      summands += share == Share::Partial;
    }
  };

  const SharedCall call_;
  llvm::SmallVector<std::optional<Share>, 8> shares_;
  llvm::SmallVector<bool, 8> is_present_;
};

}  // namespace

bool is_divided(Share share) { return share == Share::Divided || share == Share::Rows; }

bool draws_own(const Attrs& attrs, MeshAxis axis) {
  if (axis == MeshAxis::Data) return attrs.get_int("draws_per_rank") != 0;
  return attrs.get_int("draws_per_part") != 0 || attrs.get_int("all_classes") != 0;
}

Result<Shares> shares_of_results(const SharedCall& call, size_t count) {
  const size_t at = call.op.addend.empty() ? call.operands.size() : call.op.operand(call.op.addend);
  if (at >= call.operands.size() || !call.operands[at]) return SharedOp(call).results(count);
  // An addend is added to result 0 and to nothing else, as by an add behind the op.
  llvm::SmallVector<const Type*, 8> types(call.types.begin(), call.types.end());
  llvm::SmallVector<std::optional<Share>, 8> operands(call.operands.begin(), call.operands.end());
  types[at] = nullptr, operands[at] = std::nullopt;
  Result<Shares> made = SharedOp({call.op, call.attrs, types, operands, call.axis, call.phase}).results(count);
  if (!made) return made.takeError();
  const Attrs none;
  const Type* const added_types[] = {call.types[at], call.types[at]};
  const std::optional<Share> added[] = {made->front(), call.operands[at]};
  Result<Shares> sum = SharedOp({get_op("add"), none, added_types, added, call.axis, call.phase}).results(1);
  if (!sum) return sum.takeError();
  made->front() = sum->front();
  return made;
}

}  // namespace plimsoll
