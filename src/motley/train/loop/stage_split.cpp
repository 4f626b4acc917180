#include "motley/train/loop/stage_split.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "motley/base/os/file.h"

namespace motley::train {

using Json = nlohmann::json;

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
    return fail(ErrorCode::kCorrupt, "saved shares of stages: {}", problem.what());
  }
  for (std::size_t part = 0; part < parts_.size(); ++part) follow(part);
  return true;
}

}  // namespace motley::train
