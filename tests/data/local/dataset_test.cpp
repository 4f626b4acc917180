// Datasets from files: values as the formats define them, and damage that is refused with file and place.
#include "motley/data/local/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <numeric>

#include "motley/base/os/file.h"
#include "motley/data/local/formats.h"
#include "tests/data/local/npy_bytes.h"

namespace motley::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A folder of files for one test.
class Folder {
 public:
  Folder() {
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("motley-data-{}-{}", ::getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    EXPECT_TRUE(write_file(path_ / name, content));
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

std::string idx(const std::vector<std::uint32_t>& sizes, std::string_view values, char type = 0x08) {
  std::string bytes = {0, 0, type, static_cast<char>(sizes.size())};
  for (const std::uint32_t size : sizes) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes += static_cast<char>(size >> shift);
    }
  }
  return bytes.append(values);
}

std::string gzip(std::string_view content) {
  std::string packed(content.size() + 1000, '\0');
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

struct Read {
  std::vector<float> features;
  std::vector<std::int64_t> classes;
  std::vector<float> values;
};

Read read_all(const Dataset& dataset, const std::vector<std::uint32_t>& samples) {
  const bool classes = dataset.target_kind() == TargetKind::kClass;
  Read read;
  read.features.resize(samples.size() * dataset.feature_count());
  const std::size_t targets = samples.size() * dataset.target_width();
  read.classes.resize(classes ? targets : 0);
  read.values.resize(classes ? 0 : targets);
  EXPECT_TRUE(dataset.read(samples, {read.features, read.classes, read.values}));
  return read;
}

// The message of an open that must fail.
std::string refusal(const DatasetSource& source) {
  const auto dataset = open_dataset(source);
  EXPECT_FALSE(dataset);
  return dataset ? "" : dataset.error().message;
}

TEST(Dataset, ReadsIdxPlainAndPacked) {
  const Folder folder;
  const std::string images = idx({3, 1, 2}, std::string("\x00\xff\x33\x66\x99\xcc", 6));
  const std::string labels = idx({3}, std::string("\x02\x00\x01", 3));
  for (const bool packed : {false, true}) {
    DatasetSource source;
    source.features = folder.write("images", packed ? gzip(images) : images);
    source.targets = folder.write("labels", packed ? gzip(labels) : labels);
    source.normalisation = {{0.2F}, {0.4F}};
    const auto dataset = open_dataset(source);
    ASSERT_TRUE(dataset) << dataset.error().message;
    EXPECT_EQ((*dataset)->size(), 3U);
    EXPECT_THAT((*dataset)->feature_shape(), ElementsAre(1, 1, 2));
    EXPECT_EQ((*dataset)->class_count(), 3U);
    const Read read = read_all(**dataset, {2, 0});
    EXPECT_THAT(read.classes, ElementsAre(1, 2));
    EXPECT_THAT(read.features, ElementsAre(testing::FloatEq(1.0F), testing::FloatEq(1.5F), testing::FloatEq(-0.5F),
                                           testing::FloatEq(2.0F)));
  }
}

TEST(Dataset, ReadsFashionMnist) {
  if (!std::filesystem::exists(kFashionMnistFolder)) {
    GTEST_SKIP() << "Debian's package dataset-fashion-mnist is not installed";
  }
  DatasetSource source = fashion_mnist(true);
  const auto training = open_dataset(source);
  ASSERT_TRUE(training) << training.error().message;
  EXPECT_EQ((*training)->size(), 60000U);
  EXPECT_THAT((*training)->feature_shape(), ElementsAre(1, 28, 28));
  EXPECT_EQ((*training)->class_count(), 10U);
  std::vector<std::uint32_t> all(60000);
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    all[i] = i;
  }
  const Read read = read_all(**training, all);
  EXPECT_EQ(std::count(read.classes.begin(), read.classes.end(), 7), 6000);
  double sum = 0, squares = 0;
  for (const float pixel : read.features) {
    sum += pixel;
    squares += static_cast<double>(pixel) * pixel;
  }
  const double count = static_cast<double>(read.features.size());
  EXPECT_NEAR(sum / count, 0, 1e-3);
  EXPECT_NEAR(squares / count, 1, 1e-3);
}

TEST(Dataset, MissingFashionMnistNamesThePackage) {
  DatasetSource source = fashion_mnist(true);
  source.features = std::filesystem::path(kFashionMnistFolder) / "no-such-file.gz";
  EXPECT_THAT(refusal(source), HasSubstr("apt-get install dataset-fashion-mnist"));
}

TEST(Dataset, RefusesDamagedIdx) {
  const Folder folder;
  const std::string images = idx({2, 2, 2}, "abcdefgh"), labels = idx({2}, std::string("\x00\x01", 2));
  DatasetSource source;
  source.targets = folder.write("labels", labels);
  source.features = "/nonexistent/images";
  EXPECT_THAT(refusal(source), HasSubstr("/nonexistent/images"));
  const auto with = [&](const std::string& bytes) {
    source.features = folder.write("images", bytes);
    return refusal(source);
  };
  EXPECT_THAT(with(images.substr(0, 20)),
              testing::AllOf(HasSubstr("4 values after offset 16"), HasSubstr("promise 8")));
  EXPECT_THAT(with(images + "x"), HasSubstr("9 values"));
  EXPECT_THAT(with(""), HasSubstr("no IDX file"));
  EXPECT_THAT(with("PNG image"), HasSubstr("no IDX file"));
  EXPECT_THAT(with(images.substr(0, 9)), HasSubstr("inside its header"));
  EXPECT_THAT(with(idx({2, 1, 1}, "abcdefgh", 0x0d)), HasSubstr("type 0x0d"));
  EXPECT_THAT(with(idx({0xffffffff, 0xffffffff, 0xffffffff}, "")), HasSubstr("too many"));
  EXPECT_THAT(with(idx({3, 1, 1}, "abc")), HasSubstr("3x1x1"));
  EXPECT_THAT(with(idx({0, 1, 1}, "")), HasSubstr("as many labels as images"));
  const std::string packed = gzip(images);
  EXPECT_THAT(with(packed.substr(0, packed.size() - 6)), HasSubstr("gzip data is cut short"));
  std::string damaged = gzip(images + std::string(5000, 'x'));
  damaged[damaged.size() - 7] = static_cast<char>(damaged[damaged.size() - 7] + 1);
  EXPECT_THAT(with(damaged), HasSubstr("gzip data is damaged"));
  source.limit_bytes = 1000;
  EXPECT_THAT(with(gzip(std::string(100000, 'x'))), HasSubstr("more than the 1000 bytes"));
  source.limit_bytes = 1 << 20;
  source.class_count = 1;
  EXPECT_THAT(with(images), HasSubstr("class 1"));
}

TEST(Dataset, ReadsCsv) {
  const Folder folder;
  DatasetSource source;
  source.format = DatasetSource::Format::kCsv;
  source.features =
      folder.write("table.csv", "\xef\xbb\xbfx,\"late, by\"\"h\"\"\",name,y\r\n1.5,2,\"a\nb\",0\r\n\n-3e2, +4 ,c,2\n");
  source.target_column = "y";
  source.class_count = 3;
  source.drop_columns = {"name"};
  auto dataset = open_dataset(source);
  ASSERT_TRUE(dataset) << dataset.error().message;
  EXPECT_EQ((*dataset)->class_count(), 3U);
  Read read = read_all(**dataset, {0, 1});
  EXPECT_THAT(read.features, ElementsAre(1.5F, 2, -300, 4));
  EXPECT_THAT(read.classes, ElementsAre(0, 2));

  source.target_kind = TargetKind::kReal;
  source.target_column = "late, by\"h\"";
  dataset = open_dataset(source);
  ASSERT_TRUE(dataset) << dataset.error().message;
  read = read_all(**dataset, {1});
  EXPECT_THAT(read.features, ElementsAre(-300, 2));
  EXPECT_THAT(read.values, ElementsAre(4));
}

TEST(Dataset, RefusesBadCsvByLineAndColumn) {
  const Folder folder;
  DatasetSource source;
  source.format = DatasetSource::Format::kCsv;
  source.target_column = "y";
  const auto with = [&](const std::string& text) {
    source.features = folder.write("t.csv", text);
    return refusal(source);
  };
  EXPECT_THAT(with("x,y\n1,0\nred,1\n"),
              testing::AllOf(HasSubstr("t.csv:3: column 'x' holds 'red'"), HasSubstr("data.one_hot_columns")));
  EXPECT_THAT(with("x,y\n\"a\nb\",0\n"), HasSubstr("t.csv:2: column 'x'"));
  EXPECT_THAT(with("x,y\n1,0\n,1\n"), HasSubstr("t.csv:3: column 'x' is missing ('')"));
  EXPECT_THAT(with("x,y\n1,0\n1\n"), HasSubstr("t.csv:3: 1 cells; the header names 2"));
  EXPECT_THAT(with("x,y\n1,0\n1,nan\n"), HasSubstr("t.csv:3: column 'y' is missing ('nan')"));
  EXPECT_THAT(with("x,y\ninf,0\n"), HasSubstr("finite"));
  EXPECT_THAT(with("x,y\n1e39,0\n"), HasSubstr("finite"));  // more than 32 bits hold
  EXPECT_THAT(with("x,y\n1,0.5\n"), HasSubstr("t.csv:2: column 'y': class 0.5"));
  EXPECT_THAT(with("x,y\n1,-1\n"), HasSubstr("class -1"));
  EXPECT_THAT(with("x,z\n1,0\n"), HasSubstr("no column 'y'"));
  EXPECT_THAT(with("x,x,y\n"), HasSubstr("two columns are named 'x'"));
  EXPECT_THAT(with("x, x,y\n"), HasSubstr("two columns are named 'x'"));
  EXPECT_THAT(with("x,,y\n"), HasSubstr("column 2 has no name"));
  EXPECT_THAT(with("x, ,y\n"), HasSubstr("column 2 has no name"));
  EXPECT_THAT(with("x,y\n"), HasSubstr("0 samples"));
  EXPECT_THAT(with(""), HasSubstr("column 1 has no name"));
  EXPECT_THAT(with("y\n1\n"), HasSubstr("of 0 features"));
  EXPECT_THAT(with("x,y\n\"1,0\n"), HasSubstr("t.csv:2: the quote that opens cell 1 is never closed"));
  EXPECT_THAT(with("x,y\n\"1\"2,0\n"), HasSubstr("closing quote"));
}

TEST(Dataset, RefusesLabelsThatADoubleDoesNotTellApart) {
  const Folder folder;
  DatasetSource source;
  source.format = DatasetSource::Format::kNpy;
  source.labels = ClassLabels::kLabel;
  source.features = folder.write("x.npy", npy<float>("<f4", "(2, 1)", {1, 2}));
  const std::int64_t most = (std::int64_t{1} << 53) - 1;
  source.targets = folder.write("y.npy", npy<std::int64_t>("<i8", "(2,)", {most - 1, most}));
  EXPECT_TRUE(open_dataset(source));
  source.targets = folder.write("y.npy", npy<std::int64_t>("<i8", "(2,)", {1234567890123456788, 1234567890123456789}));
  const auto refused = open_dataset(source);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("label 0 (counted from 0)"));
}

