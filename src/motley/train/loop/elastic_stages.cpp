#include "motley/train/loop/elastic_stages.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

namespace motley::train {
namespace {

struct Part {
  planning::Stage stage;  // without replicas
  std::vector<int> ranks = {};
  std::vector<double> weights = {};

  double layers_a_rank() const {
    return ranks.empty() ? std::numeric_limits<double>::infinity()
                         : (stage.last_layer - stage.first_layer + 1) / static_cast<double>(ranks.size());
  }
  double mean_weight() const {
    return ranks.empty() ? 1 : std::reduce(weights.begin(), weights.end()) / static_cast<double>(ranks.size());
  }
};

// Of the layout's stages, with those ranks that are there; `unplaced` are left without those that have a place.
std::vector<Part> take_apart(const StageLayout& layout, std::vector<int>& unplaced) {
  std::vector<Part> parts;
  auto rank = layout.places().begin();
  for (const planning::Stage& stage : layout.plan().stages) {
    Part part{stage};
    part.stage.replicas.clear();
    for (const planning::Replicas& replicas : stage.replicas) {
      for (std::int64_t i = 0; i < replicas.count; ++i, ++rank) {
        if (std::erase(unplaced, *rank) == 0) continue;
        part.ranks.push_back(*rank);
        part.weights.push_back(replicas.share);
      }
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

void merge_empty(std::vector<Part>& parts) {
  const auto has_none = [](const Part& part) { return part.ranks.empty(); };
  for (auto empty = std::ranges::find_if(parts, has_none); empty != parts.end();
       empty = std::ranges::find_if(parts, has_none)) {
    const bool goes_up = empty == parts.begin() ||
                         (empty + 1 != parts.end() && (empty + 1)->layers_a_rank() < (empty - 1)->layers_a_rank());
    Part& neighbour = goes_up ? *(empty + 1) : *(empty - 1);
    neighbour.stage.first_layer = std::min(neighbour.stage.first_layer, empty->stage.first_layer);
    neighbour.stage.last_layer = std::max(neighbour.stage.last_layer, empty->stage.last_layer);
    neighbour.stage.recompute = neighbour.stage.recompute || empty->stage.recompute;
    parts.erase(empty);
  }
}

}  // namespace

StageLayout lay_out_for(std::span<const int> present, const StageLayout& before,
                        const std::vector<std::string>& types) {
  std::vector<int> unplaced(present.begin(), present.end());
  std::vector<Part> parts = take_apart(before, unplaced);
  for (const int rank : unplaced) {
    Part& most = *std::ranges::max_element(parts, {}, &Part::layers_a_rank);
    most.weights.push_back(most.mean_weight());
    most.ranks.push_back(rank);
  }
  merge_empty(parts);
  planning::Plan plan = before.plan();
  plan.stages.clear();
  plan.predicted = {};
  plan.measured.reset();
  plan.bound.reset();
  std::vector<int> places;
  for (Part& part : parts) {
    const double sum = std::reduce(part.weights.begin(), part.weights.end());
    for (std::size_t i = 0; i < part.ranks.size(); ++i) {
      part.stage.replicas.push_back({types[static_cast<std::size_t>(part.ranks[i])], 1, part.weights[i] / sum});
    }
    part.stage.gradient_sync = part.ranks.size() > 1 ? planning::GradientSync::kRing : planning::GradientSync::kNone;
    places.insert(places.end(), part.ranks.begin(), part.ranks.end());
    plan.stages.push_back(std::move(part.stage));
  }
  return StageLayout(std::move(plan), std::move(places), before.ranks());
}

bool NextStages::moves(int rank) const {
  const double* own = &held[2 * static_cast<std::size_t>(rank)];
  return own[0] != layout.stage(rank).first_layer || own[1] != layout.stage(rank).last_layer + 1;
}

bool NextStages::some_move(std::span<const int> present) const {
  return std::ranges::any_of(present, [&](int rank) { return moves(rank); });
}

Result<NextStages> agree_on_stages(const RankContext& context, const StageLayout& layout, bool has_state,
                                   const std::vector<std::string>& types,
                                   const std::function<StageLayout(StageLayout)>& improve) {
  double own[] = {0, 0};
  if (has_state) {
    own[0] = layout.stage(context.rank).first_layer;
    own[1] = layout.stage(context.rank).last_layer + 1;
  }
  MOTLEY_ASSIGN(std::vector<double> held, context.group.all_gather(own, context.step_deadline()));
  std::string text;
  if (context.writes()) {
    const StageLayout next =
        layout.suits(context.present) ? layout : improve(lay_out_for(context.present, layout, types));
    text = nlohmann::json{{"plan", planning::to_json(next.plan())}, {"ranks", next.places()}}.dump();
  }
  MOTLEY_ASSIGN(text, broadcast_text(context.group, std::move(text), context.writer, context.step_deadline()));
  const auto message = nlohmann::json::parse(text);
  MOTLEY_ASSIGN(planning::Plan plan,
                planning::parse_plan(message.at("plan").get<std::string>(), "the plan to go on by"));
  NextStages next{StageLayout(std::move(plan), message.at("ranks").get<std::vector<int>>(), context.size),
                  std::move(held)};
  next.layout.keep_to(context.present);
  for (double layer = 0; layer < static_cast<double>(layout.plan().layers.size());) {
    const auto held_by = [&](int rank) { return &next.held[2 * static_cast<std::size_t>(rank)]; };
    const auto has_layer = [&](int rank) { return held_by(rank)[0] <= layer && layer < held_by(rank)[1]; };
    const auto giver = std::ranges::find_if(context.present, has_layer);
    if (giver == context.present.end()) {
      next.givers.clear();
      break;
    }
    next.givers.push_back(*giver);
    layer = held_by(*giver)[1];
  }
  return next;
}

}  // namespace motley::train
