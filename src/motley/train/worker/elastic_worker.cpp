#include "motley/train/worker/elastic_worker.h"

#include "motley/base/log.h"

namespace motley::train {

static constexpr double kVerdictSeconds = 5;

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
  remove_rendezvous(rendezvous_file(), role_.job_id);
}

Status ElasticWorker::claim_files() {
  MOTLEY_ASSIGN(RunLock lock, run_.take_over(session_.membership().session, role_.rank));
  if (lock.valid()) lock_ = std::move(lock);
  return {};
}

Result<std::vector<std::vector<int>>> ElasticWorker::regroup() {
  // Who is in a minority hears of it after deadline.join, and only then.
  return epochs_.regroup(*parts_.context, Deadline::after(job_.deadline.join + kVerdictSeconds));
}

Status ElasticWorker::synchronise() {
  return servers_.synchronise(*parts_.context, epochs_, *parts_.sync, run_.folder() / "checkpoint", job_.deadline.join);
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
