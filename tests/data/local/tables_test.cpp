// Tables whose cells are missing, whose targets are labels, and whose columns become one-hot features: values worked
// out by hand, and the training set's are those of its other sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "motley/base/os/file.h"
#include "tests/data/local/source_test.h"

namespace motley::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Tables : public SourceTest {
 protected:
  Tables() {
    source_.format = DatasetSource::Format::kCsv;
    source_.features = folder_.path / "t.csv";
    source_.target_column = "y";
  }
  std::unique_ptr<Dataset> open(const std::string& text) const {
    EXPECT_TRUE(write_file(source_.features, text));
    return SourceTest::open();
  }
  std::string refusal(const std::string& text) const {
    EXPECT_TRUE(write_file(source_.features, text));
    return SourceTest::refusal();
  }
  static Batch read(const Dataset& dataset) {
    std::vector<std::uint32_t> all(dataset.size());
    std::iota(all.begin(), all.end(), 0U);
    return SourceTest::read(dataset, std::move(all));
  }
};

constexpr const char* kWithGaps = "a,b,y\n1,10,0\n,20,1\n4,NA,0\n 9 ,60,1\n";

TEST_F(Tables, MissingCellsAreAnErrorUnlessSaid) {
  EXPECT_THAT(refusal(kWithGaps), AllOf(HasSubstr("t.csv:3: column 'a' is missing ('')"),
                                        HasSubstr("data.missing: drop, mean, median or zero")));
  for (const char* word : {"NA", "N/A", "nan", "NaN", "null", "None", "?"}) {
    EXPECT_THAT(refusal(fmt::format("a,y\n1,0\n{},1\n", word)), HasSubstr(fmt::format("missing ('{}')", word)));
  }
}

TEST_F(Tables, NumbersHaveOneSign) {
  EXPECT_THAT(read(*open("a,y\n+5,0\n-5,1\n")).features, ElementsAre(5, -5));
  for (const char* word : {"+-5", "++5", "-+5", "--5"}) {
    EXPECT_THAT(refusal(fmt::format("a,y\n1,0\n{},1\n", word)), HasSubstr(fmt::format("column 'a' holds '{}'", word)));
  }
}

// As blanks around cells are.
TEST_F(Tables, BlanksAroundTheNamesOfColumnsAreNoPartOfThem) {
  source_.drop_columns = {"b"};
  const auto dataset = open("a, b , y\n1,2,0\n3,4,1\n");
  EXPECT_THAT(dataset->preprocessing().columns, ElementsAre("a"));
  const Batch batch = read(*dataset);
  EXPECT_THAT(batch.features, ElementsAre(1, 3));
  EXPECT_THAT(batch.classes, ElementsAre(0, 1));
}

TEST_F(Tables, RowsWithMissingCellsAreDropped) {
  source_.missing = MissingCells::kDrop;
  const auto dataset = open("a,b,y\n1,10,0\n,20,1\n4,NA,0\n9,60,1\n5,5,\n");
  EXPECT_THAT(read(*dataset).features, ElementsAre(1, 10, 9, 60));
  EXPECT_EQ(dataset->skipped().lines, 0U);
  EXPECT_THAT(dataset->notes(), ElementsAre(HasSubstr("3 of 5 rows have missing cells and are left out")));
}

TEST_F(Tables, MissingCellsAreFilledByTheTrainingSetsColumns) {
  const auto filled = [&](MissingCells how) {
    source_.preprocessing = nullptr;
    source_.missing = how;
    const auto training = open(kWithGaps);
    const std::vector<float> features = read(*training).features;
    EXPECT_THAT(features, ElementsAre(1, 10, testing::_, 20, 4, testing::_, 9, 60));
    EXPECT_THAT(training->notes(), ElementsAre(AllOf(HasSubstr("1 of 'a' by"), HasSubstr("1 of 'b' by"))));
    source_.preprocessing = &training->preprocessing();
    EXPECT_THAT(read(*open("a,b,y\n,,0\n")).features, ElementsAre(features[2], features[5]));
    return std::pair(features[2], features[5]);
  };
  EXPECT_EQ(filled(MissingCells::kMean), std::pair(14.0F / 3, 30.0F));
  EXPECT_EQ(filled(MissingCells::kMedian), std::pair(4.0F, 20.0F));
  EXPECT_EQ(filled(MissingCells::kZero), std::pair(0.0F, 0.0F));
  source_.preprocessing = nullptr;
  source_.missing = MissingCells::kMedian;
  EXPECT_EQ(read(*open("a,y\n1,0\n2,1\n8,0\n4,1\n,0\n")).features.back(), 3);  // of an even number of values
  EXPECT_THAT(refusal("a,b,y\n,1,0\n,2,1\n"), HasSubstr("column 'a' is missing in every row"));
  EXPECT_THAT(refusal("a,y\n1,0\n2,\n"), HasSubstr("t.csv:3: column 'y' is missing ('')"));  // targets are not filled
}

