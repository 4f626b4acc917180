// What `motley check` finds out about this machine.
#pragma once

#include <string>

#include "motley/base/result.h"

namespace motley::app {

struct MachineCheck {
  std::string text;  // a line for each thing that Motley uses
  Status works;      // error (kUnavailable): the first thing that does not and without which no job runs
};
// `torch_version` is that of the caller's libtorch; "": it has none.
MachineCheck check_this_machine(const std::string& torch_version);

// This machine as a cluster file.
std::string describe_this_machine();

}  // namespace motley::app
