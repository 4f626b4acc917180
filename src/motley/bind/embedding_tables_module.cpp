// Embedding tables on parameter servers, where Python's modules find rows and send their gradients.
#include <torch/csrc/utils/pybind.h>

#include <ATen/ATen.h>
#include <pybind11/stl.h>

#include "motley/bind/parts.h"
#include "motley/ps/client/sparse_client.h"

namespace motley::bind {
namespace {

namespace py = pybind11;

// A rank's side of some tables. Ids are int64, rows [ids, dimension] float32; all are contiguous and on the CPU. One
// thread calls all of it; errors are final.
class EmbeddingTables {
 public:
  EmbeddingTables(std::shared_ptr<net::Session> session, ps::SparseClientOptions options, double seconds)
      : session_(std::move(session)), options_(std::move(options)) {
    open(seconds);
  }

  // Under another name, with the rows that so many servers wrote for a job after a step; collective.
  void reopen(const std::string& suffix, const std::string& written_for, std::int64_t step, int written_by,
              double seconds) {
    client_.reset();
    options_.job_suffix = suffix;
    options_.written_for = written_for;
    options_.step = step;
    options_.written_by = written_by;
    open(seconds);
  }
  std::string job() { return client().job(); }
  // Rank 0 only: has the servers write the rows as they are after step().
  void save(double seconds) {
    check(client().start_checkpoint());
    value_or_raise(client().wait_for_checkpoint(Deadline::after(seconds)));
  }
  // Finished by this rank.
  std::int64_t step() { return client().step(); }
  // Asks for rows as they are after the last finished step, or ahead of time after the step under way.
  ps::SparseClient::Ticket start_pull(std::size_t table, const at::Tensor& ids, bool ahead) {
    return value_or_raise(client().start_pull(table, as_ids(ids), client().step() + (ahead ? 1 : 0)));
  }
  void wait(ps::SparseClient::Ticket ticket, const at::Tensor& rows, double seconds) {
    check(client().wait(ticket, as_floats(rows), Deadline::after(seconds)));
  }
  void push(std::size_t table, const at::Tensor& ids, const at::Tensor& gradients, double weight) {
    check(client().push(table, as_ids(ids), as_floats(gradients), weight));
  }
  void finish_step(double weight, double seconds) { check(client().finish_step(weight, Deadline::after(seconds))); }
  void leave() { client_.reset(); }

 private:
  void open(double seconds) {
    client_ = value_or_raise(ps::SparseClient::open(*session_, options_, Deadline::after(seconds)));
  }
  ps::SparseClient& client() {
    if (client_) return *client_;
    throw std::runtime_error(
        "the embeddings have no rows any more, as the state that they were to load was not there: make them anew, or "
        "load another state");
  }
  static std::span<const std::uint64_t> as_ids(const at::Tensor& ids) {
    TORCH_CHECK_VALUE(ids.is_cpu() && ids.is_contiguous(), "ids are not contiguous on the CPU");
    return {reinterpret_cast<const std::uint64_t*>(ids.data_ptr<std::int64_t>()),
            static_cast<std::size_t>(ids.numel())};
  }
  static std::span<float> as_floats(const at::Tensor& rows) {
    TORCH_CHECK_VALUE(rows.is_cpu() && rows.is_contiguous(), "rows are not contiguous on the CPU");
    return {rows.data_ptr<float>(), static_cast<std::size_t>(rows.numel())};
  }

  const std::shared_ptr<net::Session> session_;
  ps::SparseClientOptions options_;
  std::unique_ptr<ps::SparseClient> client_;  // null once it has left, or could not reopen()
};

ps::RowOptimizer::Kind parse_kind(const std::string& name) {
  using enum ps::RowOptimizer::Kind;
  MOTLEY_INVARIANT(name == "sgd" || name == "adagrad" || name == "adam", "there is no row optimizer '{}'", name);
  return name == "sgd" ? kSgd : name == "adam" ? kAdam : kAdagrad;
}

}  // namespace

void add_embedding_tables(py::module_& module) {
  using ps::RowOptimizer;
  using ps::SparseTableOptions;
  const py::call_guard<py::gil_scoped_release> without_lock;
  py::class_<RowOptimizer>(module, "RowOptimizer")
      .def(py::init([](const std::string& kind, float learning_rate, float epsilon, float beta1, float beta2) {
             return RowOptimizer{parse_kind(kind), learning_rate, epsilon, beta1, beta2};
           }),
           py::arg("kind"), py::arg("learning_rate"), py::arg("epsilon"), py::arg("beta1"), py::arg("beta2"));
  py::class_<SparseTableOptions>(module, "TableOptions")
      .def(py::init([](const std::string& name, std::size_t dimension, float init_scale, std::uint64_t seed,
                       const RowOptimizer& optimizer, std::uint64_t memory_bytes) {
             return SparseTableOptions{.name = name,
                                       .dimension = dimension,
                                       .initializer = {ps::RowInitializer::Kind::kUniform, init_scale, seed},
                                       .optimizer = optimizer,
                                       .memory_bytes = memory_bytes};
           }),
           py::arg("name"), py::arg("dimension"), py::arg("init_scale"), py::arg("seed"), py::arg("optimizer"),
           py::arg("memory_bytes"));
  py::class_<EmbeddingTables>(module, "EmbeddingTables")
      .def(py::init([](std::shared_ptr<net::Session> session, const std::vector<std::string>& servers,
                       const net::Secret& token, const std::string& suffix,
                       const std::vector<SparseTableOptions>& tables, double seconds) {
             // Any state_dict may be the one that is loaded, so all are kept.
             ps::SparseClientOptions options{
                 .tables = tables, .job_suffix = suffix, .keep_checkpoints = ps::kKeepAllCheckpoints};
             for (const std::string& address : servers) {
               options.servers.push_back({value_or_raise(net::parse_endpoint(address)), token});
             }
             return std::make_unique<EmbeddingTables>(std::move(session), std::move(options), seconds);
           }),
           py::arg("session"), py::arg("servers"), py::arg("token"), py::arg("suffix"), py::arg("tables"),
           py::arg("seconds"), without_lock)
      .def("reopen", &EmbeddingTables::reopen, py::arg("suffix"), py::arg("written_for"), py::arg("step"),
           py::arg("written_by"), py::arg("seconds"), without_lock)
      .def_property_readonly("job", &EmbeddingTables::job)
      .def("save", &EmbeddingTables::save, py::arg("seconds"), without_lock)
      .def_property_readonly("step", &EmbeddingTables::step)
      .def("start_pull", &EmbeddingTables::start_pull, py::arg("table"), py::arg("ids"), py::arg("ahead"), without_lock)
      .def("wait", &EmbeddingTables::wait, py::arg("ticket"), py::arg("rows"), py::arg("seconds"), without_lock)
      .def("push", &EmbeddingTables::push, py::arg("table"), py::arg("ids"), py::arg("gradients"), py::arg("weight"),
           without_lock)
      .def("finish_step", &EmbeddingTables::finish_step, py::arg("weight"), py::arg("seconds"), without_lock)
      .def("leave", &EmbeddingTables::leave, without_lock);
}

}  // namespace motley::bind
