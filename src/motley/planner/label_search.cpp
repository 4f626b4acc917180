// Labels over a stage graph (see label_search.h). A label's bound is its cost with charges, plus the shortest path with
// charges for the layers that are left, less what the charges sum to at the limits. A label is also given up when
// another at the same layer and type costs no more and leaves as many devices of every type: only types are compared of
// which the layers that are left could use more than there are, and only up to what they could use.
#include "motley/planner/label_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

namespace motley::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kCompared = 64;  // labels that one is compared with at most; more would cost more than they save

struct Label {
  double cost = 0;     // by the graph's measure
  double charged = 0;  // with charges
  double bound = 0;
  std::int32_t parent = -1;
  std::int32_t index = -1;  // of the last segment
  std::int16_t type = 0;    // of it; types() before the first
};

class LabelSearch {
 public:
  LabelSearch(const StageGraph& graph, const Limits& limits, double refund, double below, int width)
      : graph_(graph),
        times_(graph.times()),
        refund_(refund),
        below_(below),
        width_(static_cast<std::size_t>(width)),
        at_layer_(static_cast<std::size_t>(times_.layers() + 1)) {
    find_scarce(limits);
  }

  LabelResult run(const std::function<bool()>& over) {
    labels_.push_back(
        {.bound = graph_.rest(0, times_.types()) - refund_, .type = static_cast<std::int16_t>(times_.types())});
    used_.resize(limits_.size());
    at_layer_[0].push_back(0);
    for (int layer = 0; layer < times_.layers(); ++layer) {
      std::vector<std::int32_t>& here = at_layer_[static_cast<std::size_t>(layer)];
      remove_dominated(here, layer);
      narrow(here, width_);
      extend(here, layer, over);
    }
    return result();
  }

 private:
  const Label& at(std::int32_t label) const { return labels_[static_cast<std::size_t>(label)]; }
  double* used(std::int32_t label) { return used_.data() + static_cast<std::size_t>(label) * limits_.size(); }

  // Which limits could be exceeded at all, and how much the layers from each one on could use of them.
  void find_scarce(const Limits& limits) {
    const int types = times_.types();
    const int layers = times_.layers();
    std::vector<std::vector<double>> rest(static_cast<std::size_t>(types + 1),
                                          std::vector<double>(static_cast<std::size_t>(layers + 2)));
    for (int layer = layers - 1; layer >= 0; --layer) {
      const auto here = static_cast<std::size_t>(layer);
      for (auto& most : rest) {
        most[here] = most[here + 1];
      }
      for (std::size_t i = graph_.begin(layer); i < graph_.begin(layer + 1); ++i) {
        const Segment& segment = graph_.segments()[i];
        const double devices = graph_.most_devices(i);
        // The next stage of the same type is not the next stage.
        double& of_type = rest[static_cast<std::size_t>(segment.type)][here];
        of_type = std::max(
            of_type,
            devices + rest[static_cast<std::size_t>(segment.type)][static_cast<std::size_t>(segment.last) + 2]);
        double& of_price = rest.back()[here];
        of_price = std::max(
            of_price, devices * times_.price(segment.type) + rest.back()[static_cast<std::size_t>(segment.last) + 1]);
      }
    }
    row_of_type_.assign(static_cast<std::size_t>(types), -1);
    for (int resource = 0; resource <= types; ++resource) {
      const auto r = static_cast<std::size_t>(resource);
      const double limit = resource < types ? limits.devices[r] : limits.price_per_hour;
      if (rest[r][0] > limit) {
        (resource < types ? row_of_type_[r] : row_of_price_) = static_cast<int>(limits_.size());
        limits_.push_back(limit);
        rest_use_.push_back(std::move(rest[r]));
      }
    }
  }

  // What a label uses of a limit beyond what can matter from the layer on: 0 where the rest cannot exceed it.
  double pressure(std::int32_t label, std::size_t row, int layer) {
    return std::max(0.0, used(label)[row] + rest_use_[row][static_cast<std::size_t>(layer)] - limits_[row]);
  }

  void remove_dominated(std::vector<std::int32_t>& here, int layer) {
    std::ranges::sort(here, [&](std::int32_t a, std::int32_t b) {
      return std::tuple(at(a).type, at(a).cost, at(a).bound, a) < std::tuple(at(b).type, at(b).cost, at(b).bound, b);
    });
    std::vector<std::int32_t> kept;
    std::vector<double> pressures;  // of those kept, by rows
    std::vector<double> mine(limits_.size());
    std::size_t group = 0;  // where the labels of this type begin
    for (std::int32_t label : here) {
      if (kept.empty() || at(kept.back()).type != at(label).type) {
        group = kept.size();
      }
      for (std::size_t row = 0; row < limits_.size(); ++row) {
        mine[row] = pressure(label, row, layer);
      }
      bool dominated = false;
      const std::size_t end = std::min(kept.size(), group + kCompared);
      for (std::size_t other = group; other < end && !dominated; ++other) {
        const double* theirs = pressures.data() + other * limits_.size();
        dominated = std::equal(mine.begin(), mine.end(), theirs, [](double a, double b) { return a >= b; });
      }
      if (!dominated) {
        kept.push_back(label);
        pressures.insert(pressures.end(), mine.begin(), mine.end());
      }
    }
    here = std::move(kept);
  }