TEST(Dataset, ReadsNpyOfAllTypes) {
  const Folder folder;
  DatasetSource source;
  source.format = DatasetSource::Format::kNpy;
  source.target_kind = TargetKind::kReal;
  const auto convert_features = [&](const std::string& bytes) {
    source.features = folder.write("x.npy", bytes);
    const auto dataset = open_dataset(source);
    EXPECT_TRUE(dataset) << dataset.error().message;
    return read_all(**dataset, {1, 0}).features;
  };
  source.targets = folder.write("y.npy", npy<double>("<f8", "(2, 3)", {1, 2, 3, 4, 5, 6}));
  EXPECT_THAT(convert_features(npy<float>("<f4", "(2, 2)", {1, 2, 3, -4.5F})), ElementsAre(3, -4.5F, 1, 2));
  EXPECT_THAT(convert_features(npy<double>("<f8", "(2, 1)", {1, -2}, 2)), ElementsAre(-2, 1));
  EXPECT_THAT(convert_features(npy<std::int8_t>("|i1", "(2, 1)", {1, -2})), ElementsAre(-2, 1));
  EXPECT_THAT(convert_features(npy<std::uint8_t>("|u1", "(2, 1)", {1, 254})), ElementsAre(254, 1));
  EXPECT_THAT(convert_features(npy<std::int16_t>("<i2", "(2, 1)", {1, -300})), ElementsAre(-300, 1));
  EXPECT_THAT(convert_features(npy<std::int32_t>("<i4", "(2, 1)", {1, -70000})), ElementsAre(-70000, 1));
  EXPECT_THAT(convert_features(npy<std::int64_t>("<i8", "(2, 1)", {1, -70000})), ElementsAre(-70000, 1));
  const auto dataset = open_dataset(source);
  EXPECT_EQ((*dataset)->target_width(), 3U);
  EXPECT_THAT(read_all(**dataset, {1}).values, ElementsAre(4, 5, 6));
  source.target_kind = TargetKind::kClass;
  source.targets = folder.write("y.npy", npy<std::int64_t>("<i8", "(2,)", {4, 0}));
  source.class_count = 5;
  EXPECT_EQ((*open_dataset(source))->class_count(), 5U);
}

