#include "motley/base/os/own_program.h"

#include <utility>

namespace motley {
namespace {

OwnProgram find_this_file() {
  std::error_code ignored;
  const std::filesystem::path file = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return {.command = {file.string()}, .folder = file.parent_path(), .run = {}};
}

OwnProgram& known() {
  static OwnProgram program = find_this_file();
  return program;
}

}  // namespace

const OwnProgram& own_program() {
  return known();
}

void set_own_program(OwnProgram program) {
  known() = std::move(program);
}

}  // namespace motley
