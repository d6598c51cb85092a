#include "ir/support/status.h"

#include "llvm/Support/raw_ostream.h"

namespace plimsoll {

char Diag::ID = 0;

void Diag::log(llvm::raw_ostream& out) const { out << message_; }

std::error_code Diag::convertToErrorCode() const {
  return std::make_error_code(fault_ == Fault::System ? std::errc::io_error : std::errc::invalid_argument);
}

static Status make(Fault fault, const llvm::Twine& message) { return llvm::make_error<Diag>(fault, message.str()); }

Status usage_error(const llvm::Twine& message) { return make(Fault::Usage, message); }
Status model_error(const llvm::Twine& message) { return make(Fault::Model, message); }
Status budget_error(const llvm::Twine& message) { return make(Fault::Budget, message); }
Status system_error(const llvm::Twine& message) { return make(Fault::System, message); }

Status in_context(const llvm::Twine& where, Status error) {
  Diag diag = take_diag(std::move(error));
  // Of several ranks one tells why all end; the failure of the others has a fault and no words.
  if (diag.text().empty()) return make(diag.fault(), "");
  return make(diag.fault(), where + ": " + diag.text());
}

Diag take_diag(Status error) {
  Diag taken(Fault::System, "");
  llvm::handleAllErrors(
      std::move(error), [&](const Diag& diag) { taken = Diag(diag.fault(), diag.text()); },
      [&](const llvm::ErrorInfoBase& other) { taken = Diag(Fault::System, other.message()); });
  return taken;
}

}  // namespace plimsoll
