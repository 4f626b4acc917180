// REINFORCE on plans: what all planners with a policy network share.
//
// A round draws N assignments of types to layers, gives each the best counts (planning::provision), and takes as reward
// R = -log(value): relative differences count, whatever the unit. An assignment that cannot meet the objective is worth
// less than the worst that could, by its distance to feasibility, so that a policy that begins among impossible plans
// finds its way out. It is the best plan that counts, not how good plans are in the mean, so the policy learns from the
// best share of a round alone (risk-seeking policy gradient: Petersen et al., "Deep symbolic regression", ICLR 2021):
//   grad J ~ (1/N) sum_n grad log P(plan n) max(R_n - q, 0) / s,
// where q is the quantile of the round's rewards above which that share lies, and s, the root of the mean of
// max(R_n - q, 0)^2, keeps the steps' size while the rewards close in on each other.
// A bonus on the policy's entropy, falling to 0, keeps it from settling early. Plans seen before are not evaluated
// again; once a policy draws nothing new, it has converged. It may have settled on a plan that is best only among its
// neighbours, so several policies are trained, each from weights of its own.
#include "motley/planning/learned/policy_gradient.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

namespace motley::planning {
namespace {

// Tensors here are small: more threads would only wait for each other.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

// Matrices uniform within the inverse root of their inputs, biases 0. Modules draw their first weights from the
// process's generator; these come from the request's seed.
void initialise(Policy& policy, at::Generator& generator) {
  const torch::NoGradGuard no_gradient;
  for (torch::Tensor& parameter : policy.parameters()) {
    if (parameter.dim() < 2) {
      parameter.zero_();
    } else {
      const double bound = 1 / std::sqrt(static_cast<double>(parameter.size(1)));
      parameter.uniform_(-bound, bound, generator);
    }
  }
}

// An assignment, provisioned and evaluated.
struct Judged {
  Candidate candidate;  // empty: no counts within the limits
  Evaluation evaluation;
  double reward = 0;     // where feasible
  double shortfall = 0;  // else: how far it is from feasible, above 0
};

constexpr double kLeastValue = 1e-30;  // what costs nothing counts as
constexpr double kBestShare = 0.1;     // of a round, from which the policy learns
constexpr double kFarthest = 10;       // the shortfall of what no counts at all make possible; e^10 times too slow
// Of what the evaluator turns down for no minimum throughput or cap, such as a run that failed: as if it were ten times
// as slow as the slowest that is feasible.
constexpr double kTurnedDown = 1.3;

// Where evaluations are few and dear: how much of the time and how many rounds of each policy go to pre-training, which
// must not settle on a plan; into how many parts the evaluations are cut; how many rounds the policy learns from what
// is known before it asks for the next part; what difference between rewards may be chance; and by how much a plan that
// was not evaluated yet is believed to be better than the best.
constexpr double kBriefPreTraining = 0.25;
constexpr int kBriefRounds = 40;
constexpr std::int64_t kPartsOfFew = 15;
constexpr int kRoundsAPart = 5;
constexpr double kNoise = 0.05;
constexpr double kHope = 0.2;

// By which factor, as a logarithm, the worst of limits is missed.
double shortfall(const Evaluation& evaluation, const Objective& objective) {
  const double missed = std::max({std::log(objective.min_throughput / evaluation.throughput),
                                  std::log(evaluation.cost / objective.max_cost),
                                  std::log(evaluation.hourly_cost / objective.max_hourly_cost)});
  return missed > 0 ? std::min(missed, kFarthest) : kTurnedDown;
}

// How far an assignment that no counts make possible is from one that some do: the devices that there are not, one for
// each stage, and by which factors, as logarithms, stages exceed the memory of one.
double excess(const Problem& problem, const std::vector<Span>& stages) {
  Candidate candidate;
  for (const Span& stage : stages) candidate.push_back({stage.first, stage.last, stage.type});
  const Evaluation evaluation = evaluate(problem, candidate, {});
  double sum = 0;
  for (std::size_t s = 0; s < candidate.size(); ++s) {
    const double memory = problem.type(candidate[s].type).memory_bytes;
    if (memory > 0) sum += std::max(0.0, std::log(evaluation.stages[s].memory_bytes / memory));
  }
  for (int type = 0; type < problem.type_count(); ++type) {
    sum += static_cast<double>(std::max<std::int64_t>(0, evaluation.used[index(type)] - problem.type(type).count));
  }
  return std::min(sum, kFarthest);
}

// An assignment that no counts make possible, whatever the objective's limits; nothing where some do.
std::optional<Judged> judge_impossible(const Problem& problem, const Assignment& assignment) {
  const auto stages = list_stages(problem, assignment.type_of_layer, assignment.cut_before);
  if (provision(problem, stages, {.criterion = Criterion::kMaxThroughput}, kBriefly)) return std::nullopt;
  return Judged{.shortfall = kTurnedDown + excess(problem, stages)};
}

Judged judge(const Request& request, const Assignment& assignment) {
  const Problem& problem = request.problem;
  const auto stages = list_stages(problem, assignment.type_of_layer, assignment.cut_before);
  const auto evaluated = [&](Candidate candidate) {
    Judged judged{.candidate = std::move(candidate)};
    judged.evaluation = request.evaluator ? request.evaluator(judged.candidate)
                                          : evaluate(problem, judged.candidate, request.objective);
    if (judged.evaluation.feasible) {
      const double value = planning::value(judged.evaluation, request.objective.criterion);
      judged.reward = -std::log(std::max(value, kLeastValue));
    } else {
      judged.shortfall = shortfall(judged.evaluation, request.objective);
    }
    return judged;
  };

  // Counts that just meet the minimum throughput by the cost model may miss it by the evaluator: then they are chosen
  // for a minimum throughput that is higher by as much.
  Objective target = request.objective;
  for (int attempt = 0; attempt < 3; ++attempt) {
    auto candidate = provision(problem, stages, target, kBriefly);
    if (!candidate) break;
    Judged judged = evaluated(std::move(*candidate));
    const bool once = !request.evaluator || request.max_evaluations > 0;
    if (once || judged.evaluation.throughput >= request.objective.min_throughput) return judged;
    target.min_throughput *= 1.001 * request.objective.min_throughput / judged.evaluation.throughput;
  }
  Objective without_min_throughput = request.objective;
  without_min_throughput.criterion = Criterion::kMaxThroughput;
  without_min_throughput.min_throughput = 0;
  auto fastest = provision(problem, stages, without_min_throughput, kBriefly);
  if (!fastest) return {.shortfall = kTurnedDown + excess(problem, stages)};
  if (request.max_evaluations > 0 && request.evaluator) {  // none to be spent on what misses the minimum throughput
    const Evaluation evaluation = evaluate(problem, *fastest, request.objective);
    return {.evaluation = evaluation, .shortfall = shortfall(evaluation, request.objective)};
  }
  return evaluated(std::move(*fastest));
}

// One policy being trained on one source of rewards.
class Training {
 public:
  Training(const Request& request, Search& search, const PolicyGradientOptions& options)
      : request_(request), search_(search), options_(options) {}

