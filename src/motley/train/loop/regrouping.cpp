// Where a rank of an elastic run is lost, or one joins, whatever the others wait for fails, and they regroup:
//
//   a. They agree on who is there (net/roster.h). All go through the same epochs, in the same order.
//   b. They tell each other the last step that they have done. Reports are gathered only after all ranks have all of a
//      step's reduced gradients. So where one has done a step that another has not, the other has its gradients, too,
//      and needs only the reports. Now all have done step S, and none more.
//   c. Newcomers get the state after S, as a checkpoint would hold it, from the rank that writes the run's files. They
//      have come with the network built and the data open. The others do not wait for the weights and the optimizer's
//      state, which are what takes long: these come while all train. Until then a newcomer takes part in steps without
//      samples and keeps their reduced gradients, with which it then takes the optimizer's steps that it has missed.
//      Where servers take them, it waits.
//   d. What some still had to do after S (audit, evaluation, checkpoint), all do, again if need be.
//   e. Step S + 1 keeps its window and its shares. Those of the lost are handed to the others, in proportion to theirs.
//      Whoever has computed its own share keeps its gradient, computes only what it was handed, and the gradients are
//      reduced anew. So the step's gradient is that of its whole window, as if nothing had happened. A newcomer takes
//      part with no samples.
//   f. From step S + 2 on the window is split among those who are there and have the weights; from then on a newcomer
//      is one of them.
//
// Where a plan gives each rank a stage, those who are there build their stages anew after b. (elastic_stages.h), which
// gives newcomers their state, too. Of step S + 1 each keeps the gradients that it has, and tells the others of which
// rows. What is left of the step is the rows whose gradient is lost with somebody, or was not there yet, in
// any stage: they go through all stages once more, and count in those that lack them. With BatchNorm, which needs all
// rows of a micro-batch together, all begin the step anew. Where nobody has some layers'
// state, all go back to the last checkpoint, and S is its step. Who has not got there when others have, has no state
// any more.
#include "motley/train/loop/regrouping.h"

#include <algorithm>
#include <iterator>
#include <ranges>

#include "motley/base/guard.h"
#include "motley/base/log.h"
#include "motley/base/units.h"
#include "motley/serial/json_fields.h"
#include "motley/train/loop/training_loop.h"

