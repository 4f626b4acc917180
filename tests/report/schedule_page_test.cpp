// The page of a replayed trace, of schedules made by hand whose figures can be told at sight.
#include "motley/report/schedule_page.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

namespace motley::report {
namespace {

using scheduling::PolicyOutcome;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Two jobs of one device each, an hour long, on one device: they run one after the other from `begin` hours on, or at
// the same time where there are two.
class SchedulePageTest : public ::testing::Test {
 protected:
  SchedulePageTest() {
    for (const char* name : {"a", "b"}) {
      scheduling::Job job;
      job.name = name;
      job.duration = 3600;
      job.workers = 1;
      jobs_.push_back(job);
    }
  }
  void add(const std::string& policy, std::vector<double> begins, int restarts = 0) {
    PolicyOutcome one{policy, {}};
    for (std::size_t i = 0; i < begins.size(); ++i) {
      const double begin = 3600 * begins[i], end = begin + 3600;
      one.outcome.jobs.push_back({.started = begin, .finished = end, .done_seconds = 3600, .restarts = restarts});
      one.outcome.runs.push_back({static_cast<int>(i), begin, end, {{0, 1}}});
      one.outcome.end = std::max(one.outcome.end, end);
    }
    one.outcome.utilisation = 7200 / (2 * one.outcome.end);
    one.outcome.utility = 120;
    one.outcome.decisions = 4;
    outcomes_.push_back(std::move(one));
  }
  std::string page() {
    return schedule_page({"trace", jobs_, topology_, outcomes_, std::numeric_limits<double>::infinity(), false});
  }

  std::vector<scheduling::Job> jobs_;
  scheduling::ClusterTopology topology_ = scheduling::uniform(1, 2);
  std::vector<PolicyOutcome> outcomes_;
};

// All that the expression's first group matches, in order.
std::vector<std::string> find_all(const std::string& html, const std::string& expression) {
  std::vector<std::string> found;
  const std::regex regex(expression);
  for (std::sregex_iterator at(html.begin(), html.end(), regex), end; at != end; ++at) found.push_back((*at)[1]);
  return found;
}

TEST_F(SchedulePageTest, RanksMarksTheBestAndSaysByHowMuch) {
  add("late", {3, 4});       // done after 4 and 5 hours: 4.5 on average
  add("early", {0, 1});      // 1.5
  add("middle", {1, 0}, 2);  // 1.5 as well, and each job restarted twice
  add("next", {1, 2});       // 2.5
  const std::string html = page();
  EXPECT_THAT(find_all(html, "</span>([a-z, ]+)</td>"), ElementsAre("early", "middle", "next", "late"));
  EXPECT_THAT(html, HasSubstr("<td class=\"number\"><span class=\"best\">1.50</span></td>"));
  EXPECT_THAT(html, HasSubstr("<td class=\"number\">4.50</td>"));
  EXPECT_THAT(html, HasSubstr("1.50 h on average; the same: middle; next: next 2.50 h on average (+67 %); last: late "
                              "4.50 h on average (3.0 times as much)"));
  EXPECT_EQ(find_all(html, "(<span class=\"best\">0.00</span>)").size(), 3u) << "restarts of all but middle's jobs";
  EXPECT_THAT(html, HasSubstr("The same under every policy, and so not in the table:"));
  EXPECT_THAT(html, AllOf(HasSubstr("utility (120)"), HasSubstr("every policy finishes all jobs")));
  EXPECT_THAT(find_all(html, "<th scope=\"col\"[^>]*>(utility)</th>"), ElementsAre());
}

TEST_F(SchedulePageTest, PoliciesThatDoTheSameAreDrawnOnce) {
  add("one", {0, 1});
  add("two", {0, 2});
  add("three", {0, 1});
  const std::string html = page();
  EXPECT_THAT(find_all(html, "<h2>Who ran where: (.*?)</h2>"), ElementsAre("one, three", "two"));
  EXPECT_THAT(html, HasSubstr("one, three run every job at the same times with as many workers"));
  EXPECT_THAT(html, HasSubstr("Here no job is elastic"));
  for (const std::string& text : find_all(html, "<script type=\"application/json\">(.*?)</script>")) {
    const auto chart = nlohmann::json::parse(text);
    ASSERT_EQ(chart["series"].size(), 2u);
    EXPECT_EQ(chart["series"][0]["name"], "one, three");
    EXPECT_NE(chart["series"][0]["color"], chart["series"][1]["color"]);
    EXPECT_EQ(chart["series"][0]["style"], chart["named"] ? "marks" : "spaced");
  }
  outcomes_.pop_back();
  outcomes_.erase(outcomes_.begin());
  EXPECT_THAT(page(), Not(HasSubstr("The same under every policy"))) << "one policy alone has all columns";
}

TEST_F(SchedulePageTest, AllWhoRanWhereIsOnOneScaleWithRoundTicks) {
  add("short", {0, 1});  // ends after 2 hours
  add("long", {0, 7});   // after 8
  const std::string html = page();
  const std::vector<std::string> charts =
      find_all(html, "(<svg class=\"gantt\"[\\s\\S]*?</svg><svg class=\"axis\"[\\s\\S]*?</svg>)");
  ASSERT_EQ(charts.size(), 2u);
  for (const std::string& chart : charts) {
    for (const std::string& width : find_all(chart, "class=\"block\"[^>]*? width=\"([0-9.]+)%\"")) {
      EXPECT_EQ(width, "12.500") << "an hour of eight";
    }
    EXPECT_THAT(find_all(chart, "<text [^>]*>([^<]*)</text>"),
                ElementsAre("0 h", "1 h", "2 h", "3 h", "4 h", "5 h", "6 h", "7 h", "8 h"));
  }
}

TEST_F(SchedulePageTest, SaysWhichJobsAreNotDone) {
  add("all", {0, 1});
  add("some", {0, 1});
  outcomes_[1].outcome.jobs[1].finished = std::numeric_limits<double>::infinity();
  outcomes_[1].outcome.runs.pop_back();
  const std::string html = page();
  EXPECT_THAT(html, HasSubstr("some leaves 1 of 2 jobs undone at the end; its hours are of those that are done."));
  EXPECT_THAT(find_all(html, "</span>([a-z, ]+)</td>"), ElementsAre("all", "some")) << "though its mean is shorter";
  EXPECT_THAT(html, Not(HasSubstr("every policy finishes all jobs")));
}

}  // namespace
}  // namespace motley::report
