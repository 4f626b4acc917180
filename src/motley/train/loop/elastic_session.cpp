#include "motley/train/loop/elastic_session.h"

#include <utility>

#include "motley/base/guard.h"
#include "motley/net/derived_session.h"

namespace motley::train {
namespace {

// Of sessions of some ranks; those of an epoch have its number.
constexpr std::uint16_t kOfFirst = 1, kOfSome = 0xfffe, kOfOne = 0xffff;
constexpr std::uint64_t kEpochNumbers = 0x7ff0;  // below those of stages; an epoch that long ago has no connections

}  // namespace

net::Session& ElasticSession::add_session(const std::vector<int>& ranks, std::uint16_t number) {
  sessions_.push_back(net::make_partial_session(session_, ranks, number));
  return *sessions_.back();
}

std::vector<int> ElasticSession::first_ranks() const {
  return is_newcomer_ ? std::vector{session_.membership().rank} : all_ranks(session_.options().first_ranks());
}

Result<std::unique_ptr<collective::PresentGroup>> ElasticSession::make_first_group() {
  const std::vector<int> ranks = first_ranks();
  const int size = session_.membership().size();
  if (std::ssize(ranks) < size) add_session(ranks, is_newcomer_ ? kOfOne : kOfFirst);
  MOTLEY_ASSIGN(auto first, collective::make_group(this->first()));
  auto group = std::make_unique<collective::PresentGroup>(size);
  group->use(std::move(first), ranks);
  group_ = group.get();
  return group;
}

Result<std::vector<std::vector<int>>> ElasticSession::regroup(RankContext& context, const Deadline& deadline) {
  MOTLEY_ASSIGN(const std::vector<net::Epoch> epochs, session_.regroup(deadline));
  if (!MOTLEY_KEEPS("elastic-all-epochs")) unreported_.clear();
  for (const net::Epoch& epoch : epochs) unreported_.push_back(epoch.members);
  const net::Epoch& last = epochs.back();
  epoch_ = last.number;
  present_ = &add_session(last.members, static_cast<std::uint16_t>(kOfFirst + 1 + last.number % kEpochNumbers));
  MOTLEY_ASSIGN(auto group, collective::make_group(*present_));
  group_->use(std::move(group), last.members);
  context.present = last.members;
  return std::exchange(unreported_, {});
}

Result<std::unique_ptr<collective::Group>> ElasticSession::make_group(const std::vector<int>& ranks) {
  return collective::make_group(add_session(ranks, kOfSome));
}

Status ElasticSession::stand_alone(RankContext& context) {
  const std::vector<int> self = {context.rank};
  MOTLEY_ASSIGN(auto group, collective::make_group(add_session(self, kOfOne)));
  group_->use(std::move(group), self);
  context.present = self;
  context.writer = context.rank;
  return {};
}

}  // namespace motley::train