TEST(Dataset, CutsTextIntoWindowsAndTheBytesThatFollow) {
  const Folder folder;
  DatasetSource source;
  source.format = DatasetSource::Format::kText;
  source.sequence = 3;
  const std::string text = "ab\xffyz fgh";  // nine bytes: the third window has no byte after it
  for (const bool packed : {false, true}) {
    source.features = folder.write("text", packed ? gzip(text) : text);
    const auto dataset = open_dataset(source);
    ASSERT_TRUE(dataset) << dataset.error().message;
    EXPECT_EQ((*dataset)->size(), 2U);
    EXPECT_THAT((*dataset)->feature_shape(), ElementsAre(3));
    EXPECT_EQ((*dataset)->class_count(), 256U);
    EXPECT_EQ((*dataset)->target_width(), 3U);
    const Read read = read_all(**dataset, {1, 0});
    EXPECT_THAT(read.features, ElementsAre('y', 'z', ' ', 'a', 'b', 255));
    EXPECT_THAT(read.classes, ElementsAre('z', ' ', 'f', 'b', 255, 'y'));
  }
  source.features = folder.write("text", text + "i");
  EXPECT_EQ((*open_dataset(source))->size(), 3U);
}

TEST(Dataset, PartsOfATextHaveNoByteInCommon) {
  const Folder folder;
  DatasetSource source;
  source.format = DatasetSource::Format::kText;
  source.sequence = 1;
  source.features = folder.write("text", "0123456789");
  const auto bytes = [&](double begin, double end) {
    source.text_begin = begin;
    source.text_end = end;
    const auto dataset = open_dataset(source);
    EXPECT_TRUE(dataset) << dataset.error().message;
    std::vector<std::uint32_t> all((*dataset)->size());
    std::iota(all.begin(), all.end(), 0);
    const Read read = read_all(**dataset, all);
    return std::string(read.features.begin(), read.features.end()) + static_cast<char>(read.classes.back());
  };
  EXPECT_EQ(bytes(0, 0.72), "0123456");
  EXPECT_EQ(bytes(0.72, 1), "789");
}

