#include "motley/train/worker/elastic_worker.h"

#include "motley/base/log.h"
#include "motley/net/derived_session.h"
#include "motley/train/sync/choose_method.h"

namespace motley::train {
namespace {

// Of sessions of some ranks, within an epoch.
constexpr std::uint16_t kOfAll = 1, kOfSome = 2, kOfOne = 3;

}  // namespace

net::Session& ElasticWorker::add_session(const std::vector<int>& ranks, std::uint16_t number) {
  sessions_.push_back(net::make_partial_session(session_, ranks, number));
  return *sessions_.back();
}

Result<std::unique_ptr<collective::Group>> ElasticWorker::make_first_group() {
  const std::vector<int> ranks = role_.is_newcomer ? std::vector{role_.rank} : all_ranks(role_.size);
  MOTLEY_ASSIGN(auto first, collective::make_group(role_.is_newcomer ? add_session(ranks, kOfOne) : session_));
  auto group = std::make_unique<collective::PresentGroup>(role_.size);
  group->use(std::move(first), ranks);
  group_ = group.get();
  return group;
}

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
  MOTLEY_ASSIGN(const std::vector<net::Epoch> epochs, session_.regroup(Deadline::after(job_.deadline.join)));
  const net::Epoch& last = epochs.back();
  epoch_session_ = &add_session(last.members, kOfAll);
  MOTLEY_ASSIGN(auto group, collective::make_group(*epoch_session_));
  group_->use(std::move(group), last.members);
  parts_.context->present = last.members;
  std::vector<std::vector<int>> ranks;
  for (const net::Epoch& epoch : epochs) ranks.push_back(epoch.members);
  return ranks;
}

// A newcomer has not measured how gradients travel best; it takes the others' choice.
Status ElasticWorker::synchronise() {
  RankContext& context = *parts_.context;
  const double own[] = {static_cast<double>(options_.wire)};
  MOTLEY_ASSIGN(const auto wires, context.group.all_gather(own, context.step_deadline()));
  options_.wire = static_cast<collective::WireType>(wires[static_cast<std::size_t>(context.writer)]);
  return parts_.sync->go_on(*epoch_session_, options_, Deadline::after(job_.deadline.join));
}

Result<std::unique_ptr<collective::Group>> ElasticWorker::make_group(const std::vector<int>& ranks) {
  return collective::make_group(add_session(ranks, kOfSome));
}

Status ElasticWorker::take_over(std::int64_t step) {
  MOTLEY_TRY(parts_.take_over(step));
  return invite();
}

Status ElasticWorker::stand_alone() {
  const std::vector<int> self = {role_.rank};
  MOTLEY_ASSIGN(auto group, collective::make_group(add_session(self, kOfOne)));
  group_->use(std::move(group), self);
  parts_.context->present = self;
  parts_.context->writer = role_.rank;
  return parts_.take_over(-1);
}

}  // namespace motley::train
