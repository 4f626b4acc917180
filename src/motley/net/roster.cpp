#include "motley/net/roster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>

#include "motley/base/guard.h"

namespace motley::net {

using Kind = RosterMessage::Kind;

constexpr double kContradictions = 3;  // retries that a rank may say that others are lost which this one reaches

bool Roster::is_member(int rank) const {
  return std::ranges::binary_search(epoch_.members, rank);
}

std::vector<int> Roster::reachable() const {
  std::vector<int> ranks;
  std::ranges::copy_if(epoch_.members, std::back_inserter(ranks), [&](int rank) { return !lost_.contains(rank); });
  return ranks;
}

bool Roster::has_majority(const std::set<int>& ranks) const {
  const auto alive = [&](int rank) { return !dead_.contains(rank); };
  const auto all = std::ranges::count_if(epoch_.members, alive);
  return 2 * std::ranges::count_if(ranks, alive) > all;
}

Roster::Actions Roster::lose(int rank, double now) {
  if (has_stopped() || !is_member(rank) || rank == self_ || !lost_.insert(rank).second) return {};
  Actions actions;
  if (!is_member(self_)) {  // who is none decides nothing
    follow_members(now, actions);
    return actions;
  }
  if (give_up_at_ == kNever) give_up_at_ = now + options_.give_up_seconds;
  // What is under way may count on it: it begins anew, without it.
  phase_ = Phase::kIdle;
  next_ = kNever;
  act_on_loss(now, options_.gather_seconds, actions);
  return actions;
}

// An epoch that only the dead have installed is void, as the others decide anew. So a newcomer enters one once all of
// its members that it reaches have installed it, or a while later if one that has is still there.
void Roster::follow_members(double now, Actions& actions) {
  const auto may_follow = [&](const auto& announced) {
    const auto& [epoch, by] = announced;
    const auto is_there = [this](int rank) { return !lost_.contains(rank); };
    const auto has_not = [&](int rank) { return is_member(rank) && is_there(rank) && !by.contains(rank); };
    if (!std::ranges::binary_search(epoch.members, self_)) return true;
    const double since = std::ranges::min(std::views::values(by));
    const bool is_sure = MOTLEY_GUARD("planted-newcomer-is-sure", now >= since + options_.retry_seconds ||
                                                                      std::ranges::none_of(epoch.members, has_not));
    return is_sure && std::ranges::any_of(std::views::keys(by), is_there);
  };
  while (!is_member(self_)) {
    const auto next = std::ranges::find_if(announced_, may_follow);
    if (next == announced_.end()) return;
    install(Epoch(next->first), now, actions);
  }
}

Roster::Send Roster::suspicion(int to) const {
  return {to, {.kind = Kind::kSuspect, .epoch = epoch_.number + 1, .members = {lost_.begin(), lost_.end()}}};
}

Roster::Actions Roster::renew(double now) {
  Actions actions;
  if (has_stopped() || !is_member(self_) || is_due()) return actions;
  renews_ = true;
  if (phase_ == Phase::kIdle) act_on_loss(now, options_.gather_seconds, actions);
  return actions;
}

// The lowest member that is not lost proposes, and is told by the others: it may still reach whom they have lost.
void Roster::act_on_loss(double now, double delay, Actions& actions) {
  if (!leads()) {
    actions.push_back(suspicion(reachable().front()));
    delay = options_.retry_seconds;
  }
  expect_round(now + delay);
}

Roster::Actions Roster::bury(int rank, double now) {
  if (has_stopped() || !is_member(rank) || rank == self_) return {};
  Actions actions = lose(rank, now);
  dead_.insert(rank);
  advance(now, actions);
  return actions;
}

Roster::Actions Roster::admit(int rank, double now) {
  if (has_stopped() || is_member(rank) || rank == self_ || !candidates_.insert(rank).second) return {};
  if (phase_ == Phase::kIdle && lost_.empty()) expect_round(now);
  return tick(now);
}

Roster::Actions Roster::tick(double now) {
  Actions actions;
  if (has_stopped()) return actions;
  if (now >= give_up_at_) {
    phase_ = Phase::kStopped;
    actions.push_back(Stop{fmt::format(
        "of the members {} of epoch {} only {} can be reached, no majority, for {:.3g} s",
        fmt::join(epoch_.members, ", "), epoch_.number, fmt::join(reachable(), ", "), options_.give_up_seconds)});
    return actions;
  }
  if (now < next_) return actions;
  next_ = kNever;
  if (!is_member(self_)) {
    follow_members(now, actions);
  } else if ((is_due() || !candidates_.empty()) && leads()) {
    start_round(now, actions);
  } else if (is_due()) {
    act_on_loss(now, 0, actions);
  }
  return actions;
}

void Roster::start_round(double now, Actions& actions) {
  expect_round(now + patience());
  std::vector<int> members = reachable();
  if (!has_majority({members.begin(), members.end()})) {
    // A round could only disturb others. One of those who are left may reach more, and put this one out.
    for (const int rank : members) {
      if (rank != self_) actions.push_back(suspicion(rank));
    }
    return;
  }
  members.insert(members.end(), candidates_.begin(), candidates_.end());
  std::ranges::sort(members);
  highest_round_ = std::max(highest_round_, promised_.round) + 1;
  ballot_ = {highest_round_, self_};
  phase_ = Phase::kPreparing;
  promised_ = ballot_;
  agreed_ = {self_};
  best_ = accepted_;
  proposal_ = MOTLEY_GUARD("roster-own-acceptance", accepted_.round == 0) ? members : accepted_members_;
  send_to_members({.kind = Kind::kPrepare, .epoch = epoch_.number + 1, .ballot = ballot_}, actions);
  advance(now, actions);
}

// Goes on to proposing, and from there to the decision, once a majority agrees.
void Roster::advance(double now, Actions& actions) {
  if (phase_ == Phase::kPreparing && MOTLEY_GUARD("roster-majority-of-promises", has_majority(agreed_))) {
    phase_ = Phase::kProposing;
    accepted_ = ballot_;
    accepted_members_ = proposal_;
    agreed_ = {self_};
    send_to_members({.kind = Kind::kPropose, .epoch = epoch_.number + 1, .ballot = ballot_, .members = proposal_},
                    actions);
  }
  if (phase_ == Phase::kProposing && MOTLEY_GUARD("roster-majority-of-acceptances", has_majority(agreed_))) {
    install({epoch_.number + 1, proposal_}, now, actions);
  }
}

void Roster::send_to_members(RosterMessage message, Actions& actions) const {
  for (const int rank : epoch_.members) {
    if (rank != self_ && !dead_.contains(rank)) actions.push_back(Send{rank, message});
  }
}

// Those who are put out are told as well, and stop; newcomers, too, whether they are in it or not.
void Roster::announce(const Epoch& next, Actions& actions) const {
  const RosterMessage word{.kind = Kind::kInstall, .epoch = next.number, .members = next.members};
  send_to_members(word, actions);
  std::set<int> newcomers = candidates_;
  newcomers.insert(next.members.begin(), next.members.end());
  for (const int rank : newcomers) {
    if (!is_member(rank)) actions.push_back(Send{rank, word});
  }
}

void Roster::install(Epoch next, double now, Actions& actions) {
  const bool was_member = is_member(self_);
  if (was_member) announce(next, actions);
  if (was_member && !MOTLEY_GUARD("roster-own-membership", std::ranges::binary_search(next.members, self_))) {
    phase_ = Phase::kStopped;
    actions.push_back(Stop{fmt::format("the others go on without this rank: epoch {} is of {}", next.number,
                                       fmt::join(next.members, ", "))});
    return;
  }
  epoch_ = next;
  history_.push_back(next);
  promised_ = accepted_ = best_ = {};
  accepted_members_.clear();
  phase_ = Phase::kIdle;
  next_ = give_up_at_ = kNever;
  highest_round_ = 0;
  contradicted_since_.clear();
  renews_ = false;
  std::erase_if(lost_, [&](int rank) { return !is_member(rank); });
  std::erase_if(dead_, [&](int rank) { return !is_member(rank); });
  std::erase_if(candidates_, [&](int rank) { return is_member(rank); });
  if (!candidates_.empty()) expect_round(now);
  if (!lost_.empty() && is_member(self_)) {
    give_up_at_ = now + options_.give_up_seconds;
    act_on_loss(now, options_.gather_seconds, actions);
  }
  actions.push_back(Install{std::move(next)});
  const auto later = announced_.lower_bound({epoch_.number + 1, {}});
  announced_.erase(announced_.begin(), later);
  if (later == announced_.end() || later->first.number > epoch_.number + 1 || !is_member(self_)) return;
  install(Epoch(later->first), now, actions);
}

// What a rank has missed, up to now.
void Roster::answer_late(int to, std::uint64_t epoch, Actions& actions) const {
  for (const Epoch& past : history_) {
    if (past.number < epoch) continue;
    actions.push_back(Send{to, {.kind = Kind::kInstall, .epoch = past.number, .members = past.members}});
  }
}

// Of two that have lost each other the higher one goes; a lower one that is gone is missed by all. Where too few would
// be left that way, and this rank still reaches those that are said to be lost after a while, the one goes that has
// lost them.
std::vector<int> Roster::choose_cut(int from, const std::vector<int>& lost_by_it, double now) {
  if (lost_.contains(from)) return {};
  std::vector<int> cut;
  bool reaches_any = false;
  for (const int rank : lost_by_it) {
    if (rank == self_ || !is_member(rank) || lost_.contains(rank)) continue;
    reaches_any = true;
    if (rank > from) cut.push_back(rank);
  }
  const auto is_majority_without = [&](const std::vector<int>& gone) {
    const std::vector<int> ranks = reachable();
    std::set<int> left(ranks.begin(), ranks.end());
    for (const int rank : gone) left.erase(rank);
    return has_majority(left);
  };
  const double since = contradicted_since_.emplace(from, now).first->second;
  if (!reaches_any || is_majority_without(cut)) return cut;
  if (now < since + kContradictions * options_.retry_seconds) return {};
  return is_majority_without({from}) ? std::vector{from} : cut;
}

Roster::Actions Roster::receive(int from, const RosterMessage& message, double now) {
  Actions actions;
  if (has_stopped()) return actions;
  if (!is_member(self_)) {
    if (message.kind == Kind::kInstall && message.epoch > epoch_.number) {
      announced_[{message.epoch, message.members}].emplace(from, now);
      expect_round(now + options_.retry_seconds);
    }
    follow_members(now, actions);
    return actions;
  }
  if (!MOTLEY_GUARD("roster-past-epoch", message.epoch > epoch_.number)) {
    if (message.kind != Kind::kInstall) answer_late(from, message.epoch, actions);
    return actions;
  }
  if (message.epoch > epoch_.number + 1) {  // what lies between comes from whoever installed it
    if (message.kind == Kind::kInstall) announced_[{message.epoch, message.members}].emplace(from, now);
    return actions;
  }
  if (!is_member(from)) return actions;
  highest_round_ = std::max(highest_round_, message.ballot.round);
  const auto answer = [&](Kind kind) -> RosterMessage& {
    actions.push_back(Send{from, {.kind = kind, .epoch = message.epoch, .ballot = message.ballot}});
    return std::get<Send>(actions.back()).message;
  };
  if (message.kind == Kind::kPrepare || message.kind == Kind::kPropose) {
    if (!MOTLEY_GUARD("roster-promise", message.ballot >= promised_)) {
      answer(Kind::kRefuse).ballot = promised_;
      return actions;
    }
    promised_ = message.ballot;
    if (phase_ == Phase::kPreparing) phase_ = Phase::kIdle;  // it may not accept its own any more
  }
  const bool is_agreement = message.kind == Kind::kPromise || message.kind == Kind::kAccept;
  if (is_agreement && !MOTLEY_GUARD("roster-own-ballot", message.ballot == ballot_))
    return actions;  // to an earlier one
  switch (message.kind) {
    case Kind::kSuspect:
      for (const int rank : choose_cut(from, message.members, now)) {
        actions.push_back(Cut{rank});
        std::ranges::move(lose(rank, now), std::back_inserter(actions));
      }
      if (message.members.empty()) std::ranges::move(renew(now), std::back_inserter(actions));
      break;
    case Kind::kPrepare: {
      RosterMessage& promise = answer(Kind::kPromise);
      promise.accepted = accepted_;
      promise.members = accepted_members_;
      break;
    }
    case Kind::kPropose:
      if (MOTLEY_KEEPS("planted-acceptance-noted")) accepted_ = message.ballot;
      if (MOTLEY_KEEPS("planted-acceptance-noted")) accepted_members_ = message.members;
      answer(Kind::kAccept);
      break;
    case Kind::kPromise:
      if (phase_ != Phase::kPreparing) break;
      agreed_.insert(from);
      if (!MOTLEY_GUARD("roster-best-acceptance", message.accepted <= best_)) {
        best_ = message.accepted;
        proposal_ = message.members;
      }
      advance(now, actions);
      break;
    case Kind::kAccept:
      if (phase_ != Phase::kProposing) break;
      agreed_.insert(from);
      advance(now, actions);
      break;
    case Kind::kRefuse:
      if (phase_ == Phase::kIdle || message.ballot <= ballot_) break;
      // Another one proposes; if it is lost, too, this rank's turn comes again.
      phase_ = Phase::kIdle;
      next_ = kNever;
      expect_round(now + patience());
      break;
    case Kind::kInstall:
      install({message.epoch, message.members}, now, actions);
      break;
  }
  return actions;
}

}  // namespace motley::net
