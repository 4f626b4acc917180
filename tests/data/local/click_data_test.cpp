// Tables with categories, malformed lines, Criteo's format, and generated clicks: against hashes computed elsewhere,
// closed forms, and what is read back from what was written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include "motley/base/os/file.h"
#include "motley/data/local/clicks.h"
#include "motley/data/local/dataset.h"
#include "motley/data/local/formats.h"
#include "motley/data/local/loader.h"

namespace motley::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A file for one test, written anew for each content.
class File {
 public:
  File() {
    path_ =
        std::filesystem::temp_directory_path() /
        fmt::format("motley-clicks-{}-{}", ::getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  ~File() { std::filesystem::remove(path_); }
  const std::filesystem::path& with(std::string_view content) const {
    EXPECT_TRUE(write_file(path_, content));
    return path_;
  }

 private:
  std::filesystem::path path_;
};

Batch read(const Dataset& dataset, std::vector<std::uint32_t> samples) {
  Batch batch;
  batch.samples = std::move(samples);
  EXPECT_TRUE(read_batch(dataset, batch));
  return batch;
}

std::vector<std::uint32_t> first_samples(std::uint32_t count) {
  std::vector<std::uint32_t> samples(count);
  std::iota(samples.begin(), samples.end(), 0);
  return samples;
}

DatasetSource csv(const std::filesystem::path& file, std::vector<std::string> categories) {
  DatasetSource source;
  source.format = DatasetSource::Format::kCsv;
  source.features = file;
  source.target_column = "y";
  source.categories = std::move(categories);
  return source;
}

// The dataset, where it must open.
std::unique_ptr<Dataset> opened(const DatasetSource& source) {
  auto dataset = open_dataset(source);
  EXPECT_TRUE(dataset) << dataset.error().message;
  return dataset ? *std::move(dataset) : nullptr;
}

// The message of an open that must fail.
std::string refusal(const DatasetSource& source) {
  const auto dataset = open_dataset(source);
  EXPECT_FALSE(dataset);
  return dataset ? "" : dataset.error().message;
}

// A line of Criteo's format with these first fields; the rest are empty.
std::string criteo_line(const std::string& begin) {
  return begin + std::string(39 - static_cast<std::size_t>(std::count(begin.begin(), begin.end(), '\t')), '\t') + "\n";
}

// The share of pairs of a click and another sample in which the click's score is larger, by sorting.
double auc(std::vector<std::pair<double, std::int64_t>> scored) {
  std::sort(scored.begin(), scored.end());
  double pairs = 0, others = 0, clicks = 0;
  for (const auto& [score, is_click] : scored) {
    (is_click == 1 ? clicks : others) += 1;
    pairs += is_click == 1 ? others : 0;
  }
  return pairs / (clicks * others);
}

TEST(CategoryId, NeverChanges) {
  // Computed by an independent program from the definition of mix().
  EXPECT_EQ(category_id("carrier", "UA"), 0x38d08d02c89e329dU);
  EXPECT_EQ(category_id("origin-destination", "Z\xc3\xbcrich"), 0x6a380be351afbe04U);
  EXPECT_EQ(category_id("C1", ""), 0x7d0cc351510d1f7dU);
  EXPECT_EQ(category_id("C26", "0000001f"), 0xdc7f58711510294cU);
}

TEST(CategoryId, SpreadsOverAllBits) {
  std::set<std::uint64_t> ids;
  std::array<int, 64> ones{};
  for (int i = 0; i < 10000; ++i) {
    const std::uint64_t id = category_id("tail", fmt::format("N{}", i));
    ids.insert(id);
    for (std::size_t bit = 0; bit < 64; ++bit) {
      ones[bit] += static_cast<int>(id >> bit & 1);
    }
  }
  EXPECT_EQ(ids.size(), 10000U);
  for (const int count : ones) {
    EXPECT_NEAR(count, 5000, 250);  // five standard deviations
  }
  EXPECT_NE(category_id("ab", "c"), category_id("a", "bc"));
  EXPECT_NE(category_id("a", "b"), category_id("b", "a"));
  EXPECT_NE(category_id("a", ""), category_id("a", std::string_view("\0", 1)));
}

TEST(CsvCategories, BecomeIdsInTheOrderInWhichTheyAreNamed) {
  const File file;
  const DatasetSource source =
      csv(file.with("color,x,y,\"from, to\"\n red\t,1.5,1,\"a, b\"\n,2,0,7\nred,3,1,\n"), {"from, to", "color"});
  const auto dataset = opened(source);
  ASSERT_TRUE(dataset);
  EXPECT_THAT(dataset->feature_shape(), ElementsAre(1));
  EXPECT_EQ(dataset->categories(), 2U);
  EXPECT_EQ(dataset->skipped().lines, 0U);
  const Batch batch = read(*dataset, {2, 0, 1});
  EXPECT_THAT(batch.features, ElementsAre(3, 1.5F, 2));
  EXPECT_THAT(batch.classes, ElementsAre(1, 1, 0));
  EXPECT_THAT(batch.ids,
              ElementsAre(category_id("from, to", ""), category_id("color", "red"), category_id("from, to", "a, b"),
                          category_id("color", "red"), category_id("from, to", "7"), category_id("color", "")));

  // Whoever has no room for ids gets none.
  float feature = 0;
  std::int64_t value = 0;
  const std::uint32_t sample = 1;
  EXPECT_TRUE(dataset->read({&sample, 1}, {{&feature, 1}, {&value, 1}, {}}));
  EXPECT_EQ(feature, 2);
}

TEST(CsvCategories, MayBeAllThatATableHas) {
  const File file;
  DatasetSource source = csv(file.with("a,y\nu,0\nv,2\n"), {"a"});
  source.class_count = 3;
  auto dataset = opened(source);
  ASSERT_TRUE(dataset);
  EXPECT_THAT(dataset->feature_shape(), ElementsAre(0));
  EXPECT_EQ(dataset->feature_count(), 0U);
  EXPECT_EQ(dataset->class_count(), 3U);
  const auto normalisation = measure_normalisation(*dataset);
  ASSERT_TRUE(normalisation);
  EXPECT_TRUE(normalisation->mean.empty());
  source.normalisation = *normalisation;
  source.target_kind = TargetKind::kReal;
  dataset = opened(source);
  ASSERT_TRUE(dataset);
  Loader loader(*dataset, 1);
  EXPECT_TRUE(loader.request(first_samples(2)));
  const auto batch = loader.take(Deadline::after(30));
  ASSERT_TRUE(batch);
  EXPECT_TRUE(batch->features.empty());
  EXPECT_THAT(batch->values, ElementsAre(0, 2));
  EXPECT_THAT(batch->ids, ElementsAre(category_id("a", "u"), category_id("a", "v")));
}

TEST(CsvCategories, AreRefusedWhereTheyAreNoColumnsOfTheirOwn) {
  const File file;
  DatasetSource source = csv(file.with("a,b,x,y\nu,v,1,0\n"), {"a", "c"});
  EXPECT_THAT(refusal(source),
              AllOf(HasSubstr("no column 'c', which data.categorical_columns names"), HasSubstr("a, b, x, y")));
  source.categories = {"a", "b", "a"};
  EXPECT_THAT(refusal(source), HasSubstr("data.categorical_columns and data.categorical_columns name column 'a'"));
  source.categories = {"a", "b"};
  source.drop_columns = {"b"};
  EXPECT_THAT(refusal(source), HasSubstr("data.drop_columns and data.categorical_columns name column 'b'"));
  source.categories = {"y", "a"};
  EXPECT_THAT(refusal(source), HasSubstr("data.target and data.categorical_columns name column 'y'"));
  source.categories = {"a"};
  source.drop_columns = {};
  EXPECT_THAT(refusal(source), AllOf(HasSubstr(":2: column 'b' holds 'v'"), HasSubstr("data.categorical_columns")));
}

TEST(MalformedLines, AreSkippedUpToTheFraction) {
  const File file;
  std::string text = "x,c,y\n";
  for (int i = 0; i < 97; ++i) {
    text += fmt::format("{},{},{}\n", i, i % 3 == 0 ? "a" : "", i % 2);
  }
  text += "1,b,0.5\n1,b\nfour,b,1\n";  // a bad class, too few cells, no number: lines 99, 100 and 101
  DatasetSource source = csv(file.with(text), {"c"});
  source.malformed_share = 0.03;
  const auto dataset = opened(source);
  ASSERT_TRUE(dataset);
  EXPECT_EQ(dataset->size(), 97U);
  EXPECT_EQ(dataset->skipped().lines, 3U);
  EXPECT_THAT(dataset->skipped().first, AllOf(HasSubstr(":99: column 'y'"), HasSubstr("class 0.5")));
  const Batch batch = read(*dataset, first_samples(97));
  for (std::size_t i = 0; i < 97; ++i) {
    EXPECT_EQ(batch.features[i], static_cast<float>(i));
    EXPECT_EQ(batch.ids[i], category_id("c", i % 3 == 0 ? "a" : ""));
  }

  source.malformed_share = 0.0299;
  EXPECT_THAT(refusal(source), AllOf(HasSubstr(":99: column 'y'"), HasSubstr("malformed are 3 of 100 lines"),
                                     HasSubstr("0.0299 accepts 2")));
  source.malformed_share = 0;
  EXPECT_THAT(refusal(source), HasSubstr("malformed are 3 of 100 lines; data.max_malformed_fraction: 0 accepts 0"));
  source.malformed_share = 1.5;
  EXPECT_THAT(refusal(source), HasSubstr("data.max_malformed_fraction: 1.5; accepted: 0 to 1"));
  source.malformed_share = NAN;
  EXPECT_THAT(refusal(source), HasSubstr("accepted: 0 to 1"));
  source.malformed_share = 1;
  source.features = file.with("x,c,y\nfour,b,1\n");
  EXPECT_THAT(refusal(source), HasSubstr("0 samples"));
  source.features = file.with("x,c,x\n1,b,1\n");
  EXPECT_THAT(refusal(source), HasSubstr("two columns are named 'x'"));
}

TEST(MalformedLines, ASharesProductIsNotRoundedDown) {
  const File file;
  std::string text = "x,y\n";
  for (int i = 0; i < 100; ++i) {
    text += i < 29 ? "z,0\n" : "1,0\n";
  }
  DatasetSource source = csv(file.with(text), {});
  source.malformed_share = 0.29;  // times 100 is a little less than 29 in binary
  EXPECT_EQ(opened(source)->skipped().lines, 29U);
}

TEST(MalformedLines, ClassesBeyondThoseOfTheTrainingDataAreMalformed) {
  const File file;
  DatasetSource source = csv(file.with("x,y\n1,0\n2,5\n3,1\n"), {});
  source.class_count = 2;
  EXPECT_THAT(refusal(source), AllOf(HasSubstr(":3: column 'y': class 5"), HasSubstr("2 classes (0 to 1)")));
  source.malformed_share = 0.5;
  EXPECT_THAT(read(*opened(source), {0, 1}).features, ElementsAre(1, 3));
}

TEST(MalformedLines, AQuoteTooManyCostsOnlyItsLine) {
  MalformedLines malformed;
  const auto table = parse_csv("x,y\n1,2\n\"3,4\r\n5,6\n7,\"8\" 9\n\"1\n0\",1\n2,3\n", "t.csv", {}, &malformed);
  ASSERT_TRUE(table);
  EXPECT_THAT(table->cells, ElementsAre(1, 2, 5, 6, 2, 3));
  EXPECT_THAT(table->lines, ElementsAre(2, 4, 8));
  // Lines 3 and 5, and the two of a cell that holds a line end.
  EXPECT_EQ(malformed.count, 4U);
  EXPECT_EQ(malformed.first_line, 3U);
  EXPECT_THAT(malformed.first, HasSubstr("t.csv:3:"));
}

TEST(Criteo, ReadsLabelsNumbersAndCategories) {
  std::string text = "1\t1\t-2\t\t0\t1382";
  for (int i = 6; i <= 13; ++i) {
    text += fmt::format("\t{}", i);
  }
  for (int i = 1; i <= 26; ++i) {
    text += i == 2 ? "\t" : fmt::format("\t{:08x}", i);
  }
  const auto lines = parse_criteo(text + "\r\n\n" + criteo_line("0"), "day_0");
  ASSERT_TRUE(lines) << lines.error().message;
  EXPECT_EQ(lines->rows(), 2U);
  EXPECT_THAT(lines->classes, ElementsAre(1, 0));
  ASSERT_EQ(lines->features.size(), 26U);
  EXPECT_FLOAT_EQ(lines->features[0], std::log(2.0F));
  EXPECT_EQ(lines->features[1], 0);
  EXPECT_EQ(lines->features[2], 0);
  EXPECT_FLOAT_EQ(lines->features[4], std::log(1383.0F));
  EXPECT_FLOAT_EQ(lines->features[12], std::log(14.0F));
  EXPECT_EQ(lines->features[13], 0);
  ASSERT_EQ(lines->ids.size(), 52U);
  EXPECT_EQ(lines->ids[0], category_id("C1", "00000001"));
  EXPECT_EQ(lines->ids[1], category_id("C2", ""));
  EXPECT_EQ(lines->ids[25], category_id("C26", "0000001a"));
  EXPECT_EQ(lines->ids[26], category_id("C1", ""));
}

TEST(Criteo, RefusesByLineAndField) {
  const std::string good = criteo_line("1");
  const auto with = [&](const std::string& line) {
    const auto lines = parse_criteo(good + line, "day_0");
    EXPECT_FALSE(lines);
    return lines ? "" : lines.error().message;
  };
  EXPECT_THAT(with("1\t2\n"), AllOf(HasSubstr("day_0:2: 2 fields"), HasSubstr("accepted: 40")));
  EXPECT_THAT(with("1\t" + good), HasSubstr("41 fields"));
  EXPECT_THAT(with(criteo_line("2")), HasSubstr("day_0:2: label '2'; accepted: 0 and 1"));
  EXPECT_THAT(with(criteo_line("")), HasSubstr("label ''"));
  EXPECT_THAT(with(criteo_line("0\t1\t2.5")), HasSubstr("number 2 of 13 is '2.5'"));
  EXPECT_THAT(with(criteo_line("0\t99999999999999999999")), HasSubstr("number 1 of 13"));
  EXPECT_THAT(with(criteo_line("0" + std::string(15, '\t') + "xyz")), HasSubstr("category C2 is 'xyz'"));
  EXPECT_TRUE(parse_criteo("", "day_0"));
}

TEST(Criteo, OpensWithTwoClassesAndSkipsMalformedLines) {
  const File file;
  DatasetSource source;
  source.format = DatasetSource::Format::kCriteo;
  source.features = file.with(criteo_line("0\t1") + "no click\n" + criteo_line("0\t3") + criteo_line("0\t7"));
  EXPECT_THAT(refusal(source), AllOf(HasSubstr(":2: 1 fields"), HasSubstr("malformed are 1 of 4 lines")));
  source.malformed_share = 0.25;
  auto dataset = opened(source);
  ASSERT_TRUE(dataset);
  EXPECT_EQ(dataset->size(), 3U);
  EXPECT_EQ(dataset->class_count(), 2U);
  EXPECT_EQ(dataset->categories(), 26U);
  EXPECT_THAT(dataset->feature_shape(), ElementsAre(13));
  EXPECT_EQ(dataset->skipped().lines, 1U);
  EXPECT_THAT(dataset->skipped().first, HasSubstr(":2: 1 fields"));
  source.normalisation = *measure_normalisation(*dataset);
  dataset = opened(source);
  const Batch batch = read(*dataset, {0, 1, 2});
  EXPECT_FLOAT_EQ(batch.features[0], -std::sqrt(1.5F));
  EXPECT_NEAR(batch.features[13], 0, 1e-6);
  EXPECT_FLOAT_EQ(batch.features[26], std::sqrt(1.5F));
  source.target_kind = TargetKind::kReal;
  EXPECT_THAT(refusal(source), HasSubstr("labels are classes"));
}

// Draws of Zipf's distribution against its closed form: the sum over cells of (drawn - expected)^2 / expected is
// chi-square distributed, with a mean of its degrees of freedom and a variance of twice as much.
TEST(Zipf, DrawsFollowTheClosedForm) {
  for (const double exponent : {0.5, 1.0, 1.05, 2.5}) {
    for (const std::uint64_t size : {1U, 2U, 10U, 1000U, 1000000U}) {
      const Zipf zipf(size, exponent);
      std::vector<double> share(size);
      double sum = 0;
      for (std::size_t rank = 0; rank < size; ++rank) {
        sum += share[rank] = std::pow(static_cast<double>(rank + 1), -exponent);
      }
      constexpr int kDraws = 200000;
      std::vector<int> drawn(size);
      Random random(mix({size, static_cast<std::uint64_t>(exponent * 100)}));
      for (int i = 0; i < kDraws; ++i) {
        const std::uint64_t rank = zipf.draw(random);
        ASSERT_LT(rank, size);
        ++drawn[rank];
      }
      // Ranks that are expected less than twenty times are taken together with the next ones.
      double chi_square = 0, expected = 0, freedom = -1;
      int found = 0;
      for (std::size_t rank = 0; rank < size; ++rank) {
        expected += kDraws * share[rank] / sum;
        found += drawn[rank];
        if (expected >= 20 || rank + 1 == size) {
          chi_square += (found - expected) * (found - expected) / expected;
          freedom += 1;
          expected = 0;
          found = 0;
        }
      }
      EXPECT_LE(std::abs(chi_square - freedom), 5 * std::sqrt(2 * freedom) + 1e-9)
          << size << " ranks, exponent " << exponent << ", " << freedom << " degrees of freedom";
    }
  }
}

TEST(Clicks, ColumnsGrowByOneRatioAndHoldAllRows) {
  for (const std::uint64_t rows : {std::uint64_t{260}, std::uint64_t{100000}, std::uint64_t{1} << 32}) {
    const auto clicks = make_clicks({.samples = 1, .rows = rows});
    ASSERT_TRUE(clicks) << clicks.error().message;
    const std::vector<std::uint64_t> sizes = (*clicks)->column_sizes();
    ASSERT_EQ(sizes.size(), 26U);
    EXPECT_EQ(sizes[0], 10U);
    EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}), rows);
    const double ratio = std::pow(static_cast<double>(sizes[24]) / 10, 1.0 / 24);
    for (std::size_t i = 0; i < 26; ++i) {
      const double expected = 10 * std::pow(ratio, static_cast<double>(i));
      EXPECT_NEAR(static_cast<double>(sizes[i]), expected, 0.01 * expected + 26) << rows << " rows, column " << i;
    }
  }
}

