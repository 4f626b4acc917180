// How this process is started once more, with other arguments: the launcher of a job starts its workers and servers so,
// and the scheduler its jobs. It is the program's own file, unless the process is one that runs the commands for
// another reason, as Python does: then it says how, before anyone asks.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace motley {

struct OwnProgram {
  std::vector<std::string> command;  // a file, and words that come before the arguments
  std::filesystem::path folder;      // where the other programs of the same build or installation are
  // What the program calls with its words (main's arguments): a fork of this process that calls it is the program too,
  // without the time that loading takes. Empty: a fork is not.
  std::function<int(int, const char* const*)> run;
};

const OwnProgram& own_program();
void set_own_program(OwnProgram program);

}  // namespace motley