  void run(Policy& policy, int rounds, int patience, at::Generator& generator) {
    torch::optim::Adam optimizer(policy.parameters(), torch::optim::AdamOptions(options_.learning_rate));
    int rounds_without_new = 0;
    for (int round = 0; round < rounds && rounds_without_new < patience; ++round) {
      const Rollout rollout = policy.roll(options_.samples, Choice::kSampled, generator);
      const std::size_t seen = judged_.size();
      if (!judge_new(rollout.assignments)) return;
      rounds_without_new = judged_.size() > seen ? 0 : rounds_without_new + 1;
      learn(rollout, policy, optimizer, options_.entropy_weight * (1 - static_cast<double>(round) / rounds));
    }
    const torch::NoGradGuard no_gradient;
    judge_new(policy.roll(1, Choice::kMaxLikely, generator).assignments);
  }

  // Where evaluations are few: once in a while those plans are evaluated that are drawn first and were not seen yet,
  // `part` of them; what no counts make possible is known without. Every round the policy learns from all that it
  // draws, where what was not seen is believed to be a little better than the best: so it turns from what is known to
  // be worse, and from what resembles that.
  void run_sparingly(Policy& policy, std::size_t part, at::Generator& generator) {
    torch::optim::Adam optimizer(policy.parameters(), torch::optim::AdamOptions(options_.learning_rate));
    int rounds_without_new = 0;
    for (int round = 0; rounds_without_new < options_.patience && !search_.over(); ++round) {
      const Rollout rollout = policy.roll(options_.samples, Choice::kSampled, generator);
      const std::size_t known = judged_.size();
      for (const Assignment& assignment : unseen(rollout.assignments, rollout.assignments.size())) {
        if (const auto judged = judge_impossible(request_.problem, assignment)) keep(assignment, *judged);
      }
      const std::vector<Assignment> fresh = unseen(rollout.assignments, part);
      rounds_without_new = fresh.empty() && judged_.size() == known ? rounds_without_new + 1 : 0;
      if (round % kRoundsAPart == 0 && !judge_new(fresh)) return;
      learn(rollout, policy, optimizer, options_.entropy_weight);
    }
  }