  // Leaves the labels with the best bounds.
  void narrow(std::vector<std::int32_t>& here, std::size_t width) {
    if (here.size() > width) {
      std::ranges::nth_element(
          here, here.begin() + static_cast<std::ptrdiff_t>(width),
          [&](std::int32_t a, std::int32_t b) { return std::pair(at(a).bound, a) < std::pair(at(b).bound, b); });
      left_out_ = std::min(left_out_, at(here[width]).bound);
      here.resize(width);
    }
  }

  void extend(const std::vector<std::int32_t>& here, int layer, const std::function<bool()>& over) {
    // Most promising first, so that a label can stop at the first that leads nowhere.
    struct Next {
      double least = 0;  // cost with charges from here to the end
      std::size_t index = 0;
    };
    std::vector<Next> next;
    for (std::size_t i = graph_.begin(layer); i < graph_.begin(layer + 1); ++i) {
      const Segment& segment = graph_.segments()[i];
      next.push_back({graph_.least_cost(i) + graph_.rest(segment.last + 1, segment.type), i});
    }
    std::ranges::sort(next, {}, [](const Next& a) { return std::pair(a.least, a.index); });

    for (std::size_t i = 0; i < here.size(); ++i) {
      const std::int32_t parent = here[i];
      const Label from = at(parent);
      if (i % 64 == 0 && over()) {
        for (; i < here.size(); ++i) {
          left_out_ = std::min(left_out_, at(here[i]).bound);
        }
        return;
      }
      for (const Next& candidate : next) {
        if (from.charged + candidate.least - refund_ >= below_) {
          break;
        }
        const Segment& segment = graph_.segments()[candidate.index];
        if (segment.type == from.type) {
          continue;
        }
        const Step step = graph_.step(candidate.index, from.type);
        const double charged = from.charged + step.cost + graph_.charge(segment.type) * step.count;
        const double bound = charged + graph_.rest(segment.last + 1, segment.type) - refund_;
        if (!(bound < below_)) {
          continue;
        }
        add({.cost = from.cost + step.cost,
             .charged = charged,
             .bound = bound,
             .parent = parent,
             .index = static_cast<std::int32_t>(candidate.index),
             .type = segment.type},
            step);
      }
    }
  }

  void add(const Label& label, const Step& step) {
    const std::size_t rows = limits_.size();
    const auto index = static_cast<std::int32_t>(labels_.size());
    used_.resize(used_.size() + rows);
    std::copy_n(used(label.parent), rows, used(index));
    const auto use = [&](int row, double amount) {
      if (row >= 0) {
        used(index)[row] += amount;
      }
      return row < 0 || used(index)[row] <= limits_[static_cast<std::size_t>(row)];
    };
    const bool within = use(row_of_type_[static_cast<std::size_t>(label.type)], step.count);
    if (!use(row_of_price_, step.count * times_.price(label.type)) || !within) {
      used_.resize(used_.size() - rows);
      return;
    }
    labels_.push_back(label);
    std::vector<std::int32_t>& there = at_layer_[static_cast<std::size_t>(step.segment.last + 1)];
    there.push_back(index);
    if (there.size() >= 8 * width_) {
      narrow(there, 4 * width_);
    }
  }

  LabelResult result() {
    LabelResult result{.path = std::nullopt, .bound = left_out_};
    const std::vector<std::int32_t>& complete = at_layer_.back();
    const auto best = std::ranges::min_element(complete, {}, [&](std::int32_t a) { return std::pair(at(a).cost, a); });
    if (best != complete.end()) {
      result.bound = std::min(result.bound, at(*best).cost);
      Path path;
      for (std::int32_t label = *best; at(label).parent >= 0; label = at(label).parent) {
        path.push_back(graph_.step(static_cast<std::size_t>(at(label).index), at(at(label).parent).type));
      }
      std::ranges::reverse(path);
      result.path = std::move(path);
    }
    return result;
  }

  const StageGraph& graph_;
  const StageTimes& times_;
  double refund_;
  double below_;
  std::size_t width_;
  std::vector<Label> labels_;
  std::vector<double> used_;  // labels x scarce limits
  std::vector<std::vector<std::int32_t>> at_layer_;
  // The scarce limits, by rows.
  std::vector<double> limits_;
  std::vector<std::vector<double>> rest_use_;
  std::vector<int> row_of_type_;  // -1: not scarce
  int row_of_price_ = -1;
  double left_out_ = kInfinity;
};

}  // namespace

LabelResult search_labels(const StageGraph& graph, const Limits& limits, double refund, double below, int width,
                          const std::function<bool()>& over) {
  return LabelSearch(graph, limits, refund, below, width).run(over);
}

}  // namespace motley::planner
