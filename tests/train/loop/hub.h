// Where ranks that are threads meet, some of which end at any operation that they do together, and the group of these.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "motley/base/random.h"
#include "motley/collective/gradient_reducer.h"

namespace motley::train {

inline constexpr int kRanks = 4;
inline constexpr std::int64_t kSteps = 7;  // two epochs and a third
inline constexpr std::uint32_t kSamples = 36, kBatch = 12;

// What a rank brings to an operation, and what it gets: everybody's.
using Word = std::vector<double>;

// Where ranks meet. An operation succeeds once all members of the epoch have brought their word. A rank may end before
// it brings it, or right after: then some of the others still get all words, and some do not.
class Hub {
 public:
  struct End {
    int rank = 0;
    int operation = 0;  // counted by that rank, from 0
    bool brings_its_word = false;
  };
  Hub(std::uint32_t seed, std::vector<End> ends) : random_(seed), ends_(std::move(ends)) {
    for (int rank = 0; rank < kRanks; ++rank) members_.push_back(rank);
  }

  // Once this rank has ended, the others go on only when another one asks for its place. Said before any begins.
  void await_newcomer(int rank) { awaited_ = rank; }
  // Where this rank would end, it only cannot reach the others any more. Said before any begins.
  void cut_off(int rank) { cut_off_ = rank; }
  bool is_cut_off(int rank) const { return rank == cut_off_; }

  // Another one has this rank from now on. It may end where this thread is about to do something.
  void begin(int rank) {
    const std::lock_guard lock(mutex_);
    threads_[rank] = std::this_thread::get_id();
  }

  // By rank; empty for those that do not take part. Only these ranks do, or, where none are named, all members.
  Result<std::vector<Word>> meet(int rank, Word word, const std::vector<int>& ranks = {}) {
    std::unique_lock lock(mutex_);
    const bool is_own_thread = threads_[rank] == std::this_thread::get_id();
    if (is_own_thread && ends_here(rank, false)) return end(rank);
    if (is_broken(rank)) return fail(ErrorCode::kPeerLost, "the ranks have changed");
    Operation& operation = operations_[{epochs_[rank], ranks, next_[{rank, ranks}]++}];
    operation.words.resize(kRanks);
    operation.words[rank] = std::move(word);
    operation.here.insert(rank);
    changed_.notify_all();
    if (is_own_thread && ends_here(rank, true)) {
      operation.is_torn = true;
      return end(rank);
    }
    if (is_own_thread) ++calls_[rank];
    const std::size_t all = ranks.empty() ? members_.size() : ranks.size();
    const auto lacks_one_who_left = [&] {
      return std::ranges::any_of(left_, [&](int gone) { return !operation.here.contains(gone); });
    };
    changed_.wait(lock, [&] { return operation.here.size() == all || is_broken(rank) || lacks_one_who_left(); });
    if (operation.here.size() < all && !is_broken(rank))
      return fail(ErrorCode::kUnavailable, "a rank has left in order");
    if (operation.here.size() == all && !(operation.is_torn && random_() % 2 == 0)) return operation.words;
    return fail(ErrorCode::kPeerLost, "the ranks have changed");
  }

  Result<std::vector<std::vector<int>>> regroup(int rank, bool is_newcomer = false) {
    std::unique_lock lock(mutex_);
    if (ends_here(rank, false)) return end(rank);
    if (rank == cut_off_ && dead_.contains(rank)) {
      return fail(Error{ErrorCode::kRefused, "the others go on without this rank", rank});
    }
    ++calls_[rank];
    const std::uint64_t before = epochs_[rank];
    (is_newcomer ? newcomers_ : waiting_).insert(rank);
    install_if_all_wait();
    changed_.notify_all();
    changed_.wait(lock, [&] { return epochs_[rank] != before || !left_.empty() || members_.empty(); });
    newcomers_.erase(rank);
    if (epochs_[rank] == before) return fail(ErrorCode::kUnavailable, "a rank has left in order");
    const auto known = is_newcomer ? epochs_[rank] - 1 : before;
    return std::vector(history_.begin() + static_cast<std::ptrdiff_t>(known),
                       history_.begin() + static_cast<std::ptrdiff_t>(epochs_[rank]));
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    left_.insert(rank);
    changed_.notify_all();
  }

  // Without a word to the others.
  void go(int rank) {
    const std::lock_guard lock(mutex_);
    (void)end(rank);
  }

  void note_commit(int rank, std::int64_t step, std::uint64_t weights) {
    const std::lock_guard lock(mutex_);
    const auto [known, is_new] = committed_.emplace(step, weights);
    EXPECT_EQ(known->second, weights) << "rank " << rank << ", step " << step;
  }
  std::uint64_t weights_after(std::int64_t step) const { return committed_.at(step); }
  bool is_dead(int rank) const {
    const std::lock_guard lock(mutex_);
    return dead_.contains(rank);
  }
  // Which rank ended first, of those that did.
  int first_to_end() const {
    const std::lock_guard lock(mutex_);
    return first_to_end_;
  }
  bool has_regrouped() const {
    const std::lock_guard lock(mutex_);
    return !history_.empty();
  }

