#include <pybind11/stl.h>

#include "motley/bind/parts.h"
#include "motley/data/local/batch_split.h"
#include "motley/data/local/ledger.h"

namespace motley::bind {

namespace py = pybind11;

namespace {

// A minimum and a maximum of samples a worker.
std::vector<data::WorkerLimits> read_limits(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& limits) {
  std::vector<data::WorkerLimits> read;
  for (const auto& [minimum, maximum] : limits) read.push_back({minimum, maximum});
  return read;
}

}  // namespace

void add_batch_split(py::module_& module) {
  using data::BatchSplitter;
  using data::Ledger;
  py::class_<BatchSplitter>(module, "BatchSplitter")
      .def(py::init([](const std::string& policy, std::uint32_t batch,
                       const std::vector<std::pair<std::uint32_t, std::uint32_t>>& limits,
                       std::vector<double> proportions, const std::string& recorded, const std::string& name) {
             data::BatchSplitOptions options = {.policy = value_or_raise(data::parse_split_policy(policy)),
                                                .batch = batch,
                                                .limits = read_limits(limits),
                                                .proportions = std::move(proportions),
                                                .may_pull = false};
             if (options.policy == data::SplitPolicy::kReplay) {
               options.recorded = value_or_raise(data::read_splits(recorded, name));
             }
             return value_or_raise(BatchSplitter::create(std::move(options)));
           }),
           py::arg("policy"), py::arg("batch"), py::arg("limits"), py::arg("proportions") = std::vector<double>(),
           py::arg("recorded") = "", py::arg("name") = "")
      .def(
          "plan",
          [](const BatchSplitter& split, std::uint64_t step, std::uint32_t window) {
            return value_or_raise(split.plan(step, window)).shares;
          },
          py::arg("step"), py::arg("window"))
      .def(
          "observe",
          [](BatchSplitter& split, std::uint64_t step,
             const std::vector<std::tuple<std::uint32_t, double, double>>& measured) {
            std::vector<data::Observation> observations;
            for (const auto& [samples, seconds, wait] : measured) observations.push_back({samples, seconds, wait});
            check(split.observe(step, observations));
          },
          py::arg("step"), py::arg("observations"))
      .def(
          "limit",
          [](BatchSplitter& split, std::uint64_t step,
             const std::vector<std::pair<std::uint32_t, std::uint32_t>>& limits) {
            check(split.limit(step, read_limits(limits)));
          },
          py::arg("step"), py::arg("limits"))
      .def_property_readonly("shares", &BatchSplitter::shares)
      .def_property_readonly("reason", [](const BatchSplitter& split) { return split.diagnostics().reason; })
      .def("save", &BatchSplitter::save)
      .def(
          "restore", [](BatchSplitter& split, const std::string& text) { return value_or_raise(split.restore(text)); },
          py::arg("text"));

  py::class_<Ledger>(module, "Ledger")
      .def(py::init([](std::uint64_t seed, std::uint64_t epoch, std::uint32_t cursor, std::uint32_t size) {
             return value_or_raise(Ledger::open({seed, epoch, cursor, size}));
           }),
           py::arg("seed"), py::arg("epoch"), py::arg("cursor"), py::arg("size"))
      .def(
          "samples",
          [](const Ledger& ledger, std::uint32_t begin, std::uint32_t end) {
            const auto samples = ledger.samples({begin, end});
            return std::vector<std::uint32_t>(samples.begin(), samples.end());
          },
          py::arg("begin"), py::arg("end"));
}

}  // namespace motley::bind
