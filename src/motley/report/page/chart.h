// Charts as HTML: lines over a common axis (drawn in the browser by Chart.js; charts whose x_label is the same are
// looked closer at together), and bars of coloured segments (plain SVG, so that they also show without scripts).
// Colours are numbers into the page's palette, one for light and one for dark, both told apart by colour-blind readers.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace motley::report {

// Page.js knows them by the names in chart.cpp.
enum class LineStyle {
  kLine,
  kFaint,  // thin and pale, behind the others
  kDashed,
  kMarked,  // a line with a mark at each point
  kMarks,   // marks only
  kSpaced,  // a line with a mark here and there, so that many lines are told apart without their colours
  kArea,    // filled down to the series before it; for stacked charts
};

struct Series {
  std::string name;
  int color = 0;
  LineStyle style = LineStyle::kLine;
  std::vector<double> x, y;  // equal lengths, x ascending; a y that is not finite is a gap

  void add(double at, double value) {
    x.push_back(at);
    y.push_back(value);
  }
};

struct LineChart {
  std::string title;
  std::string summary;  // what the chart shows, in a sentence, for readers who cannot see it
  std::string x_label, y_label;
  std::vector<Series> series;
  bool stacked = false;  // series stand on each other (all need the same x) and are drawn as stairs
  bool percent = false;  // y is a fraction shown as a percentage
  bool from_zero = false;
  bool named = false;  // names also stand beside the series' first points, where there is room
  double y_limit = std::numeric_limits<double>::infinity();  // the axis ends here at the latest
};

// A series above this many points is thinned (not where stacked: thin those together, before). More than a screen has
// columns, for who looks closer at a part.
inline constexpr std::size_t kMaxPoints = 3000;

std::string line_chart(const LineChart& chart);

// The indices, ascending, of at most `limit` ≥ 3 points that keep the look of the line, its peaks included, by
// largest-triangle-three-buckets (Steinarsson 2013). All of them where there are no more than `limit`.
std::vector<std::size_t> thin(const std::vector<double>& x, const std::vector<double>& y, std::size_t limit);

struct Segment {
  double begin = 0, end = 0;  // in the unit of the bar's extent
  std::string kind;           // a CSS class of the page's style: compute, gradient_sync, wait, load, ...
  std::string text;           // shown when pointed at, and read aloud
  int track = 0;              // 0: the upper track, 1: the lower; all 0 where tracks is 1
  std::string mark = {};      // a few letters that stand in the segment where they fit
};

// A bar from 0 to `extent` as an SVG that fills its container's width.
std::string segment_bar(const std::vector<Segment>& segments, double extent, const std::string& label, int tracks = 1);

// Four to nine places from 0 to `extent` at round numbers.
std::vector<double> round_ticks(double extent);

// An axis for the bars above it: words at places from 0 to `extent`.
std::string bar_axis(const std::vector<std::pair<double, std::string>>& ticks, double extent);

// Rows of a label, a bar (HTML) and a value.
struct BarRow {
  std::string label, bar_html, value;
};
std::string bar_group(const std::string& heading, const std::string& remark, const std::vector<BarRow>& rows);

// A rectangle of a Gantt chart: on some tracks, for some time.
struct Block {
  double begin = 0, end = 0;  // in the unit of the chart's extent
  int track = 0, tracks = 1;  // the first, and how many
  int color = 0;              // into the palette, whatever its size
  std::string text;           // shown when pointed at
};

// Blocks over time on tracks that are in groups (such as the devices of a server): the groups' names stand at the left.
std::string gantt_chart(const std::vector<Block>& blocks, const std::vector<std::pair<std::string, int>>& groups,
                        double extent, const std::string& label);

// Explains the kinds: pairs of CSS class and words.
std::string legend(const std::vector<std::pair<std::string, std::string>>& kinds);

}  // namespace motley::report
