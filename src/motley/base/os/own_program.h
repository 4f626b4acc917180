// How this process is started once more, with other arguments: the launcher of a job starts its workers and servers so,
// and the scheduler its jobs. It is the program's own file, unless the process is one that runs the commands for
// another reason, as Python does: then it says how, before anyone asks.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace motley {

struct OwnProgram {
  std::vector<std::string> command;  // a file, and words that come before the arguments
  std::filesystem::path folder;      // where the other programs of the same build or installation are
};

const OwnProgram& own_program();
void set_own_program(OwnProgram program);

}  // namespace motley
