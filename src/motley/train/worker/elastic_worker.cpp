#include "motley/train/worker/elastic_worker.h"

#include "motley/base/log.h"
#include "motley/net/derived_session.h"
#include "motley/train/sync/choose_method.h"

namespace motley::train {
namespace {

// Of sessions of some ranks; those of an epoch have its number.
constexpr std::uint16_t kOfSome = 0xfffe, kOfOne = 0xffff;

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
  epochs_.emplace(session_, *group_);
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
  return epochs_->regroup(*parts_.context, Deadline::after(job_.deadline.join));
}

// A newcomer has not measured how gradients travel best; it takes the others' choice.
Status ElasticWorker::synchronise() {
  RankContext& context = *parts_.context;
  const double own[] = {static_cast<double>(options_.wire)};
  MOTLEY_ASSIGN(const auto wires, context.group.all_gather(own, context.step_deadline()));
  options_.wire = static_cast<collective::WireType>(wires[static_cast<std::size_t>(context.writer)]);
  return parts_.sync->go_on(epochs_->present(), options_, Deadline::after(job_.deadline.join));
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
