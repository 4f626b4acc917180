#include "motley/train/loop/elastic_session.h"

#include <utility>

#include "motley/base/guard.h"
#include "motley/net/derived_session.h"

namespace motley::train {

Result<std::vector<std::vector<int>>> ElasticSession::regroup(RankContext& context, const Deadline& deadline) {
  MOTLEY_ASSIGN(const std::vector<net::Epoch> epochs, session_.regroup(deadline));
  if (!MOTLEY_KEEPS("elastic-all-epochs")) unreported_.clear();
  for (const net::Epoch& epoch : epochs) unreported_.push_back(epoch.members);
  const net::Epoch& last = epochs.back();
  epoch_ = last.number;
  sessions_.push_back(net::make_partial_session(session_, last.members, static_cast<std::uint16_t>(last.number)));
  MOTLEY_ASSIGN(auto group, collective::make_group(*sessions_.back()));
  group_.use(std::move(group), last.members);
  context.present = last.members;
  return std::exchange(unreported_, {});
}

}  // namespace motley::train
