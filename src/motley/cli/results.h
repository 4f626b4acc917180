// What commands print with --json, as values; docs/schema says the same of them (motley schemas). What simulations
// print is in app/simulate_plan.h and app/replay_trace.h, and a profile is model::Profile.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/fields.h"

namespace motley::cli {

using AnyJson = nlohmann::ordered_json;

// --- check

struct CheckedItem {
  std::string name;
  bool works = false;
  bool needed = false;
  std::string found;
  std::string advice;
};
struct CheckedDevice {
  std::string device;
  double memory_bytes = 0;
  double memory_bytes_per_second = 0;
  double flops_per_second = 0;
};
struct MachineResult {
  bool works = false;
  std::vector<CheckedItem> items;
  std::vector<CheckedDevice> devices;
};
struct ServerResource {
  std::string name;
  double available = 0;
  double workers = 0;
  double needed_for_all = 0;
  double needed_for_each_worker = 0;
};
struct ServerPlacement {
  std::string server_on;
  int workers = 0;
  double bytes_per_second = 0;
};
struct ServerResult {
  std::string model;
  double model_bytes = 0;
  double seconds_per_batch = 0;
  std::string seconds_source;
  double workers = 0;
  std::string runs_out_first;
  std::string links;
  double core_bytes_per_second = 0;
  double core_seconds_per_byte = 0;
  std::vector<ServerResource> resources;
  std::vector<ServerPlacement> placements;
};
struct RackWayResult {
  std::string name;
  double gradient_sync_seconds = 0;
};
struct RacksResult {
  std::string model;
  double model_bytes = 0;
  double seconds_per_batch = 0;
  int racks = 0;
  int workers_per_rack = 0;
  std::vector<RackWayResult> ways;
  double switch_slots_for_full_rate = 0;
};
struct CheckResult {
  std::optional<MachineResult> machine;
  std::optional<ServerResult> server;
  std::optional<RacksResult> racks;
};

template <class Archive>
void fields(Archive& archive, CheckedItem& item) {
  archive.required("name", item.name);
  archive.required("works", item.works);
  archive.required("needed", item.needed, "without it no job runs here");
  archive.required("found", item.found, "what is there, or what went wrong");
  archive.optional("advice", item.advice, "where it does not work: what that costs, and how to get it");
}
template <class Archive>
void fields(Archive& archive, CheckedDevice& device) {
  archive.required("device", device.device, "by PyTorch's name");
  archive.required("memory_bytes", device.memory_bytes, "0: not known");
  archive.required("memory_bytes_per_second", device.memory_bytes_per_second,
                   "measured: read and written by a copy within its memory");
  archive.required("flops_per_second", device.flops_per_second,
                   "measured: float32, of a product of large matrices; of the CPU with all cores");
}
template <class Archive>
void fields(Archive& archive, MachineResult& machine) {
  archive.required("works", machine.works, "all that is needed");
  archive.required("items", machine.items);
  archive.required("devices", machine.devices, "the CPU, and the accelerators that jobs can use");
}
template <class Archive>
void fields(Archive& archive, ServerResource& resource) {
  archive.required("name", resource.name);
  archive.required("available", resource.available);
  archive.required("workers", resource.workers, "for which it is enough");
  archive.required("needed_for_all", resource.needed_for_all, "however many workers there are");
  archive.required("needed_for_each_worker", resource.needed_for_each_worker);
}
template <class Archive>
void fields(Archive& archive, ServerPlacement& placement) {
  archive.required("server_on", placement.server_on);
  archive.required("workers", placement.workers);
  archive.required("bytes_per_second", placement.bytes_per_second, "at the server's machine, in and out");
}
template <class Archive>
void fields(Archive& archive, ServerResult& server) {
  archive.required("model", server.model);
  archive.required("model_bytes", server.model_bytes);
  archive.required("seconds_per_batch", server.seconds_per_batch);
  archive.required("seconds_source", server.seconds_source);
  archive.required("workers", server.workers, "that this machine can serve");
  archive.required("runs_out_first", server.runs_out_first);
  archive.required("links", server.links, "where their speed comes from");
  archive.required("core_bytes_per_second", server.core_bytes_per_second);
  archive.required("core_seconds_per_byte", server.core_seconds_per_byte);
  archive.required("resources", server.resources);
  archive.required("placements", server.placements);
}
template <class Archive>
void fields(Archive& archive, RackWayResult& way) {
  archive.required("name", way.name);
  archive.required("gradient_sync_seconds", way.gradient_sync_seconds);
}
template <class Archive>
void fields(Archive& archive, RacksResult& racks) {
  archive.required("model", racks.model);
  archive.required("model_bytes", racks.model_bytes);
  archive.required("seconds_per_batch", racks.seconds_per_batch);
  archive.required("racks", racks.racks);
  archive.required("workers_per_rack", racks.workers_per_rack);
  archive.required("ways", racks.ways);
  archive.required("switch_slots_for_full_rate", racks.switch_slots_for_full_rate);
}
template <class Archive>
void fields(Archive& archive, CheckResult& check) {
  archive.optional("machine", check.machine, "without --server and --racks");
  archive.optional("server", check.server, "with --server");
  archive.optional("racks", check.racks, "with --racks");
}

// --- plan

struct PlanMarginal {
  std::string device_type;
  std::optional<double> one_more;
  std::optional<double> one_fewer;
};
struct PlanAlternative {
  AnyJson plan;
  std::optional<double> value;
  double worse = 0;
  std::string reason;
  std::optional<double> better_in;
};
struct PlanRegime {
  double from = 0;
  std::optional<double> value;
};
struct PlanWhatIf {
  std::string question;
  std::vector<PlanRegime> regimes;
};
struct PlanOfMethod {
  std::string method;
  std::optional<double> value;
  bool is_proved = false;
  double search_seconds = 0;
  std::string refused;
};
struct PlanResult {
  std::string objective;
  std::string method;
  std::optional<double> value;
  bool is_proved = false;
  std::optional<double> bound;
  std::int64_t evaluations = 0;
  double search_seconds = 0;
  std::vector<PlanAlternative> alternatives;
  std::vector<PlanMarginal> marginals;
  std::vector<PlanWhatIf> what_ifs;
  std::vector<PlanOfMethod> methods;
  AnyJson plan;
};

template <class Archive>
void fields(Archive& archive, PlanMarginal& marginal) {
  archive.required("device_type", marginal.device_type);
  archive.defaulted("one_more", marginal.one_more, "value of the best plan with one device more; null: none is known");
  archive.defaulted("one_fewer", marginal.one_fewer, "with one device fewer");
}
template <class Archive>
void fields(Archive& archive, PlanAlternative& one) {
  archive.required("plan", one.plan);
  archive.defaulted("value", one.value, "of the objective");
  archive.required("worse", one.worse, "its value over the plan's, less 1");
  archive.required("reason", one.reason, "why it lost");
  archive.defaulted(
      "better_in", one.better_in,
      "fraction of draws of the measured times in which it is better than the plan; null: nothing is known "
      "of how they vary");
}
template <class Archive>
void fields(Archive& archive, PlanRegime& regime) {
  archive.required("from", regime.from, "from here on this plan is the best, up to the next");
  archive.defaulted("value", regime.value, "null: there is none");
}
template <class Archive>
void fields(Archive& archive, PlanWhatIf& what_if) {
  archive.required("question", what_if.question, "as it was given");
  archive.required("regimes", what_if.regimes);
}
template <class Archive>
void fields(Archive& archive, PlanOfMethod& one) {
  archive.required("method", one.method);
  archive.defaulted("value", one.value, "null: it found none");
  archive.required("proved_optimal", one.is_proved);
  archive.required("search_seconds", one.search_seconds);
  archive.optional("refused", one.refused, "why the method does not take this problem");
}
template <class Archive>
void fields(Archive& archive, PlanResult& result) {
  archive.required("objective", result.objective);
  archive.required("method", result.method);
  archive.defaulted("value", result.value,
                    "of the objective, the less the better: seconds a sample, seconds a step, or the cost");
  archive.required("proved_optimal", result.is_proved);
  archive.defaulted("bound", result.bound, "no plan has a value below it; null: nothing is proved");
  archive.required("evaluations", result.evaluations);
  archive.required("search_seconds", result.search_seconds);
  archive.required("alternatives", result.alternatives, "within 5 % of the plan, the best first");
  archive.required("marginals", result.marginals);
  archive.required("what_ifs", result.what_ifs);
  archive.required("methods", result.methods, "with --compare");
  archive.required("plan", result.plan, "as it is written (plan.schema.json)");
}

// --- train and report

struct SummaryRow {
  std::string name;
  std::string metric;
  std::optional<double> value;
  std::string unit;
  std::string better;
  std::optional<double> target, limit, peer;
  std::string note;
};
struct TrainResult {
  std::string run;
  std::vector<SummaryRow> summary;
};
struct ReportResult {
  std::string page;
};

template <class Archive>
void fields(Archive& archive, SummaryRow& row) {
  archive.required("case", row.name);
  archive.required("metric", row.metric);
  archive.defaulted("value", row.value, NumberIs::kFinite);
  archive.required("unit", row.unit);
  archive.required("better", row.better, "more or less");
  archive.defaulted("target", row.target, NumberIs::kFinite);
  archive.defaulted("limit", row.limit, NumberIs::kFinite);
  archive.defaulted("peer", row.peer, NumberIs::kFinite);
  archive.optional("note", row.note);
}
template <class Archive>
void fields(Archive& archive, TrainResult& result) {
  archive.required("run", result.run, "folder of the run");
  archive.required("summary", result.summary, "rows of its summary.json");
}
template <class Archive>
void fields(Archive& archive, ReportResult& result) {
  archive.required("page", result.page, "file");
}

// --- schedule; what the service answers

struct SubmitResult {
  std::vector<int> ids;
};
struct ListedJob {
  int id = 0;
  std::string name, tenant, state;
  int workers = 0;
  std::string nodes;
  std::optional<int> resizing_to;
  int attempt = 0;
  double restart_cost = 0;
  std::optional<double> measured_restart_cost;
  double submitted = 0, started = 0, finished = 0;
  std::string last_change;
};
struct ListedResource {
  std::string name;
  double total = 0, used = 0;
};
struct ListedNode {
  std::string name, type;
  int devices = 0;
  int used = 0;
  std::string state;
  AnyJson jobs;
  std::vector<ListedResource> resources;
};
struct ListResult {
  std::vector<ListedJob> jobs;
  std::vector<ListedNode> nodes;
};
struct WhyResult {
  std::string name, state, blocked_by, reason, last_change, one_more_device, output_file, last_output, assumption;
  std::vector<std::string> unblocked_by;
  double starts = -1, finishes = -1;
};
struct ComparedJob {
  std::string name;
  double starts = -1, finishes = -1, would_start = -1, would_finish = -1;
};
struct WhatIfResult {
  std::vector<ComparedJob> jobs;
};

template <class Archive>
void fields(Archive& archive, SubmitResult& result) {
  archive.required("ids", result.ids);
}
template <class Archive>
void fields(Archive& archive, ListedJob& job) {
  archive.required("id", job.id);
  archive.required("name", job.name);
  archive.required("tenant", job.tenant);
  archive.required("state", job.state);
  archive.required("workers", job.workers);
  archive.required("nodes", job.nodes);
  archive.defaulted("resizing_to", job.resizing_to, "workers");
  archive.required("attempt", job.attempt);
  archive.required("restart_cost", job.restart_cost, "seconds, as declared");
  archive.defaulted("measured_restart_cost", job.measured_restart_cost, "seconds");
  archive.required("submitted", job.submitted, "seconds since 1970, as the two below; 0: not yet");
  archive.required("started", job.started);
  archive.required("finished", job.finished);
  archive.required("last_change", job.last_change);
}
template <class Archive>
void fields(Archive& archive, ListedResource& resource) {
  archive.required("name", resource.name, "cpus, memory");
  archive.required("total", resource.total, "of the node; memory in bytes");
  archive.required("used", resource.used, "what jobs there have requested");
}
template <class Archive>
void fields(Archive& archive, ListedNode& node) {
  archive.required("name", node.name);
  archive.required("type", node.type);
  archive.required("devices", node.devices);
  archive.required("used", node.used);
  archive.required("state", node.state);
  archive.required("jobs", node.jobs, "workers by name of the job");
  archive.required("resources", node.resources, "of which the node has so much for jobs");
}
template <class Archive>
void fields(Archive& archive, ListResult& result) {
  archive.required("jobs", result.jobs);
  archive.required("nodes", result.nodes);
}
template <class Archive>
void fields(Archive& archive, WhyResult& why) {
  archive.required("name", why.name);
  archive.required("state", why.state);
  archive.optional("blocked_by", why.blocked_by);
  archive.required("reason", why.reason);
  archive.optional("last_change", why.last_change);
  archive.optional("one_more_device", why.one_more_device);
  archive.optional("output_file", why.output_file, "of its last attempt");
  archive.optional("last_output", why.last_output, "the last lines of one that failed");
  archive.optional("unblocked_by", why.unblocked_by);
  archive.required("starts_in_seconds", why.starts, {NumberIs::kFinite, "-1: it runs or ran, or cannot be told"});
  archive.required("finishes_in_seconds", why.finishes, {NumberIs::kFinite, "likewise"});
  archive.optional("assumption", why.assumption, "about how long it takes, where it does not say that");
}
template <class Archive>
void fields(Archive& archive, ComparedJob& job) {
  archive.required("name", job.name);
  archive.required("starts_in_seconds", job.starts, {NumberIs::kFinite, "-1, as below: never, or it is not there"});
  archive.required("finishes_in_seconds", job.finishes, NumberIs::kFinite);
  archive.required("would_start_in_seconds", job.would_start, NumberIs::kFinite);
  archive.required("would_finish_in_seconds", job.would_finish, NumberIs::kFinite);
}
template <class Archive>
void fields(Archive& archive, WhatIfResult& result) {
  archive.required("jobs", result.jobs);
}

// The schemas of all results, by the names that their files have in docs/schema.
std::vector<std::pair<std::string, std::string>> result_schemas();

}  // namespace motley::cli
