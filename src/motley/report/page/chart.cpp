#include "motley/report/page/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "motley/base/result.h"
#include "motley/report/page/html.h"

namespace motley::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kPaletteSize = 8;
constexpr double kGanttHeight = 420;  // pixels, of all lanes where they have the space
constexpr double kMarkWidth = 1.8;    // percent of a bar that a mark of two or three digits needs

// Five significant digits are finer than a screen; whole numbers stay whole.
Json rounded(double value) {
  if (!std::isfinite(value)) {
    return nullptr;
  }
  if (value == std::floor(value) && std::abs(value) < 1e15) {
    return static_cast<std::int64_t>(value);
  }
  return std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr);
}

const char* style_name(LineStyle style) {
  switch (style) {
    case LineStyle::kLine:
      return "line";
    case LineStyle::kFaint:
      return "faint";
    case LineStyle::kDashed:
      return "dashed";
    case LineStyle::kMarked:
      return "marked";
    case LineStyle::kMarks:
      return "marks";
    case LineStyle::kArea:
      return "area";
  }
  return "line";
}

}  // namespace

std::vector<std::size_t> thin(const std::vector<double>& x, const std::vector<double>& y, std::size_t limit) {
  const std::size_t size = x.size();
  std::vector<std::size_t> kept;
  if (size <= limit) {
    for (std::size_t i = 0; i < size; ++i) {
      kept.push_back(i);
    }
    return kept;
  }
  // The first and the last point stay. What lies between is cut into limit - 2 buckets of equal length; from each stays
  // the point that spans the largest triangle with the point kept before it and the mean of the bucket after it.
  const std::size_t buckets = limit - 2;
  const auto bucket_begin = [&](std::size_t bucket) { return 1 + bucket * (size - 2) / buckets; };
  kept.push_back(0);
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    const std::size_t begin = bucket_begin(bucket), end = bucket_begin(bucket + 1);
    const std::size_t next_end = bucket + 1 < buckets ? bucket_begin(bucket + 2) : size;
    double mean_x = 0, mean_y = 0;
    for (std::size_t i = end; i < next_end; ++i) {
      mean_x += x[i] / static_cast<double>(next_end - end);
      mean_y += y[i] / static_cast<double>(next_end - end);
    }
    const std::size_t last = kept.back();
    std::size_t best = begin;
    double best_area = -1;
    for (std::size_t i = begin; i < end; ++i) {
      const double area = std::abs((x[last] - mean_x) * (y[i] - y[last]) - (x[last] - x[i]) * (mean_y - y[last]));
      if (area > best_area) {
        best_area = area;
        best = i;
      }
    }
    kept.push_back(best);
  }
  kept.push_back(size - 1);
  return kept;
}

std::string line_chart(const LineChart& chart) {
  Json data = {{"x", chart.x_label},       {"y", chart.y_label},           {"stacked", chart.stacked},
               {"percent", chart.percent}, {"from_zero", chart.from_zero}, {"y_limit", rounded(chart.y_limit)},
               {"series", Json::array()}};
  for (const Series& series : chart.series) {
    MOTLEY_INVARIANT(series.x.size() == series.y.size(), "series '{}' has {} x and {} y", series.name, series.x.size(),
                     series.y.size());
    Json points = Json::array();
    for (const std::size_t i : thin(series.x, series.y, chart.stacked ? series.x.size() : kMostPoints)) {
      points.push_back({rounded(series.x[i]), rounded(series.y[i])});
    }
    data["series"].push_back({{"name", series.name},
                              {"color", series.color},
                              {"style", style_name(series.style)},
                              {"points", std::move(points)}});
  }
  return fmt::format(
      "<figure class=\"chart\"><div class=\"canvas\"><canvas role=\"img\" aria-label=\"{}: {}\"></canvas></div>"
      "<script type=\"application/json\">{}</script></figure>\n",
      escape(chart.title), escape(chart.summary), json_for_script(data));
}

