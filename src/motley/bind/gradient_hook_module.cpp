#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include "motley/bind/gradient_hook.h"
#include "motley/bind/parts.h"

namespace motley::bind {

namespace py = pybind11;

void add_gradient_hook(py::module_& module) {
  py::class_<GradientWeight, std::shared_ptr<GradientWeight>>(module, "GradientWeight")
      .def(py::init<>())
      .def_readwrite("weight", &GradientWeight::weight)
      .def_readwrite("share", &GradientWeight::share)
      .def(
          "begin_statistics",
          [](GradientWeight& weight, std::vector<at::Tensor> layers, at::Tensor before, at::Tensor kept,
             at::Tensor kept_once) {
            weight.statistics =
                RunningStatistics{std::move(layers), std::move(before), std::move(kept), std::move(kept_once)};
          },
          py::arg("layers"), py::arg("before"), py::arg("kept"), py::arg("kept_once"))
      .def_readonly("finished", &GradientWeight::finished)
      .def_readonly("reduced", &GradientWeight::reduced)
      .def("begin", &GradientWeight::begin, py::arg("device"))
      .def("note_finished", &GradientWeight::note_finished, py::arg("device"))
      .def("device_seconds", &GradientWeight::device_seconds, py::call_guard<py::gil_scoped_release>());
  module.def(
      "register_gradient_hook",
      [](const std::shared_ptr<c10d::Reducer>& reducer, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
         const std::shared_ptr<GradientWeight>& weight) {
        reducer->register_comm_hook(std::make_unique<GradientHook>(group, weight));
      },
      py::arg("reducer"), py::arg("group"), py::arg("weight"));
}

}  // namespace motley::bind