TEST_F(Tables, IndicatorsSayWhereCellsWereMissing) {
  source_.missing = MissingCells::kZero;
  source_.missing_indicator = true;
  const auto training = open("a,b,c,y\n1,10,5,0\n,20,6,1\n4,NA,7,0\n");  // no cell of c is missing
  EXPECT_THAT(training->feature_shape(), ElementsAre(5));
  EXPECT_THAT(read(*training).features, ElementsAre(1, 10, 5, 0, 0, 0, 20, 6, 1, 0, 4, 0, 7, 0, 1));
  source_.preprocessing = &training->preprocessing();
  EXPECT_THAT(read(*open("a,b,c,y\n,1,,0\n")).features, ElementsAre(0, 1, 0, 1, 0));
}

TEST_F(Tables, LabelsBecomeClassesInTheirOrder) {
  const auto training = open("x,y\n1,virginica\n2,setosa\n3, versicolor \n4,setosa\n");
  EXPECT_EQ(training->class_count(), 3U);
  EXPECT_THAT(training->preprocessing().class_names, ElementsAre("setosa", "versicolor", "virginica"));
  EXPECT_THAT(read(*training).classes, ElementsAre(2, 0, 1, 0));
  EXPECT_THAT(training->notes(), ElementsAre(HasSubstr("column 'y' holds 3 labels")));
  source_.preprocessing = &training->preprocessing();
  const auto test = open("x,y\n1,versicolor\n");
  EXPECT_EQ(test->class_count(), 3U);
  EXPECT_THAT(read(*test).classes, ElementsAre(1));
  EXPECT_THAT(refusal("x,y\n1,versicolour\n"), AllOf(HasSubstr("t.csv:2: column 'y': label 'versicolour'"),
                                                     HasSubstr("accepted: setosa, versicolor, virginica")));
}

TEST_F(Tables, NumbersAmongLabelsAreNotGuessedAt) {
  EXPECT_THAT(refusal("x,y\n1,0\n2,1\n3,O\n"),
              AllOf(HasSubstr("t.csv:4: column 'y' holds 'O', while other rows hold numbers"),
                    HasSubstr("data.target_kind: label")));
  source_.labels = ClassLabels::kLabel;
  EXPECT_THAT(open("x,y\n1,0\n2,1\n3,O\n")->preprocessing().class_names, ElementsAre("0", "1", "O"));
  const auto numbers = open("x,y\n1,10\n2,9\n3,-1\n");
  EXPECT_THAT(numbers->preprocessing().class_names, ElementsAre("-1", "9", "10"));  // by value
  EXPECT_THAT(read(*numbers).classes, ElementsAre(2, 1, 0));
}

TEST_F(Tables, ClassesThatNoRowHasAreRefused) {
  EXPECT_THAT(refusal("x,y\n1,1\n2,2\n3,4\n"), HasSubstr("classes are 1 to 4, but no sample has class 0, 3;"));
}

TEST_F(Tables, OneHotColumnsHaveAFeatureForEachValueOfTheTrainingSet) {
  source_.one_hot = {"size", "colour"};
  const auto training = open("colour,x,size,y\nred,1,10,0\n,2,9,1\nblue,3,10,0\n");
  EXPECT_THAT(training->feature_shape(), ElementsAre(6));
  // x; size 9 and 10; colour "", blue and red.
  EXPECT_THAT(read(*training).features, ElementsAre(1, 0, 1, 0, 0, 1, 2, 1, 0, 1, 0, 0, 3, 0, 1, 0, 1, 0));
  source_.preprocessing = &training->preprocessing();
  const auto test = open("colour,x,size,y\ngreen,4,9,1\n");
  EXPECT_THAT(read(*test).features, ElementsAre(4, 1, 0, 0, 0, 0));
  EXPECT_THAT(test->notes(),
              ElementsAre(HasSubstr("1 cells of one-hot columns have values that the training data lacks")));
  source_.preprocessing = nullptr;
  source_.one_hot = {"colour"};
  std::string many = "colour,y\n";
  for (int i = 0; i < 1001; ++i) many += fmt::format("c{},{}\n", i, i % 2);
  EXPECT_THAT(refusal(many), HasSubstr("column 'colour' of data.one_hot_columns has 1001 different values"));
}

TEST_F(Tables, OtherSetsHaveTheTrainingSetsColumns) {
  const auto training = open("a,b,y\n1,2,0\n3,4,1\n");
  source_.preprocessing = &training->preprocessing();
  EXPECT_THAT(refusal("b,a,y\n1,2,0\n"),
              HasSubstr("its columns of numbers are b, a; accepted: those of the training data "
                        "in the same order, a, b"));
}

}  // namespace
}  // namespace motley::data
