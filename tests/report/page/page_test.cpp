// Text that users baseline must never become markup or script, and a thinned line must keep its look.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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
  EXPECT_EQ(points.size(), kMaxPoints);
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
  EXPECT_THAT(svg, HasSubstr("x=\"50.000%\" y=\"17\" class=\" second\">2 s<"));
  EXPECT_THAT(svg, HasSubstr("x=\"100.000%\" y=\"17\" class=\"last\">4 s<"));
}

TEST(RoundTicks, AreFourToEightRoundNumbersWithinTheExtent) {
  for (double extent = 0.0123; extent < 1e7; extent *= 1.37) {
    const std::vector<double> ticks = round_ticks(extent);
    ASSERT_GE(ticks.size(), 4u) << extent;
    ASSERT_LE(ticks.size(), 9u) << extent;
    EXPECT_EQ(ticks.front(), 0);
    EXPECT_LE(ticks.back(), extent * (1 + 1e-9));
    const double step = ticks[1] / std::pow(10, std::floor(std::log10(ticks[1]) + 1e-9));
    EXPECT_TRUE(std::abs(step - 1) < 1e-9 || std::abs(step - 2) < 1e-9 || std::abs(step - 5) < 1e-9) << ticks[1];
    for (std::size_t i = 1; i < ticks.size(); ++i)
      EXPECT_NEAR(ticks[i], static_cast<double>(i) * ticks[1], 1e-9 * extent);
  }
  EXPECT_EQ(round_ticks(0), std::vector<double>{0});
}

TEST(ToLink, EncodesWhatIsNotPlain) {
  EXPECT_EQ(to_link("../a b/report.html"), "../a%20b/report.html");
  EXPECT_EQ(to_link("javascript:x?#\"<"), "javascript%3Ax%3F%23%22%3C");
}

TEST(Document, HoldsAllItNeedsAndForbidsTheRest) {
  const std::string chart = line_chart({.title = "T"});
  const std::string html = document("a <b>", chart);
  EXPECT_THAT(html, HasSubstr("<title>a &lt;b&gt;</title>"));
  EXPECT_THAT(html, HasSubstr("default-src &#39;none&#39;"));
  EXPECT_THAT(html, HasSubstr("Permission is hereby granted")) << "the library's licence goes with it";
  EXPECT_THAT(html, HasSubstr("new Chart("));
  EXPECT_GT(html.size(), 150000u) << "the library is inside";
  const std::string plain = document("a", "<p>&lt;canvas</p>");
  EXPECT_LT(plain.size(), 40000u) << "no chart needs it";
  EXPECT_THAT(plain, Not(HasSubstr("connect-src")));
}

TEST(Document, OnlyALivePageMayAskItsService) {
  const std::string html = document(Page{.title = "Live", .is_live = true});
  EXPECT_THAT(html, HasSubstr("img-src data:; connect-src &#39;self&#39;\""));
  EXPECT_THAT(html, HasSubstr("class=\"notice bad stale\""));
  EXPECT_THAT(document(Page{.title = "Still"}), Not(testing::AnyOf(HasSubstr("connect-src"), HasSubstr("fetch("))));
}

// --- The palette, as readers see it who lack one kind of cones (Machado, Oliveira and Fernandes 2009, severity 1)

using Color = std::array<double, 3>;

Color to_linear(const std::string& hex) {
  Color linear;
  for (std::size_t i = 0; i < 3; ++i) {
    const double c = std::stoi(hex.substr(2 * i, 2), nullptr, 16) / 255.0;
    linear[i] = c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  }
  return linear;
}

Color to_lab(const Color& c) {
  const auto f = [](double t) { return t > 0.008856 ? std::cbrt(t) : 7.787 * t + 16.0 / 116; };
  const double x = f((0.4124 * c[0] + 0.3576 * c[1] + 0.1805 * c[2]) / 0.95047);
  const double y = f(0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]);
  const double z = f((0.0193 * c[0] + 0.1192 * c[1] + 0.9505 * c[2]) / 1.08883);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

double luminance(const Color& c) {
  return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
}

TEST(Palette, IsToldApartByColourBlindReadersAndStandsOutFromTheGround) {
  using Matrix = std::array<Color, 3>;
  const Matrix kinds[] = {
      {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}},
      {{{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}}},
      {{{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}}},
      {{{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}}}};
  const std::string html = document("", "");
  std::size_t at = 0;
  for (const char* theme : {"light", "dark"}) {
    const auto read = [&](const std::string& name) {
      at = html.find(name + ": #", at) + name.size() + 3;
      return to_linear(html.substr(at, 6));
    };
    const Color surface = read("--surface");
    std::vector<Color> colors;
    for (int i = 0; i < 8; ++i) colors.push_back(read(fmt::format("--series-{}", i)));
    for (std::size_t i = 0; i < colors.size(); ++i) {
      const double low = std::min(luminance(colors[i]), luminance(surface));
      const double high = std::max(luminance(colors[i]), luminance(surface));
      EXPECT_GT((high + 0.05) / (low + 0.05), 2.7) << theme << ", series " << i;
      for (std::size_t j = 0; j < i; ++j) {
        for (const Matrix& kind : kinds) {
          const auto seen = [&](const Color& c) {
            Color result;
            for (std::size_t row = 0; row < 3; ++row) {
              const double sum = kind[row][0] * c[0] + kind[row][1] * c[1] + kind[row][2] * c[2];
              result[row] = std::clamp(sum, 0.0, 1.0);
            }
            return to_lab(result);
          };
          const Color a = seen(colors[i]), b = seen(colors[j]);
          EXPECT_GT(std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]), 15) << theme << ", series " << i << ", " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace motley::report
