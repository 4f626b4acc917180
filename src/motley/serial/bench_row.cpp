#include "motley/serial/bench_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace motley {
namespace {

nlohmann::ordered_json or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

std::string cell(const std::optional<double>& value) {
  return value ? fmt::format("{:.4g}", *value) : "-";
}

nlohmann::ordered_json as_array(const std::vector<BenchRow>& rows) {
  auto array = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows) {
    nlohmann::ordered_json item = {{"case", row.name},
                                   {"metric", row.metric},
                                   {"value", row.value},
                                   {"unit", row.unit},
                                   {"better", row.more_is_better ? "more" : "less"},
                                   {"target", or_null(row.target)},
                                   {"limit", or_null(row.limit)},
                                   {"peer", or_null(row.peer)}};
    if (!row.note.empty()) {
      item["note"] = row.note;
    }
    array.push_back(std::move(item));
  }
  return array;
}

std::string text_of(const nlohmann::ordered_json& array) {
  return array.dump(2) + "\n";
}

}  // namespace

std::string to_json(const std::vector<BenchRow>& rows) {
  return text_of(as_array(rows));
}

Result<std::string> replace_rows(const std::string& json, const std::vector<BenchRow>& rows) {
  auto array = nlohmann::ordered_json::parse(json, nullptr, false);
  const auto is_row = [](const nlohmann::ordered_json& item) {
    return item.is_object() && item.contains("case") && item.contains("metric");
  };
  if (!array.is_array() || !std::ranges::all_of(array, is_row)) {
    return fail(ErrorCode::kInvalidInput,
                "not rows of a benchmark; accepted: an array of objects with case and metric");
  }
  for (nlohmann::ordered_json& row : as_array(rows)) {
    const auto same = std::ranges::find_if(array, [&](const nlohmann::ordered_json& item) {
      return item["case"] == row["case"] && item["metric"] == row["metric"];
    });
    if (same == array.end()) {
      array.push_back(std::move(row));
    } else {
      *same = std::move(row);
    }
  }
  return text_of(array);
}

std::string to_table(const std::vector<BenchRow>& rows) {
  std::size_t widest_name = 4;
  std::size_t widest_metric = 6;
  for (const BenchRow& row : rows) {
    widest_name = std::max(widest_name, row.name.size());
    widest_metric = std::max(widest_metric, row.metric.size());
  }
  std::string table = fmt::format("{:<{}}  {:<{}}  {:>9}  {:<6}  {:>9}  {:>9}  {:>9}  {}\n", "case", widest_name,
                                  "metric", widest_metric, "value", "unit", "target", "limit", "peer", "");
  for (const BenchRow& row : rows) {
    const std::string target =
        row.target ? fmt::format("{} {:.4g}", row.more_is_better ? ">=" : "<=", *row.target) : "-";
    table +=
        fmt::format("{:<{}}  {:<{}}  {:>9}  {:<6}  {:>9}  {:>9}  {:>9}  {}\n", row.name, widest_name, row.metric,
                    widest_metric, fmt::format("{:.4g}", row.value), row.unit, target, cell(row.limit), cell(row.peer),
                    !row.target ? ""
                    : row.met() ? "met"
                                : "MISSED");
  }
  return table;
}

}  // namespace motley
