// The program motley.
#include "motley/base/os/own_program.h"
#include "motley/cli/run.h"

int main(int argc, char** argv) {
  motley::OwnProgram program = motley::own_program();
  program.run = motley::cli::run;
  motley::set_own_program(std::move(program));
  return motley::cli::run(argc, argv);
}
