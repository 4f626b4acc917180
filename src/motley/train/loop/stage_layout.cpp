#include "motley/train/loop/stage_layout.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ranges>
#include <set>

#include "motley/base/os/file.h"
#include "motley/serial/json_problem.h"

namespace motley::train {

using Json = nlohmann::json;

StageLayout::StageLayout(planning::Plan plan, std::vector<int> places, int size)
    : plan_(std::move(plan)), places_(std::move(places)) {
  std::vector<Rank> by_place;
  for (int stage = 0; stage < stages(); ++stage) {
    for (const planning::Replicas& replicas : plan_.stages[static_cast<std::size_t>(stage)].replicas) {
      by_place.insert(by_place.end(), static_cast<std::size_t>(replicas.count),
                      {stage, replicas.type, 0, replicas.share});
    }
  }
  if (places_.empty()) {
    places_.resize(by_place.size());
    std::iota(places_.begin(), places_.end(), 0);
  }
  MOTLEY_INVARIANT(places_.size() == by_place.size(), "{} ranks are in the {} places of a plan", places_.size(),
                   by_place.size());
  ranks_.resize(std::max(by_place.size(), static_cast<std::size_t>(size)));
  for (std::size_t place = 0; place < by_place.size(); ++place) {
    ranks_[static_cast<std::size_t>(places_[place])] = by_place[place];
  }
  keep_to(places_);
}

void StageLayout::keep_to(std::span<const int> present) {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (std::ranges::find(present, rank) == present.end()) ranks_[static_cast<std::size_t>(rank)] = {};
  }
  for (int stage = 0; stage < stages(); ++stage) {
    std::vector<double> weights;
    for (const int rank : list_ranks(stage)) weights.push_back(share(rank));
    set_split(stage, weights);
  }
}

bool StageLayout::suits(std::span<const int> present) const {
  const auto has_place = [&](int rank) { return std::ranges::find(places_, rank) != places_.end(); };
  StageLayout left(plan_, places_, ranks());
  left.keep_to(present);
  return std::ranges::all_of(present, has_place) &&
         std::ranges::none_of(std::views::iota(0, stages()), [&](int stage) { return left.list_ranks(stage).empty(); });
}

void StageLayout::set_split(int stage, std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double before = 0;
  std::size_t replica = 0;
  for (const int rank : list_ranks(stage)) {
    Rank& of = ranks_[static_cast<std::size_t>(rank)];
    of.begin = before / sum;
    before += weights[replica++];
    of.end = replica == weights.size() ? 1 : before / sum;
  }
}

double StageLayout::share(int rank) const {
  const Rank& of = ranks_[static_cast<std::size_t>(rank)];
  return of.end - of.begin;
}

std::vector<int> StageLayout::list_ranks(int stage) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < this->ranks() && stage >= 0; ++rank) {
    if (find_stage(rank) == stage) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> StageLayout::stages_with(std::span<const int> layers) const {
  std::vector<int> found;
  for (int number = 0; number < stages(); ++number) {
    const planning::Stage& stage = plan_.stages[static_cast<std::size_t>(number)];
    const auto is_in = [&](int layer) { return stage.first_layer <= layer && layer <= stage.last_layer; };
    if (std::ranges::any_of(layers, is_in)) found.push_back(number);
  }
  return found;
}

int StageLayout::sender_to(int rank, int stage) const {
  const std::vector<int> receivers = list_ranks(find_stage(rank));
  const std::vector<int> senders = list_ranks(stage);
  const auto place = static_cast<std::size_t>(std::ranges::find(receivers, rank) - receivers.begin());
  return senders[place * senders.size() / receivers.size()];
}

std::vector<StageLayout::MicroBatch> StageLayout::micro_batches(data::Range window, const Kept& kept) const {
  const std::uint64_t size = window.size();
  const std::uint64_t count = std::min<std::uint64_t>(static_cast<std::uint64_t>(plan_.micro_batches), size);
  std::vector<MicroBatch> all;
  for (std::uint64_t i = 0; i < count; ++i) {
    const data::Range positions{window.begin + static_cast<std::uint32_t>(size * i / count),
                                window.begin + static_cast<std::uint32_t>(size * (i + 1) / count)};
    cut(positions, kept, all);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].phase = (static_cast<double>(i) + 0.5) / static_cast<double>(all.size());
  }
  return all;
}

// Adds the pieces of a micro-batch that any stage lacks.
void StageLayout::cut(data::Range positions, const Kept& kept, std::vector<MicroBatch>& pieces) const {
  if (kept.empty()) {
    pieces.push_back({.positions = positions});
    return;
  }
  std::set<std::uint32_t> bounds = {positions.begin, positions.end};
  for (const data::Range& range : std::views::join(kept)) {
    for (const std::uint32_t bound : {range.begin, range.end}) {
      if (positions.begin < bound && bound < positions.end) bounds.insert(bound);
    }
  }
  std::vector<MicroBatch> own;
  for (auto begin = bounds.begin(), end = std::next(begin); end != bounds.end(); ++begin, ++end) {
    std::vector<bool> stages(plan_.stages.size());
    for (int rank = 0; rank < ranks(); ++rank) {
      const auto has_piece = [&](data::Range range) { return range.begin <= *begin && *end <= range.end; };
      if (find_stage(rank) >= 0 && std::ranges::any_of(kept[static_cast<std::size_t>(rank)], has_piece)) {
        stages[static_cast<std::size_t>(find_stage(rank))] = true;
      }
    }
    if (!own.empty() && own.back().kept == stages) {
      own.back().positions.end = *end;
    } else {
      own.push_back({.positions = {*begin, *end}, .kept = std::move(stages)});
    }
  }
  std::ranges::copy_if(own, std::back_inserter(pieces),
                       [&](const MicroBatch& piece) { return piece.goes_back_to(stages() - 1); });
}

