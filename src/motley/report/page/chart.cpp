#include "motley/report/page/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "motley/base/result.h"
#include "motley/report/page/html.h"

namespace motley::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kPaletteSize = 8;
constexpr double kGanttHeight = 420;  // pixels, of all tracks where they have the space
constexpr double kMarkWidth = 1.8;    // percent of a bar that a mark of two or three digits needs

// Five significant digits are finer than a screen; integers stay whole.
Json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<std::int64_t>(value);
  return std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr);
}

// As LineStyle.
constexpr const char* kStyleNames[] = {"line", "faint", "dashed", "marked", "marks", "spaced", "area"};

// Begin and width of a span of a bar, in percent of its extent; no width where nothing of it is to be seen.
std::pair<double, double> place(double begin, double end, double extent) {
  const double from = std::clamp(begin / extent, 0.0, 1.0) * 100;
  return {from, std::clamp(end / extent, 0.0, 1.0) * 100 - from};
}

}  // namespace

std::vector<std::size_t> thin(const std::vector<double>& x, const std::vector<double>& y, std::size_t limit) {
  const std::size_t size = x.size();
  std::vector<std::size_t> kept(size <= limit ? size : 1);
  std::iota(kept.begin(), kept.end(), 0);
  if (size <= limit) return kept;
  // The first and the last point stay. What lies between is cut into limit - 2 buckets of equal length; from each stays
  // the point that spans the largest triangle with the point kept before it and the mean of the bucket after it.
  const std::size_t buckets = limit - 2;
  const auto bucket_begin = [&](std::size_t bucket) { return 1 + bucket * (size - 2) / buckets; };
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
  Json data = {{"x", chart.x_label},
               {"y", chart.y_label},
               {"stacked", chart.stacked},
               {"percent", chart.percent},
               {"from_zero", chart.from_zero},
               {"named", chart.named},
               {"y_limit", rounded(chart.y_limit)},
               {"series", Json::array()}};
  for (const Series& series : chart.series) {
    MOTLEY_INVARIANT(series.x.size() == series.y.size(), "series '{}' has {} x and {} y", series.name, series.x.size(),
                     series.y.size());
    Json points = Json::array();
    for (const std::size_t i : thin(series.x, series.y, chart.stacked ? series.x.size() : kMaxPoints)) {
      points.push_back({rounded(series.x[i]), rounded(series.y[i])});
    }
    data["series"].push_back({{"name", series.name},
                              {"color", series.color},
                              {"style", kStyleNames[static_cast<std::size_t>(series.style)]},
                              {"points", std::move(points)}});
  }
  return fmt::format(
      "<figure class=\"chart\"><div class=\"canvas\"><canvas role=\"img\" tabindex=\"0\" aria-label=\"{}: {}\" "
      "aria-keyshortcuts=\"+ - ArrowLeft ArrowRight Escape\"></canvas>"
      "<button type=\"button\" class=\"whole-range\" hidden>Whole range</button></div>"
      "<script type=\"application/json\">{}</script></figure>\n",
      escape(chart.title), escape(chart.summary), json_for_script(data));
}

std::string segment_bar(const std::vector<Segment>& segments, double extent, const std::string& label, int tracks) {
  std::string svg = fmt::format("<svg class=\"bar tracks-{}\" role=\"img\" aria-label=\"{}\">", tracks, escape(label));
  for (const Segment& segment : segments) {
    const auto [begin, width] = place(segment.begin, segment.end, extent);
    if (width <= 0) continue;
    svg += fmt::format(
        "<rect class=\"{}\" x=\"{:.3f}%\" width=\"{:.3f}%\" y=\"{:.0f}%\" height=\"{:.0f}%\"><title>{}</title></rect>",
        escape(segment.kind), begin, width, 100.0 * segment.track / tracks, 100.0 / tracks - (tracks > 1 ? 4 : 0),
        escape(segment.text));
    if (!segment.mark.empty() && width >= kMarkWidth) {
      svg += fmt::format("<text x=\"{:.3f}%\" y=\"{:.0f}%\">{}</text>", begin + width / 2,
                         100.0 * (segment.track + 0.5) / tracks, escape(segment.mark));
    }
  }
  return svg + "</svg>";
}

std::string gantt_chart(const std::vector<Block>& blocks, const std::vector<std::pair<std::string, int>>& groups,
                        double extent, const std::string& label) {
  int tracks = 0;
  for (const auto& [name, count] : groups) tracks += count;
  const double track_height = std::clamp(kGanttHeight / std::max(1, tracks), 3.0, 14.0);
  std::string svg = fmt::format("<svg class=\"gantt\" role=\"img\" aria-label=\"{}\" height=\"{:.1f}\">", escape(label),
                                track_height * tracks);
  int track = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    svg += fmt::format(
        "<rect class=\"group-{}\" x=\"0\" width=\"100%\" y=\"{:.1f}\" height=\"{:.1f}\"><title>{}</title></rect>",
        i % 2, track * track_height, groups[i].second * track_height, escape(groups[i].first));
    track += groups[i].second;
  }
  for (const Block& block : blocks) {
    const auto [begin, width] = place(block.begin, block.end, extent);
    if (width <= 0) continue;
    svg += fmt::format(
        "<rect class=\"block\" style=\"fill:var(--series-{})\" x=\"{:.3f}%\" width=\"{:.3f}%\" y=\"{:.1f}\" "
        "height=\"{:.1f}\"><title>{}</title></rect>",
        block.color % kPaletteSize, begin, width, block.track * track_height, block.tracks * track_height,
        escape(block.text));
  }
  return svg + "</svg>";
}

std::vector<double> round_ticks(double extent) {
  if (!(extent > 0)) return {0};
  const double rough = extent / 8;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double step = power * (rough <= power ? 1 : rough <= 2 * power ? 2 : rough <= 5 * power ? 5 : 10);
  std::vector<double> ticks;
  for (int i = 0; i * step <= extent * (1 + 1e-9); ++i) ticks.push_back(i * step);
  return ticks;
}

std::string bar_axis(const std::vector<std::pair<double, std::string>>& ticks, double extent) {
  std::string svg = "<svg class=\"axis\" aria-hidden=\"true\">";
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const auto& [at, words] = ticks[i];
    const double x = std::clamp(at / extent, 0.0, 1.0) * 100;
    const char* end = x < 3 ? "first" : x > 97 ? "last" : "";
    svg += fmt::format(
        "<line x1=\"{0:.3f}%\" x2=\"{0:.3f}%\" y2=\"5\"/><text x=\"{0:.3f}%\" y=\"17\" class=\"{1}{2}\">{3}</text>", x,
        end, i % 2 == 1 ? " second" : "", escape(words));  // narrow screens leave every second one out
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