 private:
  struct Operation {
    std::vector<Word> words;
    std::set<int> here;
    bool is_torn = false;
  };
  bool ends_here(int rank, bool after_its_word) const {
    return std::ranges::any_of(ends_, [&](const End& end) {
      return end.rank == rank && end.operation == calls_[rank] && end.brings_its_word == after_its_word;
    });
  }
  tl::unexpected<Error> end(int rank) {
    ++calls_[rank];
    dead_.insert(rank);
    if (first_to_end_ < 0) first_to_end_ = rank;
    waiting_.erase(rank);
    newcomers_.erase(rank);
    if (std::ranges::all_of(members_, [this](int member) { return dead_.contains(member); })) members_.clear();
    install_if_all_wait();
    changed_.notify_all();
    if (rank == cut_off_) return fail(ErrorCode::kPeerLost, "nobody can be reached");
    return fail(ErrorCode::kInternal, "this rank has ended");
  }
  // A member of this rank's epoch is lost, or the others have gone on to another one, or are about to.
  bool is_broken(int rank) const {
    return epochs_[rank] != history_.size() || !newcomers_.empty() ||
           std::ranges::any_of(members_, [&](int member) { return dead_.contains(member); });
  }
  void install_if_all_wait() {
    std::vector<int> alive;
    std::ranges::copy_if(members_, std::back_inserter(alive), [&](int rank) { return !dead_.contains(rank); });
    if (alive.empty() || !std::ranges::equal(alive, waiting_)) return;
    if (dead_.contains(awaited_) && !newcomers_.contains(awaited_)) return;
    // Who takes a place comes after it is free.
    std::set<int> later;
    for (const int rank : newcomers_) {
      std::ranges::find(members_, rank) == members_.end() ? alive.push_back(rank) : void(later.insert(rank));
    }
    std::ranges::sort(alive);
    members_ = alive;
    history_.push_back(alive);
    for (const int rank : alive) epochs_[rank] = history_.size();
    for (const int rank : alive) dead_.erase(rank);
    next_.clear();
    waiting_.clear();
    newcomers_ = later;
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937 random_;
  const std::vector<End> ends_;
  std::vector<int> members_;
  std::vector<std::vector<int>> history_;  // members of each epoch after the first
  std::set<int> dead_, waiting_, newcomers_, left_;
  int awaited_ = -1, cut_off_ = -1, first_to_end_ = -1;  // none
  std::uint64_t epochs_[kRanks] = {};
  std::map<std::pair<int, std::vector<int>>, std::uint64_t> next_;  // by rank and who takes part
  int calls_[kRanks] = {};
  std::thread::id threads_[kRanks];
  std::map<std::tuple<std::uint64_t, std::vector<int>, std::uint64_t>, Operation> operations_;
  std::map<std::int64_t, std::uint64_t> committed_;
};

class HubGroup final : public collective::Group {
 public:
  // Of all members, or of these.
  HubGroup(Hub& hub, int rank, std::vector<int> ranks = {}) : hub_(hub), rank_(rank), ranks_(std::move(ranks)) {}
  Result<std::vector<double>> all_gather(std::span<const double> values, const Deadline&) override {
    MOTLEY_ASSIGN(const auto words, meet({values.begin(), values.end()}));
    std::vector<double> all;
    for (Word word : words) {
      word.resize(values.size());
      all.insert(all.end(), word.begin(), word.end());
    }
    return all;
  }
  Status all_reduce_sum(std::span<double> values, const Deadline&) override {
    MOTLEY_ASSIGN(const auto words, meet({values.begin(), values.end()}));
    std::ranges::fill(values, 0);
    for (const Word& word : words) {
      for (std::size_t i = 0; i < word.size(); ++i) values[i] += word[i];
    }
    return {};
  }
  Status broadcast(std::span<std::byte> bytes, int root, const Deadline&) override {
    Word own(bytes.size() / 8 + 1);
    std::memcpy(own.data(), bytes.data(), bytes.size());
    MOTLEY_ASSIGN(const auto words, meet(own));
    std::memcpy(bytes.data(), words[static_cast<std::size_t>(ranks_.empty() ? root : ranks_[root])].data(),
                bytes.size());
    return {};
  }
  Status barrier(const Deadline&) override {
    MOTLEY_TRY(meet({}));
    return {};
  }
  Result<std::int64_t> fetch_add(int, std::int64_t, const Deadline&) override { return 0; }
  // From now on the group is of this rank alone.
  void stand_alone() { is_alone_ = true; }

 private:
  Result<std::vector<Word>> meet(Word word) {
    if (!is_alone_) return hub_.meet(rank_, std::move(word), ranks_);
    std::vector<Word> words(kRanks);
    words[static_cast<std::size_t>(rank_)] = std::move(word);
    return words;
  }

  Hub& hub_;
  const int rank_;
  const std::vector<int> ranks_;
  bool is_alone_ = false;
};

inline double gradient_at(std::uint32_t sample) {
  return static_cast<double>(mix({sample}) >> 40);
}

// Ranks that end, up to twice, and how many of each are to take its place then. One rank of all stays.
struct Losses {
  std::vector<int> victims;
  std::vector<int> replacements;  // by rank
  std::vector<Hub::End> ends;
};
// Each victim ends at one of its first operations, so many at most, and its replacement within so many after that.
inline Losses draw_losses(std::mt19937& random, int ranks, unsigned first_operations, unsigned later_operations) {
  Losses losses{.victims = std::vector<int>(static_cast<std::size_t>(ranks)),
                .replacements = std::vector<int>(static_cast<std::size_t>(ranks)),
                .ends = {}};
  std::iota(losses.victims.begin(), losses.victims.end(), 0);
  std::ranges::shuffle(losses.victims, random);
  losses.victims.resize(1 + random() % static_cast<unsigned>(ranks - 1));
  for (const int rank : losses.victims) {
    losses.replacements[static_cast<std::size_t>(rank)] = static_cast<int>(random() % 3);
    const int first = static_cast<int>(random() % first_operations);
    losses.ends.push_back({rank, first, random() % 2 == 0});
    losses.ends.push_back({rank, first + 1 + static_cast<int>(random() % later_operations), random() % 2 == 0});
  }
  return losses;
}

}  // namespace motley::train
