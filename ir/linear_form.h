#pragma once

// In which operands an op's results are linear: a record's sum of products, such as "x @ w + bias". An operand that no
// product names is one in which they are not linear.

#include "ir/op_signature.h"

namespace plimsoll {

// Over which dimensions of its factors a product is summed.
enum class SummedDims : uint8_t {
  None,    // "x", "a * b"
  Some,    // "sum(x)", "sum(a * b)": the op's attributes say which
  Shared,  // "x @ w": all that both factors have
};

struct LinearTerm {
  FixedList<llvm::StringRef, 4> factors;  // names of operands
  SummedDims summed = SummedDims::None;
  bool stays = false;  // where all factors are absent
};

// The products add up to the result, each multiplied by what the operands that are in none of them make. A factor that
// is absent is left out, and so is a product of none; a repeated operand stands for as many products.
class LinearForm {
 public:
  constexpr LinearForm() = default;
  // Operand names with " + " between products, " * " or " @ " between factors, and sum() around a product. Signs are
  // left out. "1" is a factor of a product that stays where the others are absent. "?" leaves it open: it depends on
  // attributes, or codes are rounded with scales of their own.
  template <size_t size>
  constexpr LinearForm(const char (&text)[size]) {
    LinearTerm term;
    for (size_t at = 0; at + 1 < size;) {
      const size_t begin = at;
      while (is_in_name(text[at])) ++at;
      const llvm::StringRef name(text + begin, at - begin);
      const char mark = text[at];
      if (at > begin && mark == '(') term.summed = SummedDims::Some;
      if (at > begin && mark != '(') {
        const bool is_one = at == begin + 1 && text[begin] == '1';
        if (is_one) term.stays = true;
        if (!is_one) term.factors = term.factors.with({name});
      }
      if (mark == '@') term.summed = SummedDims::Shared;
      if (mark == '?') is_open_ = true;
      if (!is_sign(mark)) refuse();
      if (mark == '+') {
        terms_ = terms_.with({term});
        term = {};
      }
      at += at + 1 < size;
    }
    if (!term.factors.empty()) terms_ = terms_.with({term});
  }

  bool empty() const { return terms_.empty(); }
  bool is_open() const { return is_open_; }
  const FixedList<LinearTerm, 4>& terms() const { return terms_; }
  // Is it a factor? By its place in a call.
  bool has(const Ports& operands, size_t operand) const;
  bool sums_dims() const;

 private:
  static constexpr bool is_in_name(char c) { return (c >= 'a' && c <= 'z') || c == '_' || c == '1'; }
  static constexpr bool is_sign(char c) {
    for (const char sign : {'+', '*', '@', '(', ')', '?', ' ', '\0'})
      if (c == sign) return true;
    return false;
  }
  static void refuse() {}  // cannot be called in a constant, so that the compiler refuses the record

  FixedList<LinearTerm, 4> terms_;
  bool is_open_ = false;
};

// Of result 0, and of all others together.
struct LinearForms {
  LinearForm first, others;
};

// A product of operands that a call has, by their places in it.
struct PresentTerm {
  llvm::SmallVector<size_t, 2> factors;
  SummedDims summed;
};
// `is_present`: by operand of the call.
llvm::SmallVector<PresentTerm, 4> present_terms(const LinearForm& form, const Ports& operands,
                                                llvm::ArrayRef<bool> is_present);

}  // namespace plimsoll
