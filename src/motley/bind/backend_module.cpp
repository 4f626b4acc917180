// What Python sees of the backend: how one is made. PyTorch has bound its methods, which are those of c10d::Backend.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "motley/bind/backend.h"
#include "motley/bind/parts.h"
#include "motley/net/region.h"

namespace motley::bind {

namespace py = pybind11;

namespace {

// What the ranks of a group have agreed on, by the store that they share.
struct Rendezvous {
  std::string secret;                               // in hex
  bool is_given_secret = false;                     // the user's own: the ranks are on several hosts
  std::string endpoint;                             // where rank 0 listens: there, any port of a host
  std::string bind_host;                            // that this rank listens at
  std::function<void(const std::string&)> publish;  // rank 0's endpoint with its port, before the others are waited for
  collective::Transport transport = collective::Transport::kAuto;
  bool seeks_cause = true;  // see net::SessionOptions
};

Result<Backend::Group> join(int rank, double seconds, const Rendezvous& rendezvous, const std::vector<int>& ranks) {
  const int size = static_cast<int>(ranks.size());
  net::SessionOptions options;
  options.job = "process group";
  options.rank = rank;
  options.size = size;
  options.bind_host = rendezvous.bind_host;
  options.given_secret = rendezvous.is_given_secret;
  options.join_seconds = seconds;
  options.seeks_cause = rendezvous.seeks_cause;
  options.publish = [&](const net::Endpoint& bound) -> Status {
    rendezvous.publish(fmt::format("{}:{}", bound.host, bound.port));
    return {};
  };
  MOTLEY_ASSIGN(options.encryption, net::encryption_from_environment());
  MOTLEY_ASSIGN(options.rendezvous, net::parse_endpoint(rendezvous.endpoint));
  MOTLEY_ASSIGN(const auto secret, net::Secret::from_text(rendezvous.secret, "the process group's secret"));
  Backend::Group group;
  MOTLEY_ASSIGN(group.session, net::Session::join(options, secret));
  MOTLEY_ASSIGN(group.communicator,
                collective::Communicator::create(*group.session, rendezvous.transport, Deadline::after(seconds)));
  for (int index = 0; index < size; ++index) {
    if (ranks[index] != index) {
      group.words = fmt::format(", by their numbers in the group of ranks {}", fmt::join(ranks, ", "));
      break;
    }
  }
  return group;
}

}  // namespace

void add_backend(py::module_& module) {
  py::class_<Rendezvous>(module, "Rendezvous")
      .def(py::init([](std::string secret, bool is_given_secret, std::string endpoint, std::string bind_host,
                       std::function<void(const std::string&)> publish, bool over_tcp, bool seeks_cause) {
             return Rendezvous{
                 std::move(secret),   is_given_secret,
                 std::move(endpoint), std::move(bind_host),
                 std::move(publish),  over_tcp ? collective::Transport::kTcp : collective::Transport::kAuto,
                 seeks_cause};
           }),
           py::arg("secret"), py::arg("is_given_secret"), py::arg("endpoint"), py::arg("bind_host"), py::arg("publish"),
           py::arg("over_tcp"), py::arg("seeks_cause"));
  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(module, "Backend")
      .def(py::init([](int rank, const std::vector<int>& ranks, std::chrono::milliseconds timeout,
                       const std::optional<Rendezvous>& rendezvous, c10::intrusive_ptr<c10d::Backend> gloo,
                       std::string why_no_gloo) {
             const double seconds = std::chrono::duration<double>(timeout).count();
             auto group = rendezvous ? value_or_throw(join(rank, seconds, *rendezvous, ranks)) : Backend::Group();
             return c10::make_intrusive<Backend>(rank, static_cast<int>(ranks.size()), timeout, std::move(group),
                                                 Backend::Delegate{std::move(gloo), std::move(why_no_gloo)});
           }),
           py::arg("rank"), py::arg("ranks"), py::arg("timeout"), py::arg("rendezvous"), py::arg("gloo"),
           py::arg("why_no_gloo"), py::call_guard<py::gil_scoped_release>())
      .def("give_up", &Backend::give_up, py::arg("reason"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("timeout", &Backend::timeout)
      .def_property_readonly("is_out_of_memory", &Backend::is_out_of_memory)
      .def(
          "renew",
          [](Backend& backend, const std::vector<int>& ranks, double seconds, const Rendezvous& rendezvous,
             c10::intrusive_ptr<c10d::Backend> gloo, std::string why_no_gloo) {
            backend.renew([&] { return value_or_throw(join(backend.getRank(), seconds, rendezvous, ranks)); },
                          {std::move(gloo), std::move(why_no_gloo)});
          },
          py::arg("ranks"), py::arg("seconds"), py::arg("rendezvous"), py::arg("gloo"), py::arg("why_no_gloo"),
          py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("transport", &Backend::transport);
  module.def("shutdown_backends", &Backend::shutdown_all, py::call_guard<py::gil_scoped_release>());
  module.def("generate_secret", [] { return net::Secret::generate().hex(); });
  module.def(
      "share_secret",
      [](const std::string& secret) {
        const net::Secret shared = value_or_raise(net::Secret::from_text(secret, "the process group's secret"));
        return value_or_raise(shared.share()).release();
      },
      py::arg("secret"));
  module.def(
      "read_shared_secret",
      [](std::int64_t process, int descriptor) {
        return value_or_raise(net::Secret::from_process(process, descriptor)).hex();
      },
      py::arg("process"), py::arg("descriptor"));
  module.def(
      "read_secret", [](const std::string& path) { return value_or_raise(net::Secret::from_file(path)).hex(); },
      py::arg("path"));
}

}  // namespace motley::bind