TEST(Dataset, RefusesTextThatIsTooShort) {
  const Folder folder;
  DatasetSource source;
  source.format = DatasetSource::Format::kText;
  source.features = folder.write("empty.txt", "");
  EXPECT_THAT(refusal(source), testing::AllOf(HasSubstr("empty.txt: 0 of its 0 tokens"), HasSubstr("accepted: 65")));
  source.features = folder.write("short.txt", std::string(100, 'x'));
  EXPECT_TRUE(open_dataset(source));
  source.text_begin = 0.36;
  EXPECT_THAT(refusal(source), HasSubstr("short.txt: 64 of its 100 tokens"));
  source.features = "/nonexistent/text";
  EXPECT_THAT(refusal(source), HasSubstr("/nonexistent/text"));
}

TEST(Dataset, AMissingTextNamesThePackage) {
  EXPECT_THAT(install_hint(kJargonFile), HasSubstr("apt-get install jargon-text"));
  EXPECT_EQ(install_hint("/usr/share/doc/jargon-text/other"), "");
}

TEST(Dataset, RefusesDamagedNpy) {
  const Folder folder;
  DatasetSource source;
  source.format = DatasetSource::Format::kNpy;
  source.targets = folder.write("y.npy", npy<std::int64_t>("<i8", "(2,)", {1, 0}));
  const auto with = [&](const std::string& bytes) {
    source.features = folder.write("x.npy", bytes);
    return refusal(source);
  };
  const std::string good = npy<float>("<f4", "(2, 2)", {1, 2, 3, 4});
  EXPECT_THAT(with(good.substr(0, good.size() - 1)), HasSubstr("promises 16"));
  EXPECT_THAT(with(good.substr(0, 40)), HasSubstr("inside its npy header"));
  EXPECT_THAT(with("x,y\n1,2 and so on"), HasSubstr("no npy file"));
  EXPECT_THAT(with(npy<float>(">f4", "(2, 2)", {1, 2, 3, 4})), HasSubstr("'>f4'"));
  EXPECT_THAT(with(npy<float>("|O", "(2, 2)", {1, 2, 3, 4})), HasSubstr("'|O'"));
  EXPECT_THAT(with(npy<float>("<f4", "(2, 2)", {1, 2, 3, 4}, 1, "Maybe")), HasSubstr("accepted: False, True"));
  EXPECT_THAT(with(npy<float>("<f4", "(2, -2)", {1, 2, 3, 4})), HasSubstr("'-2'"));
  EXPECT_THAT(with(npy<float>("<f4", "(9999999999, 9999999999)", {})), HasSubstr("too many"));
  EXPECT_THAT(with(npy<float>("<f4", "(4,)", {1, 2, 3, 4})), HasSubstr("(N, ...)"));
  EXPECT_THAT(with(npy<float>("<f4", "(2, 1)", {1, NAN})), HasSubstr("value 1"));
  EXPECT_THAT(with(npy<float>("<f4", "(3, 1)", {1, 2, 3})), HasSubstr("(3, 1)"));
}

TEST(Dataset, NormalisationIsMeasuredAndChecked) {
  const Folder folder;
  DatasetSource source;
  source.format = DatasetSource::Format::kCsv;
  source.features = folder.write("t.csv", "a,b,y\n1,5,0\n3,5,1\n");
  source.target_column = "y";
  auto dataset = open_dataset(source);
  const auto measured = measure_normalisation(**dataset);
  ASSERT_TRUE(measured);
  EXPECT_THAT(measured->mean, ElementsAre(2, 5));
  EXPECT_THAT(measured->deviation, ElementsAre(1, 1));
  source.normalisation = *measured;
  dataset = open_dataset(source);
  EXPECT_THAT(read_all(**dataset, {0, 1}).features, ElementsAre(-1, 0, 1, 0));
  source.normalisation = {{1, 2, 3}, {1, 1, 1}};
  EXPECT_THAT(refusal(source), HasSubstr("3 means"));
  source.normalisation = {{1}, {0}};
  EXPECT_THAT(refusal(source), HasSubstr("deviation 0"));
}

}  // namespace
}  // namespace motley::data
