#include "motley/nn/emulated/emulated_accelerator.h"

#include <ATen/Context.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>

#include "motley/bind/parts.h"
#include "motley/nn/emulated/omissions.h"

namespace motley::bind {

namespace py = pybind11;

void add_emulated_accelerator(py::module_& module) {
  module.def(
      "enable_emulated_accelerator",
      [](const std::string& options) {
        check(nn::emulated::enable(value_or_raise(nn::emulated::Options::parse(options))));
        return nn::emulated::runtime().options().devices;
      },
      py::arg("options"));
  module.def("describe_emulated_accelerator", &nn::emulated::describe, py::arg("options"));
  module.def(
      "collect_emulated_violations", [](bool on) { nn::emulated::runtime().collect_violations(on); }, py::arg("on"));
  module.def("take_emulated_violations", [] { return nn::emulated::runtime().take_violations(); });
  module.def("note_emulated_places", &nn::emulated::note_places, py::arg("on"));
  module.def("emulated_places", [] {
    std::vector<std::string> places;
    for (const nn::emulated::Place& place : nn::emulated::noted_places()) places.push_back(place.text());
    return places;
  });
  module.def(
      "omit_emulated",
      [](const std::string& text) {
        if (text.empty()) return nn::emulated::omit_place(nullptr);
        const nn::emulated::Place place = value_or_raise(nn::emulated::Place::parse(text));
        nn::emulated::omit_place(&place);
      },
      py::arg("place"));
  module.def(
      "emulated_generator",
      [](c10::DeviceIndex device) {
        const at::Generator generator =
            at::globalContext().defaultGenerator(c10::Device(c10::DeviceType::PrivateUse1, device));
        return py::reinterpret_steal<py::object>(THPGenerator_Wrap(generator));
      },
      py::arg("device"));
  module.def("emulated_memory_bytes", [] { return nn::emulated::runtime().options().memory_bytes; });
}

}  // namespace motley::bind