  // Evaluates what has not been seen yet; false when time is over.
  bool judge_new(const std::vector<Assignment>& assignments) {
    std::vector<const Assignment*> fresh;
    for (const Assignment& assignment : assignments) {
      if (judged_.try_emplace(assignment).second) fresh.push_back(&assignment);
    }
    if (request_.max_evaluations > 0) {
      for (const Assignment* assignment : fresh) {
        if (search_.over()) return false;
        keep(*assignment, judge(request_, *assignment));
      }
      return true;
    }
    std::vector<std::optional<Judged>> results(fresh.size());
    std::atomic<std::size_t> next = 0;
    std::atomic<bool> over = false;
    const auto work = [&](bool watches) {
      while (!over) {
        if (watches && search_.over()) {
          over = true;
          return;
        }
        const std::size_t index = next++;
        if (index >= fresh.size()) return;
        results[index] = judge(request_, *fresh[index]);
      }
    };
    {
      std::vector<std::jthread> helpers;
      for (std::size_t i = 1; i < std::min(static_cast<std::size_t>(options_.workers), fresh.size()); ++i) {
        helpers.emplace_back(work, false);
      }
      work(true);
    }
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      if (results[i]) keep(*fresh[i], *results[i]);
    }
    return !over;
  }

 private:
  struct Known {
    bool feasible = false;
    double reward = 0;
    double shortfall = 0;
  };

  void learn(const Rollout& rollout, Policy& policy, torch::optim::Optimizer& optimizer, double entropy_weight) {
    optimizer.zero_grad();
    policy_gradient_loss(rollout, advantages(rollout.assignments), entropy_weight).backward();
    torch::nn::utils::clip_grad_norm_(policy.parameters(), 1.0);
    optimizer.step();
  }

  std::vector<Assignment> unseen(const std::vector<Assignment>& assignments, std::size_t most) const {
    std::set<Assignment> distinct;
    std::vector<Assignment> found;
    for (const Assignment& assignment : assignments) {
      if (found.size() < most && !judged_.contains(assignment) && distinct.insert(assignment).second) {
        found.push_back(assignment);
      }
    }
    return found;
  }

  void keep(const Assignment& assignment, const Judged& judged) {
    if (!judged.candidate.empty()) search_.consider(judged.candidate, judged.evaluation);
    const bool feasible = judged.evaluation.feasible;
    judged_[assignment] = {feasible, judged.reward, judged.shortfall};
    if (feasible) {
      worst_ = std::min(worst_.value_or(judged.reward), judged.reward);
      best_ = std::max(best_.value_or(judged.reward), judged.reward);
    }
  }

  torch::Tensor advantages(const std::vector<Assignment>& assignments) {
    std::vector<double> rewards;
    for (const Assignment& assignment : assignments) {
      const auto known = judged_.find(assignment);
      rewards.push_back(known == judged_.end()   ? best_.value_or(0) + kHope
                        : known->second.feasible ? known->second.reward
                                                 : worst_.value_or(0) - 1 - known->second.shortfall);
    }
    const torch::Tensor reward = torch::tensor(rewards, torch::kFloat64);
    const auto place = static_cast<std::size_t>((1 - kBestShare) * static_cast<double>(rewards.size() - 1));
    std::ranges::nth_element(rewards, rewards.begin() + static_cast<std::ptrdiff_t>(place));
    const torch::Tensor above = (reward - rewards[place]).clamp_min(0);
    const double least = request_.max_evaluations > 0 && request_.evaluator ? kNoise : 1e-9;
    return (above / (above.square().mean().sqrt() + least)).to(torch::kFloat32);
  }

