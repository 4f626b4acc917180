// The session of an elastic run's ranks through its epochs: after each change those who are left have a session and a
// group of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "motley/collective/present_group.h"
#include "motley/net/session.h"
#include "motley/train/loop/parts.h"

namespace motley::train {

class ElasticSession {
 public:
  // Both of all ranks; they must outlive this object.
  ElasticSession(net::Session& session, collective::PresentGroup& group) : session_(session), group_(group) {}

  // As ElasticRanks::regroup(). Where it fails, epochs that were installed meanwhile are the next call's, so that all
  // who are left go through the same ones.
  Result<std::vector<std::vector<int>>> regroup(RankContext& context, const Deadline& deadline);

  // Of those who are left since the last regroup().
  net::Session& present() { return *sessions_.back(); }
  std::uint64_t epoch() const { return epoch_; }

 private:
  net::Session& session_;
  collective::PresentGroup& group_;
  std::vector<std::unique_ptr<net::Session>> sessions_;  // of each epoch, as what was made of one may still use it
  std::vector<std::vector<int>> unreported_;             // ranks of epochs
  std::uint64_t epoch_ = 1;
};

}  // namespace motley::train
