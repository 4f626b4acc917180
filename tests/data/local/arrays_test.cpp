// Arrays from npy files: orders of axes against the same numbers moved by hand, classes and labels, and files that are
// checked as they are read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "motley/base/os/file.h"
#include "tests/data/local/npy_bytes.h"
#include "tests/data/local/source_test.h"

namespace motley::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Arrays : public SourceTest {
 protected:
  Arrays() {
    source_.format = DatasetSource::Format::kNpy;
    targets<std::int64_t>("<i8", "(2,)", {0, 1});
  }
  template <class T>
  void features(const std::string& type, const std::string& shape, const std::vector<T>& values,
                const std::string& fortran_order = "False") {
    source_.features = folder_.path / "x.npy";
    EXPECT_TRUE(write_file(source_.features, npy<T>(type, shape, values, 1, fortran_order)));
  }
  template <class T>
  void targets(const std::string& type, const std::string& shape, const std::vector<T>& values,
               const std::string& fortran_order = "False") {
    source_.targets = folder_.path / "y.npy";
    EXPECT_TRUE(write_file(source_.targets, npy<T>(type, shape, values, 1, fortran_order)));
  }
};

std::vector<float> count_up(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

TEST_F(Arrays, ChannelsAreFoundWhereOneAxisCanBeTheirs) {
  features("<f4", "(2, 5, 6, 3)", count_up(180));
  auto dataset = open();
  EXPECT_THAT(dataset->feature_shape(), ElementsAre(3, 5, 6));
  EXPECT_THAT(dataset->notes(), ElementsAre(HasSubstr("last axis is taken for the channels")));
  const Batch batch = read(*dataset, {1});
  for (int channel = 0; channel < 3; ++channel) {
    for (int pixel = 0; pixel < 30; ++pixel) {
      EXPECT_EQ(batch.features[static_cast<std::size_t>(30 * channel + pixel)], 90 + 3 * pixel + channel);
    }
  }
  features("<f4", "(2, 3, 5, 6)", count_up(180));
  dataset = open();
  EXPECT_THAT(dataset->feature_shape(), ElementsAre(3, 5, 6));
  EXPECT_THAT(dataset->notes(), ElementsAre());
  EXPECT_EQ(read(*dataset, {1}).features[7], 97);
}

TEST_F(Arrays, ChannelsThatAreAmbiguousAreAskedFor) {
  features("<f4", "(2, 3, 2, 4)", count_up(48));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("data.channels: auto cannot tell"), HasSubstr("(2, 3, 2, 4)"),
                               HasSubstr("accepted: first"), HasSubstr("last (N x H x W x C)")));
  source_.channels = ChannelOrder::kFirst;
  EXPECT_THAT(open()->feature_shape(), ElementsAre(3, 2, 4));
  source_.channels = ChannelOrder::kLast;
  EXPECT_THAT(open()->feature_shape(), ElementsAre(4, 3, 2));
  source_.channels = ChannelOrder::kAuto;
  features("<f4", "(2, 8, 2, 8)", count_up(256));
  EXPECT_THAT(refusal(), HasSubstr("none of the first and last axis"));
  source_.channels = ChannelOrder::kLast;
  features("<f4", "(2, 4)", count_up(8));
  EXPECT_THAT(refusal(), HasSubstr("data.channels: last, but"));
}

TEST_F(Arrays, OtherSetsHaveTheTrainingSetsChannels) {
  features("<f4", "(2, 5, 5, 3)", count_up(150));
  const auto training = open();
  features("<f4", "(2, 3, 5, 3)", count_up(90));  // which by itself is ambiguous
  source_.preprocessing = &training->preprocessing();
  EXPECT_THAT(open()->feature_shape(), ElementsAre(3, 3, 5));
}

TEST_F(Arrays, FortranOrderReadsAsCOrder) {
  features("<f4", "(2, 2, 3)", std::vector<float>{0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11}, "True");
  targets("<f8", "(2, 3)", std::vector<double>{0, 3, 1, 4, 2, 5}, "True");
  source_.target_kind = TargetKind::kReal;
  const Batch batch = read(*open(), {1, 0});
  EXPECT_THAT(batch.features, ElementsAre(6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5));
  EXPECT_THAT(batch.values, ElementsAre(3, 4, 5, 0, 1, 2));
}

