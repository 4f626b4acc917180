#include <pybind11/stl.h>

#include "motley/base/os/process_pacer.h"
#include "motley/bind/parts.h"

namespace motley::bind {

namespace py = pybind11;

void add_process_pacer(py::module_& module) {
  py::class_<ProcessPacer>(module, "ProcessPacer")
      .def(py::init([](const std::vector<std::pair<pid_t, double>>& rates) {
             std::vector<ProcessPacer::Process> processes;
             for (const auto& [pid, rate] : rates) processes.push_back({pid, rate});
             return std::make_unique<ProcessPacer>(value_or_raise(ProcessPacer::start(std::move(processes))));
           }),
           py::arg("rates"))
      .def("stop", &ProcessPacer::stop, py::call_guard<py::gil_scoped_release>());
  module.def("seconds_without_processor", &seconds_without_processor, py::arg("pid"));
}

}  // namespace motley::bind
