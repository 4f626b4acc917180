#include "motley/train/worker/elastic_worker.h"

#include <set>

#include "motley/base/log.h"
#include "motley/ps/client/server_watch.h"
#include "motley/train/checkpoint/checkpoint.h"
#include "motley/train/step/tensor_file.h"
#include "motley/train/sync/choose_method.h"

namespace motley::train {

Status ElasticWorker::invite() const {
  const net::Membership& membership = session_.membership();
  const net::Member& own = membership.members[static_cast<std::size_t>(membership.rank)];
  if (role_.launcher == "motley") {
    return write_rendezvous(rendezvous_file(), {own.address, own.port, role_.job_id, secret_.hex()});
  }
  spdlog::info("other workers can join at {}", net::to_string({own.address, own.port}));
  return {};
}

void ElasticWorker::close() const {
  std::error_code ignored;
  std::filesystem::remove(rendezvous_file(), ignored);
}

Result<std::vector<std::vector<int>>> ElasticWorker::regroup() {
  return epochs_.regroup(*parts_.context, Deadline::after(job_.deadline.join));
}

// A newcomer has not measured how gradients travel best, nor has it been there for the steps that servers have done; it
// takes what the others know. All know of a lost server what one has seen.
Status ElasticWorker::agree_on_servers() {
  RankContext& context = *parts_.context;
  const std::size_t servers = options_.servers.size();
  ps::ElasticJob& job = *options_.elastic;
  if (job.server_cores.empty()) job.server_cores = parts_.sync->server_cores();
  const std::optional<int> lost = job.lost_server ? job.lost_server : parts_.sync->lost_server();
  std::vector<double> own = {static_cast<double>(options_.wire), static_cast<double>(parts_.sync->updates()),
                             static_cast<double>(lost.value_or(-1)), options_.rank_racks.empty() ? 0.0 : 1.0};
  const std::size_t fields = own.size();
  own.insert(own.end(), options_.server_speeds.begin(), options_.server_speeds.end());
  own.resize(fields + servers);
  own.insert(own.end(), job.server_cores.begin(), job.server_cores.end());
  own.resize(fields + 2 * servers);
  MOTLEY_ASSIGN(const auto all, context.group.all_gather(own, context.step_deadline()));
  const auto told_by = [&](int rank) { return &all[static_cast<std::size_t>(rank) * own.size()]; };
  const double* writers = told_by(context.writer);
  options_.wire = static_cast<collective::WireType>(writers[0]);
  job.epoch = epochs_.epoch();
  job.updates = static_cast<std::uint64_t>(writers[1]);
  options_.rank_racks.clear();
  if (const auto& racks = job_.gradient_sync.racks; writers[3] != 0) {
    options_.rank_racks.assign(racks.begin(), racks.end());
  }
  options_.server_speeds.clear();
  if (servers > 1) options_.server_speeds.assign(writers + fields, writers + fields + servers);
  job.server_cores.assign(writers + fields + servers, writers + own.size());
  std::set<int> all_lost;
  for (const int rank : context.present) {
    if (const double seen = told_by(rank)[2]; seen >= 0) all_lost.insert(static_cast<int>(seen));
  }
  // Of two at once the one may have kept the other's state: both have to be back.
  job.lost_server = all_lost.size() == 1 ? std::optional(*all_lost.begin()) : std::nullopt;
  return {};
}

Status ElasticWorker::synchronise() {
  const std::optional<int> lost_before = options_.elastic->lost_server;
  MOTLEY_TRY(agree_on_servers());
  ps::ServerOptions options = options_;
  options.rank_racks.clear();
  for (const int rank : parts_.context->present) {
    if (!options_.rank_racks.empty()) options.rank_racks.push_back(options_.rank_racks[static_cast<std::size_t>(rank)]);
  }
  MOTLEY_TRY(parts_.sync->go_on(epochs_.present(), options, Deadline::after(job_.deadline.join)));
  lost_servers_.clear();
  const std::vector<std::string> without_state = parts_.sync->list_servers_without_state();
  if (!without_state.empty()) return restore_servers(without_state);
  if (const auto lost = options_.elastic->lost_server; lost && lost != lost_before) {
    lost_servers_ = fmt::format("the {} was lost: the next one has kept its weights and the optimizer's state",
                                ps::describe_server(options_.servers[static_cast<std::size_t>(*lost)]));
  }
  return {};
}

// All workers have the weights of the last step. The optimizer's state was the lost servers' alone: what the last
// checkpoint has of it takes its place.
Status ElasticWorker::restore_servers(const std::vector<std::string>& servers) {
  const RankContext& context = *parts_.context;
  const std::filesystem::path folder = folder_ / "checkpoint";
  Checkpoint last;
  if (context.writes() && holds_checkpoint(folder)) {
    MOTLEY_ASSIGN(last, read_newest_checkpoint(folder));
  }
  MOTLEY_ASSIGN(const std::string text, broadcast_text(context.group, std::move(last.files[kOptimizerFile]),
                                                       context.writer, context.long_deadline()));
  TensorFile optimizer;
  if (!text.empty()) {
    MOTLEY_ASSIGN(optimizer, decode_tensors(text));
  }
  lost_servers_ =
      fmt::format("the {} was lost: another one has the weights from the workers, and the optimizer's state {}",
                  fmt::join(servers, ", the "),
                  last.step > 0 ? fmt::format("of the checkpoint of step {}", last.step)
                                : "begins anew, as there is no checkpoint");
  return parts_.sync->restore_servers(optimizer.tensors, context.long_deadline());
}

Status ElasticWorker::take_over(std::int64_t step) {
  MOTLEY_TRY(parts_.take_over(step));
  return invite();
}

Status ElasticWorker::stand_alone() {
  MOTLEY_TRY(epochs_.stand_alone(*parts_.context));
  return parts_.take_over(-1);
}

}  // namespace motley::train
