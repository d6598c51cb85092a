#pragma once

namespace plimsoll {

// Makes the first SIGINT, SIGTERM or SIGHUP a request to stop, which the training loop asks for; the second one ends
// the program at once. Writes beyond a limit on file sizes fail from now on, and do not end the program.
void catch_stop_signals();
bool stop_requested();

}  // namespace plimsoll
