// What Python has of the parameter server's start: secrets, a server in this process, and the session of the ranks that
// use one together.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "motley/base/log.h"
#include "motley/bind/parts.h"
#include "motley/net/region.h"
#include "motley/net/socket.h"
#include "motley/ps/service/service.h"

namespace motley::bind {
namespace {

namespace py = pybind11;
using Publish = std::function<void(const std::string& address)>;

std::unique_ptr<ps::Service> start_server(const net::Secret& token, const std::string& listen,
                                          const std::string& embedding_dir) {
  return value_or_raise(ps::Service::start({.listen = value_or_raise(net::parse_endpoint(listen)),
                                            .encryption = value_or_raise(net::encryption_from_environment()),
                                            .tables = embedding_dir},
                                           ps::Tenants(token)));
}

// What Python raises while it publishes the address ends the join as an error does.
Status publish_to(const Publish& publish, const net::Endpoint& endpoint) {
  try {
    publish(net::to_string(endpoint));
    return {};
  } catch (const std::exception& problem) {
    return fail(ErrorCode::kInternal, "the other ranks could not be told where rank 0 is: {}", problem.what());
  }
}

std::shared_ptr<net::Session> join_session(const std::string& job, int rank, int size, const std::string& rendezvous,
                                           const net::Secret& secret, const std::string& bind_host, bool given_secret,
                                           double seconds, const Publish& publish) {
  net::SessionOptions options = {.job = job,
                                 .rank = rank,
                                 .size = size,
                                 .rendezvous = value_or_raise(net::parse_endpoint(rendezvous)),
                                 .bind_host = bind_host,
                                 .given_secret = given_secret,
                                 .join_seconds = seconds,
                                 .encryption = value_or_raise(net::encryption_from_environment())};
  if (publish) options.publish = [&](const net::Endpoint& endpoint) { return publish_to(publish, endpoint); };
  return value_or_raise(net::Session::join(options, secret));
}

}  // namespace

void add_parameter_server(py::module_& module) {
  // A library says nothing unless something is wrong.
  if (spdlog::default_logger()->name().empty()) start_logging("warn");
  const py::call_guard<py::gil_scoped_release> without_lock;
  module.def("host_id", &net::host_id);
  py::class_<net::Secret>(module, "Secret")
      .def_static("generate", &net::Secret::generate)
      .def_static(
          "from_file",
          [](const std::string& path, const char* variable) {
            return value_or_raise(net::Secret::from_file(path, variable));
          },
          py::arg("path"), py::arg("variable"))
      .def(
          "write", [](const net::Secret& secret, const std::string& path) { check(secret.write(path)); },
          py::arg("path"));
  module.attr("TOKEN_FILE_VARIABLE") = net::kTokenFileVariable;
  module.attr("SECRET_FILE_VARIABLE") = net::kSecretFileVariable;
  py::class_<ps::Service>(module, "ParameterServer")
      .def(py::init(&start_server), py::arg("token"), py::arg("listen"), py::arg("embedding_dir"))
      .def_property_readonly("address", &ps::Service::address);
  py::class_<net::Session, std::shared_ptr<net::Session>>(module, "Session")
      .def(py::init(&join_session), py::arg("job"), py::arg("rank"), py::arg("size"), py::arg("rendezvous"),
           py::arg("secret"), py::arg("bind_host"), py::arg("given_secret"), py::arg("seconds"), py::arg("publish"),
           without_lock)
      .def(
          "abort",
          [](net::Session& session, const std::string& reason) {
            // What follows from a failure that is known is no cause.
            if (session.health()) session.abort({ErrorCode::kInternal, reason, session.membership().rank});
          },
          py::arg("reason"), without_lock)
      .def(
          "first_cause",
          [](const net::Session& session, const std::string& seen) {
            return net::first_cause(session, {ErrorCode::kPeerLost, seen}).message;
          },
          py::arg("seen"), without_lock)
      .def("leave", &net::Session::leave, without_lock);
}

}  // namespace motley::bind