TEST(Clicks, IdsAreZipfDistributedInTheirColumns) {
  const auto clicks = make_clicks({.samples = 20000, .seed = 3, .rows = 5000, .zipf = 0.9});
  ASSERT_TRUE(clicks);
  const Batch batch = read(**clicks, first_samples(20000));
  const std::vector<std::uint64_t> sizes = (*clicks)->column_sizes();
  for (std::size_t column = 0; column < 26; ++column) {
    std::map<std::uint64_t, int> drawn;
    for (std::size_t i = 0; i < 20000; ++i) {
      ++drawn[batch.ids[i * 26 + column]];
    }
    double sum = 0;
    int known = 0;
    for (std::uint64_t rank = 0; rank < sizes[column]; ++rank) {
      sum += std::pow(static_cast<double>(rank + 1), -0.9);
      known += drawn[category_id(fmt::format("C{}", column + 1), fmt::format("{:08x}", rank))];
    }
    EXPECT_EQ(known, 20000) << "column " << column << " has ids of no rank";
    for (std::uint64_t rank = 0; rank < 5; ++rank) {
      const double share = std::pow(static_cast<double>(rank + 1), -0.9) / sum;
      const int found = drawn[category_id(fmt::format("C{}", column + 1), fmt::format("{:08x}", rank))];
      EXPECT_NEAR(found, 20000 * share, 5 * std::sqrt(20000 * share * (1 - share))) << column << " " << rank;
    }
  }
}

