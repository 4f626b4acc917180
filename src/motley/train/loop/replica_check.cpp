#include "motley/train/loop/replica_check.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/units.h"

namespace motley::train {
namespace {

// A rank's WeightsHash, as the all-gather carries it.
struct Held {
  double replicas;
  double arithmetic;
  double high;  // halves of the hash
  double low;
};

// The ranks whose weights most of these do not have, and the others; of equally many the lowest rank's are the others.
std::pair<std::vector<int>, std::vector<int>> find_differing(const std::vector<int>& ranks,
                                                             const std::vector<Held>& held) {
  const auto same_as = [&](int rank) {
    return [&, rank](int other) {
      const Held& one = held[static_cast<std::size_t>(rank)];
      const Held& its = held[static_cast<std::size_t>(other)];
      return one.high == its.high && one.low == its.low;
    };
  };
  const int usual =
      *std::ranges::max_element(ranks, {}, [&](int rank) { return std::ranges::count_if(ranks, same_as(rank)); });
  std::pair<std::vector<int>, std::vector<int>> found;
  std::ranges::partition_copy(ranks, std::back_inserter(found.second), std::back_inserter(found.first), same_as(usual));
  return found;
}

}  // namespace

Status ReplicaCheck::compare(const RankContext& context, const RunProgress& progress, WeightsHash own) {
  if (!rounds_as_others_) own.arithmetic = 0;
  const double words[] = {static_cast<double>(own.replicas), static_cast<double>(own.arithmetic),
                          static_cast<double>(own.hash >> 32), static_cast<double>(own.hash & 0xffffffff)};
  static_assert(sizeof(Held) == sizeof(words));
  MOTLEY_ASSIGN(const std::vector<double> all, context.group.all_gather(words, context.long_deadline()));
  std::vector<Held> held(all.size() / std::size(words));
  std::memcpy(held.data(), all.data(), held.size() * sizeof(Held));
  std::map<double, std::vector<int>> replicas;
  for (const int rank : context.present) replicas[held[static_cast<std::size_t>(rank)].replicas].push_back(rank);
  replicas.erase(0);
  for (const auto& [number, ranks] : replicas) {
    const double arithmetic = held[static_cast<std::size_t>(ranks.front())].arithmetic;
    const auto rounds_alike = [&](int rank) {
      return arithmetic != 0 && held[static_cast<std::size_t>(rank)].arithmetic == arithmetic;
    };
    if (!std::ranges::all_of(ranks, rounds_alike)) {
      if (number == own.replicas) rounds_as_others_ = false;
      continue;
    }
    const auto [differing, others] = find_differing(ranks, held);
    if (differing.empty()) continue;
    return fail(
        ErrorCode::kCorrupt,
        "after step {} the weights of {} differ from those of {}, with which they are to be bitwise the same, so "
        "that no checkpoint is made of them; --resume goes on from the last one{}, before which they were "
        "compared. Where it happens again, look for faulty memory or a faulty device",
        progress.step, format_ranks(differing), format_ranks(others),
        progress.saved_step > 0 ? fmt::format(" (step {})", progress.saved_step) : "");
  }
  return {};
}

}  // namespace motley::train
