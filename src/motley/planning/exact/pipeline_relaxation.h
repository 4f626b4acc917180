// A bound of all plans of a synchronous pipeline, and good plans, by Lagrangian relaxation: within seconds also for
// problems that are too large to be searched.
#pragma once

#include <functional>
#include <set>
#include <vector>

#include "motley/planning/exact/pipeline_paths.h"
#include "motley/planning/search/search.h"

namespace motley::planning {

class PipelineRelaxation {
 public:
  // Plans that it finds are considered by the search. All must outlive it.
  PipelineRelaxation(const Request& request, const PipelineStages& stages, const PlanValue& plan_value, Search& search,
                     double best);

  // Goes on until no plan can be better than the best, it gets no further, or `over` says so. No plan has a value below
  // what it returns, but the best one.
  double run(const std::function<bool()>& over);
  double best() const { return best_; }                      // value of the best plan known
  void know(double best) { best_ = std::min(best_, best); }  // that there is such a plan

 private:
  // All plans of a class are on its right or above it: weight * step + rate >= least.
  struct Line {
    double weight = 0;
    double least = 0;
  };
  // Steps and rates that the lines leave, and where their product is least. What holds for a class, holds for its
  // parts.
  struct Region {
    bool is_begun = false;
    double min_step = 0;
    double max_step = 0;
    double min_rate = 0;
    std::vector<Line> lines;
    double step = 0, rate = 0, value = kInfinity;

    void find_least();
  };
  // Plans whose longest stage or transfer takes so long, and that have so many stages (see PathCharges).
  struct Class {
    double low = 0;
    double high = 0;
    int min_stages = 1;
    int max_stages = 0;  // 0: any number
    double bound = 0;
    bool is_looked_at = false;  // more than briefly
    std::size_t charging = 0;   // of the ways to charge for a step, that which last raised the bound
    Region region = {};
    std::vector<double> multipliers;  // of every type's devices, and of the price an hour
  };
  struct ComesLater {
    bool operator()(const Class& a, const Class& b) const { return a.bound > b.bound; }
  };

  void add(Class plans);
  double bound(Class& plans);
  double ascend(PathCharges charges, Class& plans, double enough, bool* is_exact = nullptr);
  std::vector<Class> first_classes() const;
  std::vector<Class> divide(const Class& plans) const;
  void propose(Candidate candidate);
  void improve(Candidate candidate, double value);
  double evaluate_value(const Candidate& candidate) const;

  const Request& request_;
  const Problem& problem_;
  const PipelineStages& stages_;
  const PlanValue& plan_value_;
  Search& search_;
  PipelinePaths paths_;
  std::vector<double> limits_;  // on what multipliers are of; infinity: none
  std::function<bool()> over_;
  double best_ = kInfinity;
  bool has_begun_ = false;
  std::vector<Class> classes_;   // a heap; the first has the least bound
  double given_up_ = kInfinity;  // the least bound of those that are not divided any more
  std::set<std::vector<std::int64_t>> proposed_;
};

}  // namespace motley::planning
