// The worker's side of a network's rows against a naive model: what is asked for ahead and from the cache, how old a
// row may be, and what is counted.
#include "motley/train/step/served_table.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "motley/base/random.h"
#include "motley/ps/service/service.h"
#include "tests/collective/ranks.h"
#include "tests/nn/accelerator.h"

namespace motley::train {
namespace {

using Ids = std::vector<std::uint64_t>;
using Rows = std::vector<float>;

constexpr std::int64_t kCategories = 3;
constexpr std::int64_t kDimension = 4;
constexpr std::uint64_t kRows = 60;
const nn::LookupLayout kLayout = {
    .features = 2, .small = 0, .categories = kCategories, .dimension = kDimension, .rows = kRows, .served = true};

Deadline soon() {
  return Deadline::after(30);
}

class ServedTableTest : public ::testing::Test {
 protected:
  // body(table) with a table of a server of its own.
  void with_table(const Job& job, const std::function<void(ServedTable&)>& body, torch::Device device = torch::kCPU) {
    const net::Secret token = net::Secret::generate();
    ps::ServiceOptions options;
    options.cores = 1;
    const auto service = ps::Service::start(options, token).value();
    collective::run_threads(1, true, [&](int, collective::ThreadSession& session) {
      auto table = ServedTable::open(job, kLayout, device, {{service->endpoint(), token}}, session, {}, soon());
      ASSERT_TRUE(table) << table.error().message;
      body(**table);
    });
  }
};

Job make_job(std::int64_t cache_rows, std::int64_t max_staleness) {
  Job job;
  job.embedding.optimizer = "sgd";
  job.embedding.learning_rate = 0.5;
  job.embedding.cache_rows = cache_rows;
  job.embedding.max_staleness = max_staleness;
  return job;
}

// A batch of a few samples; ids beyond the table's rows are folded.
Ids random_batch(Random& random) {
  Ids ids(kCategories * (1 + random.below(6)));
  for (std::uint64_t& id : ids) id = random.below(3) == 0 ? random.below(4 * kRows) : random.below(12);
  return ids;
}

Rows values(const torch::Tensor& rows) {
  const torch::Tensor here = rows.cpu();
  return {here.data_ptr<float>(), here.data_ptr<float>() + here.numel()};
}

// All rows as they are, by number.
std::map<std::uint64_t, Rows> read_state(ServedTable& table) {
  Ids all;
  for (std::uint64_t id = 0; id < kRows; ++id) all.push_back(id);
  const Rows rows = values(table.exact_rows(all, soon()).value());
  std::map<std::uint64_t, Rows> state;
  for (std::uint64_t id = 0; id < kRows; ++id) {
    state[id] = Rows(rows.begin() + static_cast<std::ptrdiff_t>(id * kDimension),
                     rows.begin() + static_cast<std::ptrdiff_t>((id + 1) * kDimension));
  }
  return state;
}

// What a cache with room for everything has, and what it must ask for.
class Model {
 public:
  explicit Model(std::optional<std::int64_t> steps) : steps_(steps) {}
  std::set<std::uint64_t> lacks(const Ids& ids, std::int64_t after) const {
    std::set<std::uint64_t> lacking;
    for (const std::uint64_t id : ids) {
      const auto known = brought_.find(id % kRows);
      if (!steps_ || known == brought_.end() || known->second < after - *steps_) lacking.insert(id % kRows);
    }
    return lacking;
  }
  void bring(const std::set<std::uint64_t>& rows, std::int64_t after) {
    for (const std::uint64_t row : rows)
      brought_[row] = std::max(brought_.try_emplace(row, after).first->second, after);
  }

