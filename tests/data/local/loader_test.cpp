// The loader: batches in the order of requests, bounded, errors carried, discarded requests never delivered.
#include "motley/data/local/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "tests/no_threads.h"

namespace motley::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Features and targets that tell the sample. Fails for sample 666 and stops at sample 777 until released.
class FakeDataset final : public Dataset {
 public:
  std::uint32_t size() const override { return 1000; }
  const std::vector<std::int64_t>& feature_shape() const override { return shape_; }
  TargetKind target_kind() const override { return TargetKind::kReal; }
  std::uint32_t class_count() const override { return 0; }
  std::uint32_t target_width() const override { return 1; }
  Status read(std::span<const std::uint32_t> samples, const ReadTarget& into) const override {
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (samples[i] == 666) {
        return fail(ErrorCode::kIo, "sample 666 is gone");
      }
      if (samples[i] == 777) {
        released_.wait(false);
      }
      into.features[2 * i] = static_cast<float>(samples[i]);
      into.features[2 * i + 1] = -static_cast<float>(samples[i]);
      into.values[i] = static_cast<float>(samples[i]) / 2;
    }
    return {};
  }
  void release() {
    released_ = true;
    released_.notify_all();
  }

 private:
  std::vector<std::int64_t> shape_ = {2};
  std::atomic<bool> released_ = false;
};

using Samples = std::vector<std::uint32_t>;

// Images of one pixel, 1, within which nothing can be moved but out.
class OnePixels final : public Dataset {
 public:
  std::uint32_t size() const override { return 1000; }
  const std::vector<std::int64_t>& feature_shape() const override { return shape_; }
  TargetKind target_kind() const override { return TargetKind::kReal; }
  std::uint32_t class_count() const override { return 0; }
  std::uint32_t target_width() const override { return 1; }
  Status read(std::span<const std::uint32_t>, const ReadTarget& into) const override {
    for (float& feature : into.features) feature = 1;
    return {};
  }

 private:
  std::vector<std::int64_t> shape_ = {1, 1, 1};
};

TEST(Loader, DeliversInOrderAndReusesMemory) {
  const FakeDataset dataset;
  Loader loader(dataset, 3);
  std::uint32_t requested = 0, taken = 0;
  while (taken < 500) {
    while (requested < 500 && loader.request(Samples{requested, requested + 1})) {
      ++requested;
    }
    EXPECT_EQ(loader.waiting(), requested - taken);
    EXPECT_LE(loader.waiting(), 3U);
    auto batch = loader.take(Deadline::after(30));
    ASSERT_TRUE(batch) << batch.error().message;
    const auto first = static_cast<float>(taken);
    EXPECT_THAT(batch->samples, ElementsAre(taken, taken + 1));
    EXPECT_THAT(batch->features, ElementsAre(first, -first, first + 1, -first - 1));
    EXPECT_THAT(batch->values, ElementsAre(first / 2, (first + 1) / 2));
    EXPECT_TRUE(batch->classes.empty());
    loader.recycle(std::move(*batch));
    ++taken;
  }
}

TEST(Loader, CarriesErrorsAndGoesOn) {
  const FakeDataset dataset;
  Loader loader(dataset, 2);
  EXPECT_TRUE(loader.request(Samples{666}));
  EXPECT_TRUE(loader.request(Samples{5}));
  EXPECT_FALSE(loader.request(Samples{6}));
  const auto failed = loader.take(Deadline::after(30));
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message, HasSubstr("sample 666"));
  EXPECT_THAT(loader.take(Deadline::after(30))->samples, ElementsAre(5));
}

TEST(Loader, DiscardedRequestsNeverArrive) {
  FakeDataset dataset;
  Loader loader(dataset, 3);
  EXPECT_TRUE(loader.request(Samples{1}));
  EXPECT_TRUE(loader.request(Samples{777}));  // is being read, or still waits, when it is discarded
  EXPECT_TRUE(loader.request(Samples{2}));
  loader.discard();
  EXPECT_EQ(loader.waiting(), 0U);
  EXPECT_TRUE(loader.request(Samples{3}));
  dataset.release();
  EXPECT_THAT(loader.take(Deadline::after(30))->samples, ElementsAre(3));
}

TEST(Loader, NamesADeadlineThatPassed) {
  FakeDataset dataset;
  Loader loader(dataset, 1);
  EXPECT_TRUE(loader.request(Samples{777}));
  const auto late = loader.take(Deadline::after(0.01));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kTimeout);
  dataset.release();
  EXPECT_THAT(loader.take(Deadline::after(30))->samples, ElementsAre(777));
}

TEST(Loader, ThreadsReadPartsOfABatch) {
  FakeDataset dataset;
  Loader loader(dataset, 2, {.threads = 3});
  ASSERT_TRUE(loader.request(Samples{4, 9, 2, 7}));
  ASSERT_TRUE(loader.request(Samples{3}));
  auto batch = loader.take(Deadline::after(30));
  ASSERT_TRUE(batch);
  EXPECT_THAT(batch->features, ElementsAre(4, -4, 9, -9, 2, -2, 7, -7));
  EXPECT_THAT(batch->values, ElementsAre(2, 4.5F, 1, 3.5F));
  batch = loader.take(Deadline::after(30));
  ASSERT_TRUE(batch);
  EXPECT_THAT(batch->values, ElementsAre(1.5F));
  ASSERT_TRUE(loader.request(Samples{1, 2, 666}));
  EXPECT_THAT(loader.take(Deadline::after(30)).error().message, HasSubstr("sample 666 is gone"));
}

TEST(Loader, PartsForWhichThereIsNoThreadAreReadAllTheSame) {
  const FakeDataset dataset;
  Batch batch;
  batch.samples = {4, 9, 2, 7};
  const NoThreads none;
  const Status status = read_batch(dataset, batch, {}, 3);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_THAT(batch.features, ElementsAre(4, -4, 9, -9, 2, -2, 7, -7));
  EXPECT_THAT(batch.values, ElementsAre(2, 4.5F, 1, 3.5F));
  batch.samples = {1, 2, 666};
  EXPECT_THAT(read_batch(dataset, batch, {}, 3).error().message, HasSubstr("sample 666 is gone"));
}

TEST(Loader, SaysThatThereIsNoThreadToReadAhead) {
  const FakeDataset dataset;
  const NoThreads none;
  Loader loader(dataset, 2);
  EXPECT_TRUE(loader.request(Samples{1, 2}));
  EXPECT_TRUE(loader.next_ids(Deadline::after(30)).empty());
  const auto refused = loader.take(Deadline::after(30));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("reading samples ahead: no thread could be started"));
}

TEST(Loader, AugmentsAsTheEpochSays) {
  const OnePixels dataset;
  Loader loader(dataset, 1, {.augmentation = {.crop_padding = 1, .seed = 5}});
  Samples samples(100);
  for (std::uint32_t i = 0; i < 100; ++i) samples[i] = i;
  const auto read = [&](std::uint64_t epoch) {
    EXPECT_TRUE(loader.request(samples, {}, epoch));
    return loader.take(Deadline::after(30))->features;
  };
  const std::vector<float> first = read(0);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(first, 1.0F)), 100.0 / 9, 15);  // of 9 moves one keeps the pixel
  EXPECT_EQ(first, read(0));
  EXPECT_NE(first, read(1));
}

}  // namespace
}  // namespace motley::data
