#include "motley/serial/bench_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "motley/serial/json_fields.h"

namespace motley {

enum class Better { kLess, kMore };
static const char* to_string(Better better) {
  return better == Better::kMore ? "more" : "less";
}
static std::array<Better, 2> every_value(Better) {
  return {Better::kMore, Better::kLess};
}

// Found by argument-dependent lookup, so not in the anonymous namespace.
template <class Archive>
static void fields(Archive& archive, BenchRow& row) {
  Better better = row.more_is_better ? Better::kMore : Better::kLess;
  archive.required("case", row.name);
  archive.required("metric", row.metric);
  archive.required("value", row.value, NumberIs::kFiniteOrNull);
  archive.required("unit", row.unit);
  archive.required("better", better);
  archive.defaulted("target", row.target, NumberIs::kFinite);
  archive.defaulted("limit", row.limit, NumberIs::kFinite);
  archive.defaulted("peer", row.peer, NumberIs::kFinite);
  archive.optional("note", row.note);
  archive.allow_others();
  row.more_is_better = better == Better::kMore;
}

namespace {

std::string cell(const std::optional<double>& value) {
  return value ? fmt::format("{:.4g}", *value) : "-";
}

}  // namespace

std::string to_json(const std::vector<BenchRow>& rows) {
  return write_json(rows);
}

Result<std::vector<BenchRow>> read_rows(const std::string& json) {
  return parse_json<std::vector<BenchRow>>(json, "not rows of a benchmark");
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
  for (BenchRow replacement : rows) {
    nlohmann::ordered_json row = JsonWriter::written(replacement);
    const auto same = std::ranges::find_if(array, [&](const nlohmann::ordered_json& item) {
      return item["case"] == row["case"] && item["metric"] == row["metric"];
    });
    if (same == array.end()) {
      array.push_back(std::move(row));
    } else {
      *same = std::move(row);
    }
  }
  return array.dump(2) + "\n";
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
