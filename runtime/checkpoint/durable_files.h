#pragma once

// Files and folders that are on the disk when a call returns: the calls of POSIX that a power cut in between cannot
// turn into half a file under a final name. Errors name the file.

#include "ir/support/status.h"

#include "llvm/ADT/StringRef.h"

#include <string>

namespace plimsoll {

// Makes a folder that does not exist.
Status make_folder(const std::string& path);
// Writes a new file and waits until its bytes are on the disk.
Status write_durable_file(const std::string& path, llvm::StringRef bytes);
// Waits until the names in a folder are on the disk.
Status sync_folder(const std::string& path);
// Renames a folder. Where `to` exists already, the two change places in one move.
Status move_folder(const std::string& from, const std::string& to);
// Removes a folder and the files in it; one that does not exist is no error.
Status remove_folder(const std::string& path);

}  // namespace plimsoll
