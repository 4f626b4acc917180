#include "motley/train/worker/elastic_worker.h"

#include "motley/base/log.h"
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

// A newcomer has not measured how gradients travel best; it takes the others' choice.
Status ElasticWorker::synchronise() {
  RankContext& context = *parts_.context;
  const double own[] = {static_cast<double>(options_.wire)};
  MOTLEY_ASSIGN(const auto wires, context.group.all_gather(own, context.step_deadline()));
  options_.wire = static_cast<collective::WireType>(wires[static_cast<std::size_t>(context.writer)]);
  return parts_.sync->go_on(epochs_.present(), options_, Deadline::after(job_.deadline.join));
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
