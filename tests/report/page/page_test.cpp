// Text that users control must never become markup or script, and a thinned line must keep its look.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "motley/base/random.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"

namespace motley::report {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Escape, LeavesNoMarkupAndNoBrokenUtf8) {
  EXPECT_EQ(escape("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
  EXPECT_EQ(escape("größe 猫 🐈\n"), "größe 猫 🐈\n");
  const std::string replaced = "\xEF\xBF\xBD";
  EXPECT_EQ(escape("\xff"), replaced);
  EXPECT_EQ(escape("a\xc3"), "a" + replaced);                         // cut short
  EXPECT_EQ(escape("\xc0\xaf"), replaced + replaced);                 // overlong "/"
  EXPECT_EQ(escape("\xed\xa0\x80"), replaced + replaced + replaced);  // a surrogate
  EXPECT_EQ(escape(std::string("\0\x1b[2J", 5)), replaced + replaced + "[2J");
  Random random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (std::uint64_t i = random.below(40); i > 0; --i) {
      bytes += static_cast<char>(random.below(256));
    }
    const std::string escaped = escape(bytes);
    EXPECT_EQ(escaped.find_first_of("<>\"'"), std::string::npos);
    EXPECT_NO_THROW((void)nlohmann::json(escaped).dump()) << "well-formed UTF-8, by another judge";
  }
}

TEST(JsonForScript, CannotEndTheScriptAndMeansTheSame) {
  const nlohmann::ordered_json value = {{"</script><script>alert(1)</script>", "<!-- \xff"}};
  const std::string text = json_for_script(value);
  EXPECT_EQ(text.find('<'), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(text).begin().key(), "</script><script>alert(1)</script>");
}

TEST(Thin, KeepsEndsPeaksAndOrder) {
  std::vector<double> x, y;
  for (int i = 0; i < 50000; ++i) {
    x.push_back(i);
    y.push_back(std::sin(i * 1e-3) + (i == 31337 ? 50 : 0));
  }
  const auto kept = thin(x, y, 500);
  EXPECT_EQ(kept.size(), 500u);
  EXPECT_EQ(kept.front(), 0u);
  EXPECT_EQ(kept.back(), 49999u);
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
  EXPECT_EQ(std::adjacent_find(kept.begin(), kept.end()), kept.end());
  EXPECT_THAT(kept, testing::Contains(31337u));
}

TEST(Thin, TakesAnyLengthAndGaps) {
  Random random(2);
  for (std::size_t size : {0u, 1u, 2u, 3u, 4u, 5u, 7u, 100u, 1001u}) {
    std::vector<double> x, y;
    for (std::size_t i = 0; i < size; ++i) {
      x.push_back(static_cast<double>(i));
      y.push_back(random.below(4) == 0 ? std::nan("") : random.normal());
    }
    for (std::size_t limit : {3u, 4u, 99u}) {
      const auto kept = thin(x, y, limit);
      EXPECT_EQ(kept.size(), std::min(size, limit));
      EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
    }
  }
}

TEST(LineChart, ThinsLongSeriesAndWritesGapsAsNull) {
  Series series{"s", 0};
  for (int i = 0; i < 100000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == 0 ? std::nan("") : 1.0 / i);
  }
  const std::string html = line_chart({.title = "T", .summary = "<s>", .series = {series}});
  const std::string open = "<script type=\"application/json\">";
  const std::size_t begin = html.find(open) + open.size();
  const auto json = nlohmann::json::parse(html.substr(begin, html.find("</script>") - begin));
  const auto& points = json.at("series").at(0).at("points");
  EXPECT_EQ(points.size(), kMostPoints);
  EXPECT_TRUE(points.at(0).at(1).is_null());
  EXPECT_EQ(points.back().at(0), 99999);
  EXPECT_THAT(html, HasSubstr("aria-label=\"T: &lt;s&gt;\""));
}

TEST(SegmentBar, PlacesSegmentsInProportion) {
  const std::string svg = segment_bar({{1, 3, "compute", "<c>", 1}, {3, 3, "wait", "none"}}, 4, "worker", 2);
  EXPECT_THAT(svg, HasSubstr("x=\"25.000%\" width=\"50.000%\" y=\"50%\""));
  EXPECT_THAT(svg, HasSubstr("<title>&lt;c&gt;</title>"));
  EXPECT_THAT(svg, Not(HasSubstr("none"))) << "what takes no time is not drawn";
}

TEST(SegmentBar, MarksOnlyWhatIsWideEnough) {
  const std::string svg =
      segment_bar({{0, 50, "forward", "first", 0, "<7>"}, {50, 51, "forward", "second", 0, "8"}}, 100, "gpu");
  EXPECT_THAT(svg, HasSubstr("<text x=\"25.000%\" y=\"50%\">&lt;7&gt;</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">8</text>")));
}

TEST(BarAxis, KeepsItsOuterWordsInside) {
  const std::string svg = bar_axis({{0, "0"}, {2, "2 s"}, {4, "4 s"}}, 4);
  EXPECT_THAT(svg, HasSubstr("x=\"0.000%\" y=\"17\" class=\"first\">0<"));
  EXPECT_THAT(svg, HasSubstr("x=\"50.000%\" y=\"17\" class=\"\">2 s<"));
  EXPECT_THAT(svg, HasSubstr("x=\"100.000%\" y=\"17\" class=\"last\">4 s<"));
}

TEST(Document, HoldsAllItNeedsAndForbidsTheRest) {
  const std::string html = document("a <b>", "<p>x</p>");
  EXPECT_THAT(html, HasSubstr("<title>a &lt;b&gt;</title>"));
  EXPECT_THAT(html, HasSubstr("default-src &#39;none&#39;"));
  EXPECT_THAT(html, HasSubstr("Permission is hereby granted")) << "the library's licence goes with it";
  EXPECT_THAT(html, HasSubstr("new Chart("));
  EXPECT_GT(html.size(), 150000u) << "the library is inside";
}

}  // namespace
}  // namespace motley::report
