#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <cstdio>

#include "motley/base/os/own_program.h"
#include "motley/bind/parts.h"
#include "motley/cli/run.h"
#include "motley/serial/options.h"

namespace motley::bind {

namespace py = pybind11;

void add_commands(py::module_& module) {
  module.def(
      "set_own_program",
      [](std::vector<std::string> command, std::filesystem::path folder) {
        set_own_program({.command = std::move(command), .folder = std::move(folder), .run = {}});
      },
      py::arg("command"), py::arg("folder"));
  module.def(
      "run_command",
      [](const std::vector<std::string>& words) {
        std::vector<const char*> typed = {"motley"};
        for (const std::string& word : words) typed.push_back(word.c_str());
        const int code = cli::run(static_cast<int>(typed.size()), typed.data());
        std::fflush(stdout);
        return code;
      },
      py::arg("words"), py::call_guard<py::gil_scoped_release>());
  module.def("nearest_key", &nearest_key, py::arg("key"), py::arg("keys"));
}

}  // namespace motley::bind
