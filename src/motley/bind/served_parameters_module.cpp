#include <torch/csrc/utils/pybind.h>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "motley/bind/parts.h"
#include "motley/bind/served_parameters.h"

namespace motley::bind {
namespace {

namespace py = pybind11;

kernels::UpdateRule parse_rule(const std::string& name) {
  using enum kernels::UpdateRule;
  if (name == "sgd") return kSgd;
  if (name == "momentum") return kMomentum;
  if (name == "nesterov") return kNesterov;
  if (name == "adam") return kAdam;
  if (name == "adamw") return kAdamW;
  MOTLEY_INVARIANT(name == "sum", "the rule '{}' is unknown", name);
  return kSum;
}

}  // namespace

void add_served_parameters(py::module_& module) {
  using kernels::UpdateOptions;
  const py::call_guard<py::gil_scoped_release> without_lock;
  py::class_<UpdateOptions>(module, "UpdateOptions")
      .def(py::init([](const std::string& rule) { return UpdateOptions{.rule = parse_rule(rule)}; }), py::arg("rule"))
      .def_readwrite("momentum", &UpdateOptions::momentum)
      .def_readwrite("dampening", &UpdateOptions::dampening)
      .def_readwrite("weight_decay", &UpdateOptions::weight_decay)
      .def_readwrite("beta1", &UpdateOptions::beta1)
      .def_readwrite("beta2", &UpdateOptions::beta2)
      .def_readwrite("epsilon", &UpdateOptions::epsilon);

  using Begin = std::function<std::pair<double, double>()>;
  py::class_<ServedParameters, std::shared_ptr<ServedParameters>>(module, "ServedParameters")
      .def(py::init([](std::shared_ptr<net::Session> session, const std::vector<std::string>& servers,
                       const net::Secret& token, const std::string& suffix, const UpdateOptions& update,
                       const std::vector<std::pair<std::string, at::Tensor>>& parameters, std::size_t bucket_bytes,
                       const Begin& begin_step, double seconds, bool reversible) {
             ps::ServerOptions options;
             for (const std::string& address : servers) {
               options.servers.push_back({value_or_raise(net::parse_endpoint(address)), token});
             }
             options.update = update;
             options.reversible = reversible;
             options.job_suffix = suffix;
             nn::NamedTensors named;
             for (const auto& [name, tensor] : parameters) named.push_back({name, tensor});
             const auto begin = [begin_step] {
               const auto [weight, learning_rate] = begin_step();
               return ServedParameters::Step{weight, learning_rate};
             };
             return value_or_raise(
                 ServedParameters::join(std::move(session), options, named, bucket_bytes, begin, seconds));
           }),
           py::arg("session"), py::arg("servers"), py::arg("token"), py::arg("suffix"), py::arg("update"),
           py::arg("parameters"), py::arg("bucket_bytes"), py::arg("begin_step"), py::arg("seconds"),
           py::arg("reversible"), without_lock)
      .def_property_readonly("is_reversible", &ServedParameters::is_reversible)
      .def("squares", &ServedParameters::squares)
      .def(
          "take_back",
          [](ServedParameters& served, double factor, double seconds) { check(served.take_back(factor, seconds)); },
          py::arg("factor"), py::arg("seconds"), without_lock)
      .def(
          "load",
          [](ServedParameters& served, std::uint64_t updates, std::vector<nn::Tensors> arrays, double seconds) {
            check(served.load({updates, std::move(arrays)}, seconds));
          },
          py::arg("updates"), py::arg("arrays"), py::arg("seconds"), without_lock)
      .def("arm", &ServedParameters::arm)
      .def("disarm", &ServedParameters::disarm)
      .def(
          "flush", [](ServedParameters& served) { check(served.flush()); }, without_lock)
      .def(
          "wait", [](ServedParameters& served, double seconds) { check(served.wait(seconds)); }, py::arg("seconds"),
          without_lock)
      .def_property_readonly("announced_at", &ServedParameters::announced_at)
      .def(
          "save",
          [](ServedParameters& served, double seconds) {
            auto state = value_or_raise(served.save(seconds));
            return std::pair(state.updates, std::move(state.arrays));
          },
          py::arg("seconds"), without_lock)
      .def("leave", &ServedParameters::leave, without_lock);
}

}  // namespace motley::bind
