#include "motley/train/loop/plan_mover.h"

#include <nlohmann/json.hpp>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"

namespace motley::train {

void PlanMover::observe(std::span<const data::Observation> ranks, std::int64_t steps_left) {
  if (replanner_) replanner_->observe(ranks, steps_left);
}

bool PlanMover::has_found() {
  if (replanner_ && !found_) {
    found_ = replanner_->next_move();
    if (found_ && !follower_.may_follow(*found_)) {
      found_.reset();
    }
  }
  return found_.has_value();
}

Status PlanMover::move(std::int64_t step) {
  const double begin = monotonic_seconds();
  context_.set_phase(step, "moving to another plan");
  std::string text;
  if (context_.writes()) {
    text = nlohmann::ordered_json{{"plan", planning::to_json(found_->plan)}, {"ranks", found_->ranks}}.dump();
  }
  MOTLEY_ASSIGN(text, broadcast_text(context_.group, std::move(text), 0, context_.step_deadline()));
  const auto message = nlohmann::json::parse(text);
  MOTLEY_ASSIGN(planning::Plan plan,
                planning::parse_plan(message.at("plan").get<std::string>(), "the plan to move to"));
  MOTLEY_ASSIGN(const StageLayout* layout,
                follower_.follow(std::move(plan), message.at("ranks").get<std::vector<int>>()));
  if (!context_.writes()) {
    return {};
  }
  const double seconds = monotonic_seconds() - begin;
  replanner_->moved(*layout, seconds);
  const std::string name = fmt::format("plan-after-step-{}.json", step);
  MOTLEY_TRY(write_file(folder_ / name, planning::to_json(layout->plan())));
  const std::string reason =
      fmt::format("{}; moving took {}, the new plan is {}", found_->reason, format_seconds(seconds), name);
  found_.reset();
  reporter_.clear_progress();
  spdlog::info("moved to another plan after step {}: {}", step, reason);
  return reporter_.event(step, "moved", reason);
}

}  // namespace motley::train
