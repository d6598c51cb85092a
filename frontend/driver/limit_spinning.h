#pragma once

namespace plimsoll {

// Starts the program again with a short GOMP_SPINCOUNT, unless the environment says how OpenMP's threads wait. GNU's
// library reads it before main(). Without it a thread that has nothing to do spins for milliseconds, and where another
// program wants the core, every parallel loop of a step loses a time slice: on two cores with a load of 9, a step of
// 94 ms took 1,970 ms; so it takes 217.
void limit_spinning(char** argv);

}  // namespace plimsoll