 private:
  const std::optional<std::int64_t> steps_;
  std::map<std::uint64_t, std::int64_t> brought_;
};

struct Way {
  std::optional<std::int64_t> max_staleness;
  bool prefetches;
};
class EveryWay : public ServedTableTest, public ::testing::WithParamInterface<Way> {};
INSTANTIATE_TEST_SUITE_P(ServedTable, EveryWay,
                         ::testing::Values(Way{{}, true}, Way{{}, false}, Way{1, true}, Way{3, true}, Way{3, false},
                                           Way{12, true}));

void expect_bounded_staleness(ServedTable& table, std::optional<std::int64_t> max_staleness, bool prefetches,
                              torch::Device device) {
  Random random(mix({static_cast<std::uint64_t>(max_staleness.value_or(0)), prefetches ? 1U : 0U}));
  Model model(max_staleness);
  std::vector<std::map<std::uint64_t, Rows>> states = {read_state(table)};  // after each step
  struct Ahead {
    Ids ids;
    std::int64_t wanted, after;
    std::set<std::uint64_t> lacking;
  };
  std::optional<Ahead> ahead;
  Ids next = random_batch(random);
  std::int64_t oldest = 0;
  for (std::int64_t step = 1; step <= 120; ++step) {
    const std::int64_t after = step - 1;
    const bool has_samples = random.below(8) != 0;
    const Ids ids = random.below(6) == 0 ? random_batch(random) : std::exchange(next, random_batch(random));
    if (has_samples) {
      const ServedTable::Counts before = table.counts();
      const std::set<std::uint64_t> rows_of_batch = Model({}).lacks(ids, after);
      std::set<std::uint64_t> asked;
      bool was_ahead = false;
      if (ahead) {
        model.bring(ahead->lacking, ahead->after);
        was_ahead = ahead->ids == ids && ahead->wanted == after;
      }
      asked = was_ahead ? ahead->lacking : model.lacks(ids, after);
      ahead.reset();
      const auto got = table.rows(ids, soon());
      ASSERT_TRUE(got) << got.error().message;
      if (!was_ahead) model.bring(asked, after);
      const ServedTable::Counts counts = table.counts();
      ASSERT_EQ(counts.needed - before.needed, rows_of_batch.size()) << "step " << step;
      ASSERT_EQ(counts.cached - before.cached, rows_of_batch.size() - asked.size()) << "step " << step;
      ASSERT_EQ(counts.ahead - before.ahead, was_ahead ? asked.size() : 0) << "step " << step;

      const Rows rows = values(*got);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const Rows row(rows.begin() + static_cast<std::ptrdiff_t>(i * kDimension),
                       rows.begin() + static_cast<std::ptrdiff_t>((i + 1) * kDimension));
        std::int64_t age = 0;
        while (age <= std::min(after, max_staleness.value_or(0)) &&
               states[static_cast<std::size_t>(after - age)].at(ids[i] % kRows) != row) {
          ++age;
        }
        ASSERT_LE(age, std::min(after, max_staleness.value_or(0))) << "row " << ids[i] % kRows << " in step " << step;
        oldest = std::max(oldest, age);
      }
    }
    if (random.below(4) != 0) {
      ASSERT_EQ(table.may_read_ahead(), prefetches && !ahead);
      if (table.may_read_ahead()) {
        ahead = {next, step, max_staleness ? step - 1 : step, model.lacks(next, step)};
      }
      ASSERT_TRUE(table.read_ahead(next));
    }
    if (has_samples) {
      const auto samples = static_cast<std::int64_t>(ids.size()) / kCategories;
      const torch::Tensor gradient = torch::full({samples, kLayout.input_width()}, 1 + random.uniform(), device);
      ASSERT_TRUE(table.push(ids, 0, gradient, static_cast<double>(samples), soon()));
    }
    ASSERT_TRUE(table.finish_step(has_samples ? static_cast<double>(ids.size()) / kCategories : 0, soon()));
    states.push_back(read_state(table));
  }
  EXPECT_EQ(oldest, max_staleness.value_or(0)) << "the bound is made use of";
}

TEST_P(EveryWay, AsksForWhatItLacksAndGivesRowsOfTheStepsThatItMay) {
  const auto [max_staleness, prefetches] = GetParam();
  Job job = make_job(max_staleness ? 1000 : 0, max_staleness.value_or(0));
  job.embedding.prefetch = prefetches;
  with_table(job, [&](ServedTable& table) { expect_bounded_staleness(table, max_staleness, prefetches, torch::kCPU); });
}

// The same where the rows that are kept are in an accelerator's memory.
TEST_P(EveryWay, DoesSoInTheMemoryOfAnAccelerator) {
  const auto accelerator = nn::find_test_accelerator();
  if (!accelerator) GTEST_SKIP() << "needs an accelerator that PyTorch can use";
  const auto [max_staleness, prefetches] = GetParam();
  Job job = make_job(0, max_staleness.value_or(0));
  job.embedding.prefetch = prefetches;
  with_table(
      job,
      [&](ServedTable& table) {
        EXPECT_EQ(table.caches(), max_staleness.has_value());
        expect_bounded_staleness(table, max_staleness, prefetches, *accelerator);
      },
      *accelerator);
}

TEST_F(ServedTableTest, RefusesMemoryThatTheDeviceHasNot) {
  const auto accelerator = nn::find_test_accelerator();
  if (!accelerator) GTEST_SKIP() << "needs an accelerator that PyTorch can use";
  const auto rows = DeviceRows::create(*accelerator, 4096, 1U << 30, 1);
  ASSERT_FALSE(rows);
  EXPECT_EQ(rows.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(rows.error().message, ::testing::HasSubstr("embedding.device_memory: 17.6 TB for 1073741824 embeddings"));
}

// A pull is a request of 64 bytes and an answer of 48 around ids and rows; nothing is sent for a batch that the cache
// has.
TEST_F(ServedTableTest, CountsBytesOnTheWire) {
  for (const auto& [wire, row_bytes] : {std::pair{"float32", 16}, {"bfloat16", 8}, {"int8", 8}}) {
    Job job = make_job(100, 5);
    job.embedding.comm_dtype = wire;
    with_table(job, [&](ServedTable& table) {
      ASSERT_TRUE(table.rows({1, 2, 3, 1, 2, 3 + kRows}, soon()));
      EXPECT_EQ(table.counts().pulled_bytes, 64 + 48 + 3 * (8 + row_bytes));
      ASSERT_TRUE(table.rows({3, 2, 1}, soon()));
      EXPECT_EQ(table.counts().pulled_bytes, 64 + 48 + 3 * (8 + row_bytes));
      ASSERT_TRUE(table.push({1, 2, 1}, 0, torch::ones({1, kLayout.input_width()}), 1, soon()));
      EXPECT_EQ(table.counts().pushed_bytes, 48 + 24 + 2 * (8 + row_bytes));
    });
  }
}

}  // namespace
}  // namespace motley::train