TEST_F(Arrays, MoreTypesOfNumbers) {
  const auto first = [&](const auto& type, const auto& values) {
    features(type, "(2, 1)", values);
    return read(*open(), {0, 1}).features;
  };
  EXPECT_THAT(first("|b1", std::vector<std::uint8_t>{1, 0}), ElementsAre(1, 0));
  EXPECT_THAT(first("<u2", std::vector<std::uint16_t>{65535, 1}), ElementsAre(65535, 1));
  EXPECT_THAT(first("<u4", std::vector<std::uint32_t>{4000000000U, 1}), ElementsAre(4000000000.0F, 1));
  EXPECT_THAT(first("<u8", std::vector<std::uint64_t>{1ULL << 63, 1}), ElementsAre(0x1.0p63F, 1));
  features("|u1", "(2, 1)", std::vector<std::uint8_t>{200, 7});
  EXPECT_NE(open()->byte_features(), nullptr);  // which a data server sends as they are
}

TEST_F(Arrays, ClassesThatNoSampleHasAreRefused) {
  features("<f4", "(2, 1)", count_up(2));
  targets<std::int64_t>("<i8", "(2,)", {1, 2});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("y.npy: classes are 1 to 2, but no sample has class 0"),
                               HasSubstr("data.target_kind: label"), HasSubstr("data.num_classes: 3")));
  source_.class_count = 3;
  EXPECT_EQ(open()->class_count(), 3U);
  source_.class_count = 2;
  EXPECT_THAT(refusal(), HasSubstr("value 1 (counted from 0): class 2 was found where 2 classes"));
}

TEST_F(Arrays, LabelsAreNumberedInTheirOrder) {
  features("<f4", "(4, 1)", count_up(4));
  targets<std::int64_t>("<i8", "(4,)", {10, -3, 9, 10});
  source_.labels = ClassLabels::kLabel;
  const auto training = open();
  EXPECT_EQ(training->class_count(), 3U);
  EXPECT_THAT(training->preprocessing().class_names, ElementsAre("-3", "9", "10"));
  EXPECT_THAT(read(*training, {0, 1, 2, 3}).classes, ElementsAre(2, 0, 1, 2));
  features("<f4", "(1, 1)", count_up(1));
  source_.preprocessing = &training->preprocessing();
  targets<std::int64_t>("<i8", "(1,)", {9});
  const auto test = open();
  EXPECT_EQ(test->class_count(), 3U);
  EXPECT_THAT(read(*test, {0}).classes, ElementsAre(1));
  targets<std::int64_t>("<i8", "(1,)", {8});
  EXPECT_THAT(refusal(), HasSubstr("label '8' is none of the training data's; accepted: -3, 9, 10"));
}

TEST_F(Arrays, ALabelOfMinusZeroIsZero) {
  features("<f4", "(3, 1)", count_up(3));
  targets<double>("<f8", "(3,)", {-0.0, 1, 0.0});
  source_.labels = ClassLabels::kLabel;
  const auto dataset = open();
  EXPECT_THAT(dataset->preprocessing().class_names, ElementsAre("0", "1"));
  EXPECT_THAT(read(*dataset, {0, 1, 2}).classes, ElementsAre(0, 1, 0));
}

TEST_F(Arrays, LargeFilesAreCheckedAsTheyAreRead) {
  features("<f4", "(2, 2)", std::vector<float>{1, 2, 3, NAN});
  EXPECT_THAT(refusal(), HasSubstr("x.npy: value 3 (counted from 0) is nan"));
  source_.checked_bytes = 15;  // one less than there are
  const auto dataset = open();
  EXPECT_THAT(read(*dataset, {0}).features, ElementsAre(1, 2));
  Batch batch;
  batch.samples = {0, 1};
  const Status status = read_batch(*dataset, batch);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("x.npy: feature 1 of sample 1 (counted from 0) is nan"));
}

TEST_F(Arrays, TheTrainingSetsNormalisationHoldsForAll) {
  features("<f4", "(2, 1)", std::vector<float>{1, 5});
  source_.normalise = true;
  const auto training = open();
  EXPECT_THAT(read(*training, {0, 1}).features, ElementsAre(-1, 1));
  features("<f4", "(2, 1)", std::vector<float>{3, 7});
  source_.preprocessing = &training->preprocessing();
  EXPECT_THAT(read(*open(), {0, 1}).features, ElementsAre(0, 2));
}

}  // namespace
}  // namespace motley::data
