// The wrapper of attempts as a program of its own: FOLDER DIRECTORY -- COMMAND...
#include "motley/scheduling/executors/run_attempt.h"

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  return motley::scheduling::run_attempt({.folder = argv[1], .directory = argv[2], .command = {argv + 4, argv + argc}})
             ? 0
             : 1;
}
