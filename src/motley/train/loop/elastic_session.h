// The session of an elastic run's ranks through its epochs: after each change those who are left, or have joined, have
// a session and a group of their own; and groups of some of them, or of one alone.
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
  // `session`: of all ranks; it must outlive this object.
  ElasticSession(net::Session& session, bool is_newcomer) : session_(session), is_newcomer_(is_newcomer) {}

  // The group of all ranks that begin the job or, of a newcomer, of this one alone until it has entered. It must
  // outlive what else is called here. Once.
  Result<std::unique_ptr<collective::PresentGroup>> make_first_group();
  // Of the ranks of that group: what a rank builds its network with.
  net::Session& first() { return sessions_.empty() ? session_ : *sessions_.front(); }
  std::vector<int> first_ranks() const;

  // As ElasticRanks::regroup(). Where it fails, epochs that were installed meanwhile are the next call's, so that all
  // who are left go through the same ones.
  Result<std::vector<std::vector<int>>> regroup(RankContext& context, const Deadline& deadline);
  // As ElasticRanks' functions of these names.
  Result<std::unique_ptr<collective::Group>> make_group(const std::vector<int>& ranks);
  Status stand_alone(RankContext& context);

  // Of those who are there since the last regroup().
  net::Session& present() { return *present_; }
  std::uint64_t epoch() const { return epoch_; }

 private:
  net::Session& add_session(const std::vector<int>& ranks, std::uint16_t number);

  net::Session& session_;
  const bool is_newcomer_;
  collective::PresentGroup* group_ = nullptr;            // of all
  std::vector<std::unique_ptr<net::Session>> sessions_;  // of some ranks each; what was made of one outlives it not
  net::Session* present_ = nullptr;
  std::vector<std::vector<int>> unreported_;  // ranks of epochs
  std::uint64_t epoch_ = 1;
};

}  // namespace motley::train
