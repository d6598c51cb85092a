#include "frontend/driver/command_line.h"
#include "frontend/driver/limit_spinning.h"

int main(int argc, char** argv) {
  plimsoll::limit_spinning(argv);
  return plimsoll::run_program(argc, argv);
}