TEST(Clicks, TheTruthHasTheRateAndTheAucThatItIsScaledTo) {
  for (const std::uint64_t seed : {1U, 2U}) {
    for (const std::uint64_t rows : {std::uint64_t{260}, std::uint64_t{1000000}, std::uint64_t{400000000}}) {
      const auto clicks = make_clicks({.samples = 30000, .seed = seed, .first = 1000000, .rows = rows});
      ASSERT_TRUE(clicks);
      const Batch batch = read(**clicks, first_samples(30000));
      std::vector<std::pair<double, std::int64_t>> scored;
      double expected = 0, variance = 0, found = 0;
      for (std::uint32_t i = 0; i < 30000; ++i) {
        const double probability = (*clicks)->probability(i);
        scored.emplace_back(probability, batch.classes[i]);
        expected += probability;
        variance += probability * (1 - probability);
        found += static_cast<double>(batch.classes[i]);
      }
      EXPECT_NEAR(found, expected, 5 * std::sqrt(variance));
      EXPECT_NEAR(expected / 30000, 0.26, 0.015) << seed << " " << rows;
      EXPECT_NEAR(auc(scored), 0.80, 0.015) << seed << " " << rows;
    }
  }
}

TEST(Clicks, ASampleDependsOnItsNumberAlone) {
  const auto all = make_clicks({.samples = 1000, .seed = 5}),
             tail = make_clicks({.samples = 400, .seed = 5, .first = 600});
  ASSERT_TRUE(all && tail);
  const Batch whole = read(**all, first_samples(1000)), part = read(**tail, first_samples(400));
  EXPECT_TRUE(std::equal(part.features.begin(), part.features.end(), whole.features.begin() + 600 * 13));
  EXPECT_TRUE(std::equal(part.ids.begin(), part.ids.end(), whole.ids.begin() + 600 * 26));
  EXPECT_TRUE(std::equal(part.classes.begin(), part.classes.end(), whole.classes.begin() + 600));
  EXPECT_EQ((*all)->probability(700), (*tail)->probability(100));

  // In any order, and by threads at once.
  std::vector<Batch> batches(4);
  std::vector<std::thread> threads;
  for (std::uint32_t k = 0; k < 4; ++k) {
    threads.emplace_back([&, k] {
      for (std::uint32_t i = 0; i < 250; ++i) {
        batches[k].samples.push_back(999 - 4 * i - k);
      }
      EXPECT_TRUE(read_batch(**all, batches[k]));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const Batch& batch : batches) {
    for (std::size_t i = 0; i < 250; ++i) {
      EXPECT_EQ(batch.classes[i], whole.classes[batch.samples[i]]);
      EXPECT_EQ(batch.ids[i * 26 + 25], whole.ids[batch.samples[i] * 26 + 25]);
    }
  }

  const auto other = make_clicks({.samples = 1000, .seed = 6});
  EXPECT_NE(read(**other, first_samples(1000)).ids, whole.ids);
}

TEST(Clicks, AreReadBackAsTheyWereWritten) {
  const auto clicks = make_clicks({.samples = 3000, .seed = 11, .first = 77, .rows = 1 << 20});
  ASSERT_TRUE(clicks);
  std::ostringstream out;
  ASSERT_TRUE(write_criteo(**clicks, out));
  const auto lines = parse_criteo(out.str(), "clicks");
  ASSERT_TRUE(lines) << lines.error().message;
  const Batch batch = read(**clicks, first_samples(3000));
  EXPECT_EQ(lines->features, batch.features);
  EXPECT_EQ(lines->ids, batch.ids);
  EXPECT_EQ(lines->classes, batch.classes);

  std::ostringstream broken;
  broken.setstate(std::ios::badbit);
  EXPECT_FALSE(write_criteo(**clicks, broken));
}

TEST(Clicks, RefuseWhatCannotBeGenerated) {
  const auto message = [](const ClickSource& source) {
    const auto clicks = make_clicks(source);
    EXPECT_FALSE(clicks);
    return clicks ? "" : clicks.error().message;
  };
  EXPECT_THAT(message({.samples = 0}), HasSubstr("samples: 0; accepted: 1"));
  EXPECT_THAT(message({.samples = 1, .rows = 259}), HasSubstr("rows: 259; accepted: 260 to 4294967296"));
  EXPECT_THAT(message({.samples = 1, .rows = (std::uint64_t{1} << 32) + 1}), HasSubstr("rows: 4294967297"));
  EXPECT_THAT(message({.samples = 1, .zipf = 0}), HasSubstr("zipf: 0; accepted"));
  EXPECT_THAT(message({.samples = 1, .zipf = NAN}), HasSubstr("zipf: nan"));
}

}  // namespace
}  // namespace motley::data
