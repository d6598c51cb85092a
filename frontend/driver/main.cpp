#include "frontend/driver/command_line.h"

int main(int argc, char** argv) { return plimsoll::run_program(argc, argv); }