data::Range StageLayout::rows(int rank, const MicroBatch& micro_batch) const {
  const Rank& of = ranks_[static_cast<std::size_t>(rank)];
  const auto row = [&](double share) {
    return static_cast<std::uint32_t>(std::floor(share * micro_batch.size() + micro_batch.phase));
  };
  return {row(of.begin), row(of.end)};
}

data::Range StageLayout::positions(int rank, const MicroBatch& micro_batch) const {
  const data::Range own = rows(rank, micro_batch);
  return {micro_batch.positions.begin + own.begin, micro_batch.positions.begin + own.end};
}

std::vector<data::Range> StageLayout::own_rows(int rank, data::Range window, const Kept& kept) const {
  std::vector<data::Range> own;
  for (const MicroBatch& micro_batch : micro_batches(window, kept)) own.push_back(positions(rank, micro_batch));
  return own;
}

std::vector<data::Range> StageLayout::gradient_rows(int rank, data::Range window, const Kept& kept) const {
  if (find_stage(rank) < 0) return {};
  std::vector<data::Range> own;
  if (!kept.empty()) own = kept[static_cast<std::size_t>(rank)];
  for (const MicroBatch& micro_batch : micro_batches(window, kept)) {
    if (micro_batch.lacks(find_stage(rank))) own.push_back(positions(rank, micro_batch));
  }
  return own;
}

std::uint32_t StageLayout::samples(int rank, data::Range window, const Kept& kept) const {
  std::uint32_t sum = 0;
  for (const data::Range& range : gradient_rows(rank, window, kept)) sum += range.size();
  return sum;
}

std::vector<StageLayout::Piece> StageLayout::pieces(int rank, int stage, const MicroBatch& micro_batch) const {
  const data::Range own = rows(rank, micro_batch);
  std::vector<Piece> pieces;
  for (const int other : list_ranks(stage)) {
    const data::Range theirs = rows(other, micro_batch);
    const data::Range both{std::max(own.begin, theirs.begin), std::min(own.end, theirs.end)};
    if (both.begin < both.end) pieces.push_back({other, both});
  }
  return pieces;
}

Result<StageSplit> StageSplit::create(StageLayout& layout, const data::BatchSplitOptions& options) {
  StageSplit shares(layout);
  for (int stage = 0; stage < layout.stages(); ++stage) {
    const std::vector<int> ranks = layout.list_ranks(stage);
    if (ranks.size() == 1) continue;
    data::BatchSplitOptions own{.policy = options.policy, .batch = options.batch, .may_pull = false};
    for (const int rank : ranks) {
      own.limits.push_back(options.limits[static_cast<std::size_t>(rank)]);
      own.proportions.push_back(layout.share(rank));
      if (options.batch < ranks.size()) own.limits.back().minimum = 0;  // some have nothing to do
    }
    auto partition = data::BatchSplitter::create(std::move(own));
    if (!partition) return fail(partition.error().within(fmt::format("stages[{}]", stage)));
    shares.parts_.push_back({stage, ranks, std::move(*partition)});
    shares.follow(shares.parts_.size() - 1);
  }
  return shares;
}

void StageSplit::follow(std::size_t part) {
  const data::BatchSplit& shares = parts_[part].partition.shares();
  layout_->set_split(parts_[part].stage, std::vector<double>(shares.begin(), shares.end()));
}

Status StageSplit::observe(std::uint64_t step, std::span<const data::Observation> ranks) {
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    data::BatchSplitter& partition = parts_[part].partition;
    std::vector<data::Observation> own;
    double last = 0;
    for (const int rank : parts_[part].ranks) {
      own.push_back(ranks[static_cast<std::size_t>(rank)]);
      last = std::max(last, own.back().seconds);
    }
    // A stage is as fast as its last worker; what it waits for besides is no matter of its shares.
    for (data::Observation& seen : own) seen.wait = last - seen.seconds;
    const std::uint64_t moves = partition.diagnostics().moves;
    MOTLEY_TRY(partition.observe(step, own));
    if (partition.diagnostics().moves == moves) continue;
    reason_ = fmt::format("stage {}: {}", parts_[part].stage, partition.diagnostics().reason);
    follow(part);
  }
  return {};
}

std::uint64_t StageSplit::moves() const {
  std::uint64_t sum = 0;
  for (const Part& part : parts_) sum += part.partition.diagnostics().moves;
  return sum;
}

std::string StageSplit::plan_name() const {
  return fmt::format("{:08x}", crc32c(planning::to_json(layout_->plan())));
}

std::string StageSplit::save() const {
  Json stages = Json::array();
  for (const Part& part : parts_) stages.push_back(Json::parse(part.partition.save()));
  return Json{{"plan", plan_name()}, {"stages", stages}}.dump();
}

Result<bool> StageSplit::restore(std::string_view text) {
  try {
    const Json saved = Json::parse(text);
    if (saved.at("plan") != plan_name() || saved.at("stages").size() != parts_.size()) return false;
    StageSplit restored = *this;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      MOTLEY_ASSIGN(const bool fits, restored.parts_[part].partition.restore(saved.at("stages").at(part).dump()));
      if (!fits) return false;
    }
    *this = std::move(restored);
  } catch (const Json::exception& problem) {
    return fail(ErrorCode::kCorrupt, "saved shares of stages: {}", explain(problem));
  }
  for (std::size_t part = 0; part < parts_.size(); ++part) follow(part);
  return true;
}

}  // namespace motley::train