std::string segment_bar(const std::vector<Segment>& segments, double extent, const std::string& label, int tracks) {
  std::string svg = fmt::format("<svg class=\"bar tracks-{}\" role=\"img\" aria-label=\"{}\">", tracks, escape(label));
  for (const Segment& segment : segments) {
    const double begin = std::clamp(segment.begin / extent, 0.0, 1.0) * 100;
    const double end = std::clamp(segment.end / extent, 0.0, 1.0) * 100;
    if (end > begin) {
      svg += fmt::format(
          "<rect class=\"{}\" x=\"{:.3f}%\" width=\"{:.3f}%\" y=\"{:.0f}%\" "
          "height=\"{:.0f}%\"><title>{}</title></rect>",
          escape(segment.kind), begin, end - begin, 100.0 * segment.track / tracks,
          100.0 / tracks - (tracks > 1 ? 4 : 0), escape(segment.text));
      if (!segment.mark.empty() && end - begin >= kMarkWidth) {
        svg += fmt::format("<text x=\"{:.3f}%\" y=\"{:.0f}%\">{}</text>", (begin + end) / 2,
                           100.0 * (segment.track + 0.5) / tracks, escape(segment.mark));
      }
    }
  }
  return svg + "</svg>";
}

std::string gantt_chart(const std::vector<Block>& blocks, const std::vector<std::pair<std::string, int>>& groups,
                        double extent, const std::string& label) {
  int lanes = 0;
  for (const auto& [name, count] : groups) lanes += count;
  const double lane_height = std::clamp(kGanttHeight / std::max(1, lanes), 3.0, 14.0);
  std::string svg = fmt::format("<svg class=\"gantt\" role=\"img\" aria-label=\"{}\" height=\"{:.1f}\">", escape(label),
                                lane_height * lanes);
  int lane = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    svg += fmt::format(
        "<rect class=\"group-{}\" x=\"0\" width=\"100%\" y=\"{:.1f}\" height=\"{:.1f}\"><title>{}</title></rect>",
        i % 2, lane * lane_height, groups[i].second * lane_height, escape(groups[i].first));
    lane += groups[i].second;
  }
  for (const Block& block : blocks) {
    const double begin = std::clamp(block.begin / extent, 0.0, 1.0) * 100;
    const double end = std::clamp(block.end / extent, 0.0, 1.0) * 100;
    if (end <= begin) continue;
    svg += fmt::format(
        "<rect class=\"block\" style=\"fill:var(--series-{})\" x=\"{:.3f}%\" width=\"{:.3f}%\" y=\"{:.1f}\" "
        "height=\"{:.1f}\"><title>{}</title></rect>",
        block.color % kPaletteSize, begin, end - begin, block.lane * lane_height, block.lanes * lane_height,
        escape(block.text));
  }
  return svg + "</svg>";
}

std::string bar_axis(const std::vector<std::pair<double, std::string>>& ticks, double extent) {
  std::string svg = "<svg class=\"axis\" aria-hidden=\"true\">";
  for (const auto& [place, words] : ticks) {
    const double x = std::clamp(place / extent, 0.0, 1.0) * 100;
    svg += fmt::format(
        "<line x1=\"{0:.3f}%\" x2=\"{0:.3f}%\" y2=\"5\"/><text x=\"{0:.3f}%\" y=\"17\" class=\"{1}\">{2}</text>", x,
        x < 3    ? "first"
        : x > 97 ? "last"
                 : "",
        escape(words));
  }
  return svg + "</svg>";
}

std::string bar_group(const std::string& heading, const std::string& remark, const std::vector<BarRow>& rows) {
  std::string html = fmt::format("<div class=\"bars\"><h3>{} <span>{}</span></h3>\n", escape(heading), escape(remark));
  for (const BarRow& row : rows) {
    html += fmt::format("<div class=\"row\"><div class=\"name\">{}</div>{}<div class=\"amount\">{}</div></div>\n",
                        escape(row.label), row.bar_html, escape(row.value));
  }
  return html + "</div>\n";
}

std::string legend(const std::vector<std::pair<std::string, std::string>>& kinds) {
  std::string html = "<ul class=\"legend\">";
  for (const auto& [kind, words] : kinds) {
    html += fmt::format(
        "<li><svg class=\"swatch\" aria-hidden=\"true\"><rect class=\"{}\" width=\"100%\" height=\"100%\">"
        "</rect></svg>{}</li>",
        escape(kind), escape(words));
  }
  return html + "</ul>\n";
}

}  // namespace motley::report