namespace motley::train {
namespace {

constexpr double kMoment = 0.2;  // seconds between two looks at whether to wait on
constexpr int kMissedSteps = 4;  // that a newcomer does between two steps of all
constexpr std::uint64_t kMostPostponedBytes = 1 << 30;

std::string describe(const std::vector<int>& ranks, const char* of_one, const char* of_many) {
  return fmt::format("{} {}", format_ranks(ranks), ranks.size() == 1 ? of_one : of_many);
}

}  // namespace

struct Regrouping::News {
  std::vector<std::vector<int>> epochs;
  std::vector<int> kept;
  std::int64_t saved_step = 0;
  std::int64_t duties = 0;
  bool stops = false;
  bool has_ended = false;
  double seconds = 0;  // of the run
};

template <class Archive>
void fields(Archive& archive, Regrouping::News& news) {
  archive.required("epochs", news.epochs);
  archive.required("kept", news.kept);
  archive.required("saved_step", news.saved_step);
  archive.required("duties", news.duties);
  archive.required("stops", news.stops);
  archive.required("has_ended", news.has_ended);
  archive.required("seconds", news.seconds, NumberIs::kNotNegative);
}

Regrouping::Regrouping(const RankContext& context, const LoopParts& parts, RunProgress& progress, Loop loop)
    : context_(context),
      parts_(parts),
      progress_(progress),
      loop_(std::move(loop)),
      told_(context.present),
      knows_before_(!parts.elastic->is_newcomer()) {
  if (std::ssize(context.present) < context.size) kept_ = context.present;
}

Status Regrouping::run() {
  for (;;) {
    const double begin = monotonic_seconds();
    context_.set_phase(progress_.step, lacks_state() ? "joining" : "regrouping");
    Status done = run_once();
    while (!done && survives(done.error())) done = run_once();
    if (!done) return give_up(std::move(done.error()));
    context_.timeline.record(Phase::kWait, progress_.step, begin, monotonic_seconds());
    MOTLEY_TRY(tell(begin));
    if (static_cast<int>(context_.present.size()) >= parts_.elastic->minimum()) return {};
    MOTLEY_ASSIGN(const bool has_changed, wait_for_more());
    if (has_changed) continue;
    return fail(ErrorCode::kPeerLost, "{} of at least {} workers are left after step {}{}", context_.present.size(),
                parts_.elastic->minimum(), progress_.step,
                progress_.saved_step > 0 ? "; a checkpoint was written" : "");
  }
}

bool Regrouping::survives(const Error& error) const {
  if (error.code == ErrorCode::kServerLost) parts_.elastic->renew();
  return error.code == ErrorCode::kPeerLost || error.code == ErrorCode::kServerLost;
}

// What this rank has is not lost with it, where the others go on without it, or none of them can be reached.
Status Regrouping::give_up(Error error) {
  const bool is_alone = error.code == ErrorCode::kRefused && error.rank == context_.rank;
  if (!is_alone || lacks_state() || progress_.step == 0) return fail(std::move(error));
  const std::int64_t saved_before = progress_.saved_step;
  const Status saved = save_alone();
  if (saved) {
    error.message += fmt::format("; a checkpoint was written (step {})", progress_.step);
  } else if (saved_before > 0) {
    error.message += fmt::format("; the last checkpoint is that of step {}: {}", saved_before, saved.error().message);
  } else {
    error.message += fmt::format("; there is no checkpoint: {}", saved.error().message);
  }
  return fail(std::move(error));
}

Status Regrouping::save_alone() {
  if (!parts_.checkpoints->keeps_any()) return fail(ErrorCode::kUnavailable, "this job writes none");
  if (parts_.stages != nullptr) MOTLEY_TRY(parts_.stages->give_all_layers());
  if (!context_.writes()) progress_.saved_step = 0;  // another rank has written it, between hosts on its own
  MOTLEY_TRY(parts_.elastic->stand_alone());
  return loop_.save();
}

// With a checkpoint written, until somebody comes or goes, of which there is news then, or nobody has come in time.
Result<bool> Regrouping::wait_for_more() {
  const auto is_change = [this](const Status& done) { return !done && survives(done.error()); };
  const std::int64_t saved_before =
      std::exchange(progress_.saved_step, 0);  // all save, or none: a loss may divide them
  const Status saved = loop_.save();
  if (!saved) progress_.saved_step = saved_before;
  if (is_change(saved)) return true;
  MOTLEY_TRY(saved);
  const Deadline deadline = Deadline::after(parts_.elastic->join_seconds());
  spdlog::warn("{} of at least {} workers are left: waiting {:.3g} s for others to join", context_.present.size(),
               parts_.elastic->minimum(), deadline.allowed());
  context_.set_phase(progress_.step, "waiting for workers to join");
  while (!deadline.passed() && !loop_.is_asked_to_stop()) {
    const Status health = context_.session.health();
    if (is_change(health)) return true;
    MOTLEY_TRY(health);
    SteadyClock::instance().sleep_until(monotonic_seconds() + kMoment);
  }
  return false;
}

// Events say each change once. Who does not write them counts on all epochs that no step has seen: the writer may be
// lost before it has told of them. The timeline has each rank's change once, whoever marks it.
Status Regrouping::tell(double begin) {
  const auto untold = std::views::drop(epochs_, static_cast<std::ptrdiff_t>(told_epochs_));
  std::vector<int> lost, left, joined;
  for (int rank = 0; rank < context_.size; ++rank) {
    const auto was_away = [rank](const std::vector<int>& ranks) { return !std::ranges::binary_search(ranks, rank); };
    const bool left_out = was_away(told_) || std::ranges::any_of(untold, was_away);
    const bool has_left = std::ranges::binary_search(loop_.state.leaving, rank);
    if (!was_away(told_) && left_out) (has_left ? left : lost).push_back(rank);
    if (context_.is_present(rank) && left_out) joined.push_back(rank);
  }
  told_ = context_.present;
  if (context_.writes()) told_epochs_ = epochs_.size();
  const bool marks = std::exchange(knows_before_, true);
  const auto mark = [&](std::string text) {
    if (marks) context_.timeline.mark(progress_.step + 1, begin, std::move(text));
  };
  std::vector<std::string> news;
  const auto add = [&](const std::vector<int>& ranks, const char* of_one, const char* of_many) {
    if (!ranks.empty()) news.push_back(describe(ranks, of_one, of_many));
    for (const int rank : ranks) mark(describe({rank}, of_one, of_many));
  };
  add(lost, "was lost", "were lost");
  add(left, "has left", "have left");
  add(joined, "has joined", "have joined");
  std::string servers = parts_.elastic->lost_servers();
  if (const std::string stages = parts_.stages != nullptr ? parts_.stages->take_news() : ""; !stages.empty()) {
    mark(stages);
    news.push_back(stages);
  }
  if (news.empty() && servers.empty()) servers = "a parameter server was lost";
  const auto say = [&](const char* kind, const std::string& what) {
    const std::string text = fmt::format("{}; {} of {} workers go on after {:.3g} s{}", what, context_.present.size(),
                                         context_.size, monotonic_seconds() - begin,
                                         loop_.state.kept.empty() ? "" : ", with what they have computed of the step");
    if (context_.writes()) spdlog::warn("step {}: {}", progress_.step + 1, text);
    return parts_.reporter->event(progress_.step, kind, text);
  };
  if (!servers.empty()) MOTLEY_TRY(say("server-lost", servers));
  if (news.empty()) return {};
  const bool is_lost = !lost.empty() || (left.empty() && joined.empty());
  const char* kind = is_lost ? "lost" : !left.empty() ? "left" : "joined";
  return say(kind, fmt::format("{}", fmt::join(news, ", ")));
}

WindowParts Regrouping::cut(const Step& step) const {
  WindowParts parts = parts_.plan->cut(step);
  if (step.number == changed_step_ && parts_.stages == nullptr) {
    for (const std::vector<int>& ranks : epochs_) {
      if (MOTLEY_KEEPS("loop-hand-over-next")) hand_over(parts, ranks, step.plan.shares);
    }
  }
  return parts;
}

bool Regrouping::knows_weights(int rank) const {
  const auto has = [rank](const std::vector<int>& ranks) { return std::ranges::binary_search(ranks, rank); };
  return (kept_.empty() || has(kept_)) && std::ranges::all_of(epochs_, has);
}

Status Regrouping::commit(std::int64_t step, const std::vector<Report>& reports) {
  last_reports_ = reports;
  const auto joins = [&](int rank) { return reports[static_cast<std::size_t>(rank)].joins != 0; };
  if (has_changed(step)) {
    kept_ = std::exchange(epochs_, {}).back();
    told_epochs_ = 0;
    joining_.clear();
    std::ranges::copy_if(kept_, std::back_inserter(joining_), joins);
    std::erase_if(kept_, joins);
  } else {
    const auto arrived = std::ranges::stable_partition(joining_, joins);
    if (arrived.empty()) return {};
    kept_.insert(kept_.end(), arrived.begin(), arrived.end());
    std::ranges::sort(kept_);
    joining_.erase(arrived.begin(), arrived.end());
  }
  if (parts_.stages != nullptr || !MOTLEY_KEEPS("loop-keep-to-present")) return {};
  return parts_.plan->keep_to(step + 1, kept_);
}

// See the prose at the top of this file.
Status Regrouping::run_once() {
  transfer_.reset();  // before the ranks have changed: it ends as they do
  MOTLEY_ASSIGN(auto epochs, parts_.elastic->regroup());
  std::ranges::move(epochs, std::back_inserter(new_epochs_));
  MOTLEY_TRY(level());
  if (parts_.stages != nullptr) MOTLEY_TRY(build_stages());
  if (!context_.writes()) parts_.reporter->close();
  if (context_.writes() && !parts_.reporter->is_open()) MOTLEY_TRY(parts_.elastic->take_over(progress_.step));
  MOTLEY_TRY(agree_on_duties());
  if (parts_.stages == nullptr) MOTLEY_TRY(hand_over_step());
  changed_step_ = progress_.step + 1;
  std::ranges::move(new_epochs_, std::back_inserter(epochs_));
  new_epochs_.clear();
  return {};
}

// What is under way goes on among those who are there.
Status Regrouping::hand_over_step() {
  MOTLEY_TRY(parts_.elastic->synchronise());
  SavedState saved;  // the batch's split goes on from what a newcomer has been told of it, everywhere
  parts_.plan->save(saved);
  MOTLEY_TRY(parts_.plan->restore(saved));
  if (auto& under_way = loop_.state.under_way) {
    for (const auto& ranks : new_epochs_) {
      if (MOTLEY_KEEPS("loop-hand-over")) hand_over(under_way->parts, ranks, under_way->step.plan.shares);
    }
    if (MOTLEY_KEEPS("loop-reduce-anew")) under_way->is_started = under_way->is_reduced = false;
    loop_.state.unreported.clear();
  }
  return {};
}

// Each its own, of those who are there, from the step on that all have done last.
Status Regrouping::build_stages() {
  LoopState& state = loop_.state;
  if (state.under_way) parts_.sync->undo();
  state.under_way.reset();
  state.unreported.clear();
  MOTLEY_ASSIGN(const bool has_all, parts_.stages->lay_out(!lacks_state()));
  if (!has_all) {
    ++times_back_;
    goes_back_ = true;
  }
  MOTLEY_TRY(parts_.stages->rebuild(!has_all));
  if (!has_all) {
    state = {.leaving = std::move(state.leaving)};
    parts_.reporter->close();  // to be cut off where all go on from
  }
  goes_back_ = false;
  parts_.elastic->enter();
  MOTLEY_ASSIGN(state.kept, gather_kept());
  return {};
}

// What all have of the step after the last one; nothing, where some cannot go on with what they have.
Result<WindowParts> Regrouping::gather_kept() const {
  const auto kept_rows = parts_.runner->kept_rows(progress_.step + 1);
  const std::vector<data::Range> own = kept_rows.value_or(std::vector<data::Range>());
  const double count[] = {kept_rows ? static_cast<double>(own.size()) : -1};
  MOTLEY_ASSIGN(const std::vector<double> counts, context_.group.all_gather(count, context_.step_deadline()));
  const auto most = static_cast<std::size_t>(std::max(0.0, std::ranges::max(counts)));
  if (most == 0 || std::ranges::min(counts) < 0) return WindowParts();
  std::vector<double> bounds(2 * most);
  for (std::size_t i = 0; i < own.size(); ++i) {
    bounds[2 * i] = own[i].begin;
    bounds[2 * i + 1] = own[i].end;
  }
  MOTLEY_ASSIGN(const std::vector<double> all, context_.group.all_gather(bounds, context_.step_deadline()));
  WindowParts kept(static_cast<std::size_t>(context_.size));
  for (const int rank : context_.present) {
    const double* bound = &all[bounds.size() * static_cast<std::size_t>(rank)];
    for (int i = 0; i < static_cast<int>(counts[static_cast<std::size_t>(rank)]); ++i, bound += 2) {
      kept[static_cast<std::size_t>(rank)].push_back(
          {static_cast<std::uint32_t>(bound[0]), static_cast<std::uint32_t>(bound[1])});
    }
  }
  return kept;
}

bool Regrouping::lacks_state() const {
  return goes_back_ || parts_.elastic->is_newcomer();
}

// Until all have done the same last step, and have its state or, of a planned run, can build their stages with it.
Status Regrouping::level() {
  const double own[] = {lacks_state() ? 0 : static_cast<double>(progress_.step + 1),
                        static_cast<double>(context_.writer), static_cast<double>(times_back_)};
  MOTLEY_ASSIGN(const std::vector<double> told, context_.group.all_gather(own, context_.step_deadline()));
  const auto told_by = [&](int rank) { return &told[std::size(own) * static_cast<std::size_t>(rank)]; };
  const auto times_back_by = [&](int rank) { return told_by(rank)[2]; };
  const double times_back = std::ranges::max(context_.present | std::views::transform(times_back_by));
  if (static_cast<double>(times_back_) < times_back) {
    goes_back_ = true;
    times_back_ = static_cast<std::int64_t>(times_back);
  }
  const bool is_newcomer = lacks_state();
  const auto steps_by = [&](int rank) { return times_back_by(rank) == times_back ? told_by(rank)[0] : 0; };
  const int ahead = *std::ranges::max_element(context_.present, {}, steps_by);
  if (steps_by(ahead) == 0) {
    const auto has_been_here = [&](int rank) { return told_by(rank)[1] >= 0; };
    const auto first = std::ranges::find_if(context_.present, has_been_here);
    if (parts_.stages == nullptr || first == context_.present.end()) {
      return fail(ErrorCode::kUnavailable,
                  "all workers that knew the weights were lost; --resume goes on from the last "
                  "checkpoint");
    }
    parts_.elastic->follow_writer(*first);
    return {};
  }
  // Who writes goes on to, or else the first that has something to write.
  int writer = MOTLEY_KEEPS("loop-one-writer") ? static_cast<int>(told_by(ahead)[1]) : context_.writer;
  if (writer < 0 || !MOTLEY_GUARD("planted-writer-is-there", steps_by(writer) != 0)) {
    writer = *std::ranges::find_if(context_.present, steps_by);
  }
  parts_.elastic->follow_writer(writer);
  const auto step = static_cast<std::int64_t>(steps_by(ahead)) - 1;
  const auto is_behind = [&](int rank) { return steps_by(rank) != 0 && steps_by(rank) != steps_by(ahead); };
  if (std::ranges::any_of(context_.present, is_behind)) {
    std::vector<Report> reports = last_reports_;
    reports.resize(static_cast<std::size_t>(context_.size));
    MOTLEY_TRY(context_.group.broadcast(std::as_writable_bytes(std::span(reports)), ahead, context_.step_deadline()));
    if (!is_newcomer && !MOTLEY_GUARD("loop-same-step", progress_.step == step)) {
      const auto& under_way = loop_.state.under_way;
      MOTLEY_INVARIANT(progress_.step + 1 == step && under_way && under_way->is_reduced,
                       "rank {} has done step {}, another one step {}", context_.rank, progress_.step, step);
      MOTLEY_TRY(loop_.commit({std::move(reports)}));
    }
  }
  std::vector<int> newcomers;
  std::ranges::copy_if(context_.present, std::back_inserter(newcomers), [&](int rank) { return steps_by(rank) == 0; });
  if (newcomers.empty()) return {};
  return parts_.stages != nullptr ? share_news(context_.group, context_.writer) : share_state(newcomers);
}

// From the rank that writes the run's files to those who have just come.
Status Regrouping::share_state(const std::vector<int>& newcomers) {
  const bool is_newcomer = lacks_state();
  if (!is_newcomer && !context_.writes()) return {};
  std::vector<int> ranks = newcomers;
  ranks.insert(std::ranges::lower_bound(ranks, context_.writer), context_.writer);
  MOTLEY_ASSIGN(auto group, parts_.elastic->make_group(ranks));
  const int root = static_cast<int>(std::ranges::find(ranks, context_.writer) - ranks.begin());
  MOTLEY_TRY(share_news(*group, root));
  const RunState run{progress_, *parts_.plan, *parts_.audit, *parts_.model};
  if (!is_newcomer) {
    MOTLEY_ASSIGN(Checkpoint model, parts_.checkpoints->hand_out(run, *group, root));
    transfer_.emplace(std::move(group), root, std::move(model), context_.rank, context_.long_deadline());
    return {};
  }
  const std::int64_t saved_step = progress_.saved_step;
  MOTLEY_TRY(parts_.checkpoints->take_over(run, *group, root));
  progress_.saved_step = saved_step;
  parts_.reporter->follow(*parts_.plan);
  transfer_.emplace(std::move(group), root, Checkpoint(), context_.rank, context_.long_deadline());
  has_weights_ = false;
  entered_after_ = progress_.step;
  return parts_.sync->postpone_updates() ? Status() : catch_up(true);
}

Status Regrouping::catch_up(bool waits) {
  if (!transfer_) return {};
  if (!parts_.elastic->is_newcomer()) {  // what has become of it, the others know
    if (transfer_->is_over()) transfer_.reset();
    return {};
  }
  waits = waits || parts_.sync->postponed_bytes() > kMostPostponedBytes;
  if (!has_weights_) {
    if (!waits && !transfer_->is_over()) return {};
    MOTLEY_ASSIGN(const Checkpoint model, transfer_->take());
    MOTLEY_TRY(Checkpoints::load_model(model, *parts_.model));
    has_weights_ = true;
  }
  for (int done = 0; waits || done < kMissedSteps; ++done) {
    MOTLEY_ASSIGN(const bool has_more, parts_.sync->catch_up());
    if (has_more) continue;
    spdlog::info("this worker has the others' weights, and has made up for the {} steps that it missed meanwhile",
                 progress_.step - entered_after_);
    transfer_.reset();
    parts_.elastic->enter();
    return {};
  }
  return {};
}

// What a newcomer has to know beside a checkpoint.
Status Regrouping::share_news(collective::Group& group, int root) {
  LoopState& state = loop_.state;
  News news{epochs_, kept_, progress_.saved_step, state.duties, state.stops, state.has_ended, parts_.reporter->now()};
  std::ranges::copy(new_epochs_, std::back_inserter(news.epochs));
  const Deadline deadline = context_.long_deadline();
  MOTLEY_ASSIGN(const std::string text, broadcast_text(group, write_json_line(news), root, deadline));
  last_reports_.resize(static_cast<std::size_t>(context_.size));
  MOTLEY_TRY(group.broadcast(std::as_writable_bytes(std::span(last_reports_)), root, deadline));
  if (!lacks_state()) return {};
  MOTLEY_ASSIGN(news, parse_json<News>(text, "what a newcomer is told"));
  if (parts_.stages == nullptr) {  // also where this rank has done a step that the others have not, and kept to fewer
    MOTLEY_TRY(parts_.plan->keep_to(0, news.kept.empty() ? all_ranks(context_.size) : news.kept));
  }
  progress_.saved_step = news.saved_step;
  epochs_.clear();
  told_epochs_ = 0;
  new_epochs_ = std::move(news.epochs);
  kept_ = std::move(news.kept);
  joining_.clear();
  state = {};
  state.duties = static_cast<unsigned>(news.duties);
  state.stops = news.stops;
  state.has_ended = news.has_ended;
  parts_.reporter->set_now(news.seconds);
  return {};
}

// What one has to do, all have; what is over for one, is for all.
Status Regrouping::agree_on_duties() {
  LoopState& state = loop_.state;
  double flags[] = {0, 0, 0, state.has_ended ? 1.0 : 0.0, state.stops ? 1.0 : 0.0};
  const unsigned duties[] = {kEvaluate, kSave, kMove};
  for (std::size_t i = 0; i < std::size(duties); ++i) flags[i] = (state.duties & duties[i]) != 0 ? 1 : 0;
  MOTLEY_TRY(context_.group.all_reduce_sum(flags, context_.long_deadline()));  // who takes the files over reads them
  if (flags[3] > 0 && !state.has_ended) loop_.end();
  state.stops = flags[4] > 0;  // who has done the last step later has seen others leave, and that nobody stays
  const unsigned own = std::exchange(state.duties, state.duties & ~kSharedDuties);
  for (std::size_t i = 0; i < std::size(duties); ++i) {
    const bool is_due = MOTLEY_KEEPS("loop-common-duties") ? flags[i] > 0 : (own & duties[i]) != 0;
    if (is_due) state.duties |= duties[i];
  }
  if (state.has_ended) state.duties |= kPart;
  if ((state.duties & kSave) != 0 && MOTLEY_KEEPS("loop-save-anew"))
    progress_.saved_step = 0;  // of those who have saved, too
  return {};
}

}  // namespace motley::train
