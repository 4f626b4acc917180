// Labels over a stage graph (see stage_graph.h). A label's bound is its cost with charges, plus the shortest path with
// charges for the layers that are left, less what the charges sum to at the limits. A label is also given up when
// another at the same layer and type costs no more and leaves as many devices of every type: only types are compared of
// which the layers that are left could use more than there are, and only up to what they could use.
#include "motley/planning/exact/stage_graph.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace motley::planning {
namespace {

constexpr std::size_t kCompared = 64;  // labels that one is compared with at most; more would cost more than they save

struct Label {
  double cost = 0;     // by the graph's measure
  double charged = 0;  // with the first charges
  double bound = 0;
  std::int32_t parent = -1;
  std::int32_t index = -1;  // of the last segment
  std::int16_t type = 0;    // of it; types() before the first
};

class LabelSearch {
 public:
  LabelSearch(StageGraph& graph, const Limits& limits, std::span<const Charges> charges, double below, int width)
      : graph_(graph),
        times_(graph.times()),
        charges_(charges.begin() + 1, charges.end()),
        refund_(charges.front().refund),
        below_(below),
        width_(static_cast<std::size_t>(width)),
        layers_(static_cast<std::size_t>(times_.layers() + 1)) {
    rest_.resize(charges_.size() * (layers_.size() * static_cast<std::size_t>(times_.types())));
    for (std::size_t c = 0; c < charges_.size(); ++c) {
      graph.shortest(charges_[c].device);
      for (int layer = 0; layer <= times_.layers(); ++layer) {
        for (int type = 0; type < times_.types(); ++type) {
          rest_[row(layer, type) + c] = graph.rest(layer, type) - charges_[c].refund;
        }
      }
    }
    graph.shortest(charges.front().device);
    find_scarce(limits);
  }

  LabelResult run(const std::function<bool()>& over) {
    labels_.push_back(
        {.bound = graph_.rest(0, times_.types()) - refund_, .type = static_cast<std::int16_t>(times_.types())});
    used_.resize(limits_.size());
    charged_.resize(charges_.size());
    layers_[0].labels.push_back(0);
    for (int layer = 0; layer < times_.layers(); ++layer) {
      std::vector<std::int32_t>& here = layers_[static_cast<std::size_t>(layer)].labels;
      if (!over()) {
        remove_dominated(here, layer);
        narrow(layers_[static_cast<std::size_t>(layer)], width_);
      }
      extend(here, layer, over);
    }
    return result();
  }

 private:
  // The labels that have come to a layer. Those whose bound is not below `narrowed` are left out.
  struct Layer {
    std::vector<std::int32_t> labels;
    double narrowed = kInfinity;
  };

  const Label& at(std::int32_t label) const { return labels_[static_cast<std::size_t>(label)]; }
  double* used(std::int32_t label) { return used_.data() + static_cast<std::size_t>(label) * limits_.size(); }

  // Where in rest_ the other charges' costs of all layers from one on begin, after a stage on that type.
  std::size_t row(int layer, int type) const {
    return charges_.size() * static_cast<std::size_t>(layer * times_.types() + type);
  }

