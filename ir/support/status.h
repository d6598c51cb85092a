#pragma once

// The error vocabulary of the whole project: everything that can fail returns
// Result<T> or Status, and every failure says whose fault it is.

#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"

#include <string>
#include <system_error>

namespace plimsoll {

template <typename T>
using Result = llvm::Expected<T>;
using Status = llvm::Error;

// Who can mend it. The driver maps a fault to an exit code (see docs/command_line.md).
enum class Fault {
  Usage,   // the caller asked for something that does not exist: exit 2
  Model,   // the model, weights or data cannot be used as asked: exit 3
  Budget,  // it does not fit: exit 4
  System,  // files, memory, the machine: exit 5
};

class Diag : public llvm::ErrorInfo<Diag> {
 public:
  static char ID;

  Diag(Fault fault, std::string message) : fault_(fault), message_(std::move(message)) {}

  Fault fault() const { return fault_; }
  const std::string& text() const { return message_; }

  void log(llvm::raw_ostream& out) const override;
  std::error_code convertToErrorCode() const override;

 private:
  Fault fault_;
  std::string message_;
};

// A failed Status; it converts to any Result<T>. Messages start in lower case and end without a
// period; they name the node, the number and the limit.
Status usage_error(const llvm::Twine& message);
Status model_error(const llvm::Twine& message);
Status budget_error(const llvm::Twine& message);
Status system_error(const llvm::Twine& message);

// The same failure with "where: " in front of its message. `error` must be a failure.
Status in_context(const llvm::Twine& where, Status error);

// Takes the failure apart. A failure that is not ours counts as Fault::System.
Diag take_diag(Status error);

}  // namespace plimsoll
