// The rows that a benchmark has so far, each said as it comes.
#pragma once

#include <utility>

#include "bench/bench.h"

namespace motley::bench {

class RowList {
 public:
  explicit RowList(const BenchOptions& options) : options_(options) {}

  void print(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }
  void add(BenchRow row) {
    print(fmt::format("{} {} {:.4g} {}", row.name, row.metric, row.value, row.unit));
    rows_.push_back(std::move(row));
  }
  void add(const std::string& name, const std::string& metric, double value, const std::string& unit, bool more,
           std::optional<double> target, std::optional<double> limit, std::optional<double> peer,
           const std::string& note) {
    add({name, metric, value, unit, more, target, limit, peer, note});
  }
  // Rows that have been said.
  void append(const std::vector<BenchRow>& rows) { rows_.insert(rows_.end(), rows.begin(), rows.end()); }
  void left_out(const std::string& name, const std::string& why) const {
    print(fmt::format("{} left out: {}", name, why));
  }
  std::vector<BenchRow> take() { return std::move(rows_); }

 private:
  const BenchOptions& options_;
  std::vector<BenchRow> rows_;
};

}  // namespace motley::bench
