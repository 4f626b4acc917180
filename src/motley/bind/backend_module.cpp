// What Python sees of the backend: how one is made. Its methods are those of c10d::Backend, which PyTorch binds.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include "motley/bind/backend.h"
#include "motley/bind/parts.h"

namespace motley::bind {

namespace py = pybind11;

void add_backend(py::module_& module) {
  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(module, "Backend")
      .def(py::init([](int rank, int size, std::chrono::milliseconds timeout, c10::intrusive_ptr<c10d::Backend> gloo,
                       std::string why_no_gloo) {
             return c10::make_intrusive<Backend>(rank, size, timeout,
                                                 Backend::Delegate{std::move(gloo), std::move(why_no_gloo)});
           }),
           py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("gloo"), py::arg("why_no_gloo"),
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace motley::bind
