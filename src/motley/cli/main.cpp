// The program motley.
#include "motley/cli/run.h"

int main(int argc, char** argv) {
  return motley::cli::run(argc, argv);
}
