#include "motley/train/sync/elastic_servers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "motley/base/guard.h"
#include "motley/ps/client/server_watch.h"
#include "motley/train/checkpoint/checkpoint.h"

namespace motley::train {

// A newcomer has not measured how gradients travel best, nor has it been there for the steps that servers have done; it
// takes what the others know. All know of a lost server what one has seen.
Status ElasticServers::agree(const RankContext& context, std::uint64_t epoch, const ServedSync& sync) {
  const std::size_t servers = options_.servers.size();
  ps::ElasticJob& job = *options_.elastic;
  if (job.server_cores.empty()) job.server_cores = sync.server_cores();
  job.has_replicas = job.has_replicas || sync.has_replicas();
  const std::optional<int> lost = job.lost_server ? job.lost_server : sync.lost_server();
  std::vector<double> own = {static_cast<double>(options_.wire), static_cast<double>(sync.updates()),
                             static_cast<double>(lost.value_or(-1)), knows_ ? 1.0 : 0.0,
                             options_.rank_racks.empty() ? 0.0 : 1.0};
  const std::size_t numbers = own.size();
  own.insert(own.end(), options_.server_speeds.begin(), options_.server_speeds.end());
  own.resize(numbers + servers);
  own.insert(own.end(), job.server_cores.begin(), job.server_cores.end());
  own.resize(numbers + 2 * servers);
  MOTLEY_ASSIGN(const auto all, context.group.all_gather(own, context.step_deadline()));
  const auto told_by = [&](int rank) { return &all[static_cast<std::size_t>(rank) * own.size()]; };
  const auto knows = [&](int rank) { return MOTLEY_GUARD("servers-told-by-who-knows", told_by(rank)[3] != 0); };
  const auto first = std::ranges::find_if(context.present, knows);
  if (first == context.present.end()) {
    return fail(ErrorCode::kUnavailable,
                "all workers that knew how far the servers are were lost; --resume goes on from the last checkpoint");
  }
  const double* told = told_by(*first);
  options_.wire = static_cast<collective::WireType>(told[0]);
  job.epoch = epoch;
  job.updates = static_cast<std::uint64_t>(told[1]);
  options_.rank_racks.clear();
  for (const int rank : context.present) {
    if (told[4] != 0) options_.rank_racks.push_back(racks_[static_cast<std::size_t>(rank)]);
  }
  options_.server_speeds.clear();
  if (servers > 1) options_.server_speeds.assign(told + numbers, told + numbers + servers);
  job.server_cores.assign(told + numbers + servers, told + own.size());
  knows_ = true;
  std::set<int> all_lost;
  for (const int rank : context.present) {
    if (const double seen = told_by(rank)[2]; seen >= 0) all_lost.insert(static_cast<int>(seen));
  }
  // Of two at once the one may have kept the other's state: both have to be back.
  job.lost_server = all_lost.size() == 1 ? std::optional(*all_lost.begin()) : std::nullopt;
  return {};
}

Status ElasticServers::synchronise(const RankContext& context, ElasticSession& epochs, ServedSync& sync,
                                   const std::filesystem::path& checkpoints, double join_seconds) {
  const std::optional<int> lost_before = options_.elastic->lost_server;
  MOTLEY_TRY(agree(context, epochs.epoch(), sync));
  MOTLEY_TRY(sync.go_on(epochs.present(), options_, Deadline::after(join_seconds)));
  lost_servers_.clear();
  const std::vector<std::string> without_state = sync.list_servers_without_state();
  if (!without_state.empty()) return restore(context, without_state, sync, checkpoints);
  if (const auto lost = options_.elastic->lost_server; lost && lost != lost_before) {
    lost_servers_ = fmt::format("the {} was lost: the next one has kept its weights and the optimizer's state",
                                ps::describe_server(options_.servers[static_cast<std::size_t>(*lost)]));
  }
  return {};
}

// All workers have the weights of the last step. The optimizer's state was the lost servers' alone: what the last
// checkpoint has of it takes its place.
Status ElasticServers::restore(const RankContext& context, const std::vector<std::string>& servers, ServedSync& sync,
                               const std::filesystem::path& checkpoints) {
  Checkpoint last;
  if (context.writes() && holds_checkpoint(checkpoints)) {
    MOTLEY_ASSIGN(last, read_newest_checkpoint(checkpoints));
  }
  MOTLEY_ASSIGN(const std::string optimizer, broadcast_text(context.group, std::move(last.files[kOptimizerFile]),
                                                            context.writer, context.long_deadline()));
  lost_servers_ =
      fmt::format("the {} was lost: another one has the weights from the workers, and the optimizer's state {}",
                  fmt::join(servers, ", the "),
                  last.step > 0 ? fmt::format("of the checkpoint of step {}", last.step)
                                : "begins anew, as there is no checkpoint");
  return sync.restore_servers(optimizer, context.long_deadline());
}

}  // namespace motley::train