  const Request& request_;
  Search& search_;
  const PolicyGradientOptions& options_;
  std::map<Assignment, Known> judged_;
  std::optional<double> worst_;  // reward of a feasible plan
  std::optional<double> best_;
};

Assignment to_assignment(const Problem& problem, const Candidate& candidate) {
  Assignment assignment;
  for (const StageChoice& stage : candidate) {
    for (int layer = stage.first; layer <= stage.last; ++layer) {
      assignment.type_of_layer.push_back(stage.type);
      if (problem.cost_model == CostModel::kPipeline) assignment.cut_before.push_back(layer == stage.first);
    }
  }
  normalise(assignment);
  return assignment;
}

// Trains policies on the cost model; returns the one that found the best plan.
std::shared_ptr<Policy> pre_train(const Request& request, Search& search, const MakePolicy& make_policy,
                                  const PolicyGradientOptions& options, at::Generator& generator) {
  Training training(request, search, options);
  std::shared_ptr<Policy> best;
  double best_value = kInfinity;
  for (int i = 0; i < options.policies && !search.over(); ++i) {
    const auto policy = make_policy(request.problem);
    initialise(*policy, generator);
    training.run(*policy, options.rounds, options.patience, generator);
    if (const double value = search.best(); !best || value < best_value) {
      best = policy;
      best_value = value;
    }
  }
  return best;
}

Answer train(const Request& request, const MakePolicy& make_policy, PolicyGradientOptions options) {
  if (request.max_evaluations > 0 && !request.evaluator) {
    const std::int64_t rounds = request.max_evaluations / options.samples;
    options.rounds = static_cast<int>(std::clamp<std::int64_t>(rounds, 1, options.rounds));
  }
  const OneThread one_thread;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(request.seed);
  Search search(request);
  if (!request.evaluator) {
    pre_train(request, search, make_policy, options, generator);
    return search.answer();
  }

  const bool few = request.max_evaluations > 0;
  Training tuning(request, search, options);
  const auto make_fresh = [&] {
    std::shared_ptr<Policy> fresh = make_policy(request.problem);
    initialise(*fresh, generator);
    return fresh;
  };
  std::shared_ptr<Policy> policy;
  Answer pre_trained;
  if (options.pre_trains) {
    Request on_cost_model = request;
    on_cost_model.evaluator = {};
    on_cost_model.max_evaluations = 0;
    on_cost_model.seconds = request.seconds * (few ? kBriefPreTraining : 0.5);
    Search pre_search(on_cost_model);
    PolicyGradientOptions pre_options = options;
    if (few) pre_options.rounds = std::min(options.rounds, kBriefRounds);
    policy = pre_train(on_cost_model, pre_search, make_policy, pre_options, generator);
    pre_trained = pre_search.answer();
    if (pre_trained.best) tuning.judge_new({to_assignment(request.problem, *pre_trained.best)});
  } else {
    policy = make_fresh();
  }
  if (policy && few) {
    const auto part = std::max<std::int64_t>(2, request.max_evaluations / kPartsOfFew);
    // One that has settled is followed by a fresh one, which knows what was evaluated so far.
    for (int i = 0; i < options.policies && !search.over(); ++i) {
      if (i > 0) policy = make_fresh();
      tuning.run_sparingly(*policy, static_cast<std::size_t>(part), generator);
    }
  } else if (policy) {  // it has settled: the entropy's bonus needs some rounds to make it look around again
    tuning.run(*policy, options.tuning_rounds, options.tuning_rounds, generator);
  }
  Answer answer = search.answer();
  answer.evaluations += pre_trained.evaluations;
  answer.stopped |= pre_trained.stopped;
  return answer;
}

}  // namespace

torch::Tensor policy_gradient_loss(const Rollout& rollout, const torch::Tensor& advantages, double entropy_weight) {
  return -(rollout.log_probability * advantages).mean() - entropy_weight * rollout.entropy.mean();
}

Result<Answer> plan_by_policy_gradient(const Request& request, const MakePolicy& make_policy,
                                       const PolicyGradientOptions& options) {
  try {
    return train(request, make_policy, options);
  } catch (const c10::Error& error) {
    return fail(ErrorCode::kInternal, "training the policy: {}", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(ErrorCode::kInternal, "training the policy: {}", error.what());
  }
}

}  // namespace motley::planning