  // Which limits could be exceeded at all, and how much the layers from each one on could use of them.
  void find_scarce(const Limits& limits) {
    const int types = times_.types();
    std::vector<std::vector<double>> rest(static_cast<std::size_t>(types + 1),
                                          std::vector<double>(static_cast<std::size_t>(times_.layers() + 2)));
    for (int layer = times_.layers() - 1; layer >= 0; --layer) {
      const auto here = static_cast<std::size_t>(layer);
      for (std::vector<double>& most : rest) most[here] = most[here + 1];
      for (std::size_t i = graph_.begin(layer); i < graph_.begin(layer + 1); ++i) {
        const Segment& segment = graph_.segments()[i];
        const double devices = graph_.max_devices(i);
        const auto after = static_cast<std::size_t>(segment.last + 1);
        std::vector<double>& of_type = rest[static_cast<std::size_t>(segment.type)];
        of_type[here] = std::max(of_type[here], devices + of_type[after + 1]);  // the next stage is of another type
        std::vector<double>& of_price = rest.back();
        of_price[here] = std::max(of_price[here], devices * times_.price(segment.type) + of_price[after]);
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

  // By how much the layers that are left could exceed a limit.
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
      if (kept.empty() || at(kept.back()).type != at(label).type) group = kept.size();
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
  void narrow(Layer& layer, std::size_t width) {
    std::vector<std::int32_t>& here = layer.labels;
    if (here.size() > width) {
      std::ranges::nth_element(
          here, here.begin() + static_cast<std::ptrdiff_t>(width),
          [&](std::int32_t a, std::int32_t b) { return std::pair(at(a).bound, a) < std::pair(at(b).bound, b); });
      layer.narrowed = at(here[width]).bound;
      left_out_ = std::min(left_out_, layer.narrowed);
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
      next.push_back({graph_.min_cost(i) + graph_.rest(segment.last + 1, segment.type), i});
    }
    std::ranges::sort(next, {}, [](const Next& a) { return std::pair(a.least, a.index); });

    for (std::size_t i = 0; i < here.size(); ++i) {
      if (i % 64 == 0 && over()) {
        for (; i < here.size(); ++i) left_out_ = std::min(left_out_, at(here[i]).bound);
        return;
      }
      const Label from = at(here[i]);
      for (const Next& candidate : next) {
        if (from.charged + candidate.least - refund_ >= below_) break;
        if (graph_.segments()[candidate.index].type != from.type) {
          add(here[i], from, candidate.index);
        }
      }
    }
  }

  void add(std::int32_t parent, const Label& from, std::size_t index) {
    const Segment& segment = graph_.segments()[index];
    const Use use = graph_.use(index, from.type);
    if (use.count == kInfinity) return;
    Layer& there = layers_[static_cast<std::size_t>(segment.last + 1)];
    const double charged = from.charged + use.cost + graph_.charge(segment.type) * use.count;
    double bound = charged + graph_.rest(segment.last + 1, segment.type) - refund_;
    const int row_of_type = row_of_type_[static_cast<std::size_t>(segment.type)];
    const double price = use.count * times_.price(segment.type);
    const auto fits = [&](int row, double amount) {
      return row < 0 || used(parent)[row] + amount <= limits_[static_cast<std::size_t>(row)];
    };
    if (!(bound < below_) || !fits(row_of_type, use.count) || !fits(row_of_price_, price)) return;
    const auto label = static_cast<std::int32_t>(labels_.size());
    const std::size_t others = charges_.size();
    charged_.resize(static_cast<std::size_t>(label + 1) * others);
    const double* before = charged_.data() + static_cast<std::size_t>(parent) * others;
    double* after = charged_.data() + static_cast<std::size_t>(label) * others;
    const double* rest = rest_.data() + row(segment.last + 1, segment.type);
    for (std::size_t c = 0; c < others; ++c) {
      after[c] = before[c] + use.cost + charges_[c].device[static_cast<std::size_t>(segment.type)] * use.count;
      bound = std::max(bound, after[c] + rest[c]);
    }
    if (!(bound < below_)) return;
    if (bound >= there.narrowed) {
      left_out_ = std::min(left_out_, bound);
      return;
    }
    labels_.push_back({.cost = from.cost + use.cost,
                       .charged = charged,
                       .bound = bound,
                       .parent = parent,
                       .index = static_cast<std::int32_t>(index),
                       .type = segment.type});
    used_.resize(used_.size() + limits_.size());
    std::copy_n(used(parent), limits_.size(), used(label));
    if (row_of_type >= 0) used(label)[row_of_type] += use.count;
    if (row_of_price_ >= 0) used(label)[row_of_price_] += price;
    there.labels.push_back(label);
    if (there.labels.size() >= 4 * width_) narrow(there, 2 * width_);
  }

  LabelResult result() {
    LabelResult result{.path = std::nullopt, .bound = left_out_};
    const std::vector<std::int32_t>& complete = layers_.back().labels;
    const auto best = std::ranges::min_element(complete, {}, [&](std::int32_t a) { return std::pair(at(a).cost, a); });
    if (best != complete.end()) {
      result.bound = std::min(result.bound, at(*best).cost);
      std::vector<std::size_t> indices;
      for (std::int32_t label = *best; at(label).parent >= 0; label = at(label).parent) {
        indices.push_back(static_cast<std::size_t>(at(label).index));
      }
      std::ranges::reverse(indices);
      result.path = graph_.path(indices);
    }
    return result;
  }

  const StageGraph& graph_;
  const SegmentTimes& times_;
  std::vector<Charges> charges_;  // all but the first
  std::vector<double> rest_;      // with those, less their refunds: layers + 1 x types x charges
  double refund_;                 // of the first
  double below_;
  std::size_t width_;
  std::vector<Label> labels_;
  std::vector<double> used_;     // labels x scarce limits
  std::vector<double> charged_;  // labels x charges but the first
  std::vector<Layer> layers_;
  // The scarce limits, by rows.
  std::vector<double> limits_;
  std::vector<std::vector<double>> rest_use_;
  std::vector<int> row_of_type_;  // -1: not scarce
  int row_of_price_ = -1;
  double left_out_ = kInfinity;
};

}  // namespace

LabelResult search_labels(StageGraph& graph, const Limits& limits, std::span<const Charges> charges, double below,
                          int width, const std::function<bool()>& over) {
  return LabelSearch(graph, limits, charges, below, width).run(over);
}

}  // namespace motley::planning
