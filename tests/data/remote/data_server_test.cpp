// A data server and the datasets that read from it, over loopback: every format gives what the files give, whatever is
// asked for and in whatever order; and what happens to those whom it does not know, or who lose it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <thread>

#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/data/local/clicks.h"
#include "motley/data/local/loader.h"
#include "motley/data/remote/data_server.h"
#include "motley/data/remote/remote_dataset.h"
#include "motley/net/socket.h"

namespace motley::data {
namespace {

using data::Batch;
using data::Dataset;
using data::DatasetSource;
using data::Parts;
using testing::AllOf;
using testing::HasSubstr;

class DataNodeTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("motley-data-server-{}", ::getpid());
    std::filesystem::create_directories(folder_);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder_); }

  static std::filesystem::path write(const std::string& name, std::string_view content) {
    EXPECT_TRUE(write_file(folder_ / name, content));
    return folder_ / name;
  }

  // A small dataset of each format, made of random numbers.
  static std::unique_ptr<Dataset> dataset(const std::string& format) {
    Random random(11);
    DatasetSource source;
    if (format == "clicks") {
      auto clicks = data::make_clicks({.samples = 300, .rows = 5000});
      EXPECT_TRUE(clicks);
      return clicks ? std::move(*clicks) : nullptr;
    }
    if (format == "criteo") {
      std::string text;
      for (int i = 0; i < 300; ++i) {
        text += std::to_string(random.below(2));
        for (int k = 0; k < 13; ++k) text += fmt::format("\t{}", k == 5 ? "" : std::to_string(random.below(1000)));
        for (int k = 0; k < 26; ++k) text += fmt::format("\t{:08x}", random.below(100));
        text += '\n';
      }
      source.format = DatasetSource::Format::kCriteo;
      source.features = write("clicks.tsv", text);
    } else if (format == "idx") {
      std::string images("\0\0\x08\x03\0\0\0\x64\0\0\0\x03\0\0\0\x05", 16), labels("\0\0\x08\x01\0\0\0\x64", 8);
      for (int i = 0; i < 100 * 15; ++i) images += static_cast<char>(random.below(256));
      for (int i = 0; i < 100; ++i) labels += static_cast<char>(random.below(7));
      source.features = write("images", images);
      source.targets = write("labels", labels);
      source.normalisation = {{0.3F}, {0.7F}};
    } else if (format == "csv") {
      std::string text = "a,colour,y,b\n";
      for (int i = 0; i < 150; ++i) {
        text += fmt::format("{},colour{},label{},{}\n", random.uniform(), random.below(9), random.below(5),
                            random.uniform());
      }
      source.format = DatasetSource::Format::kCsv;
      source.features = write("table.csv", text + "this,is,malformed\n");
      source.target_column = "y";
      source.categories = {"colour"};
      source.malformed_share = 0.1;
      source.normalisation = {{0.4F, 0.6F}, {0.3F, 0.2F}};
    } else if (format == "npy") {
      const auto npy = [&](const std::string& shape, std::size_t count) {
        std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': {}, }}", shape);
        header.resize(117, ' ');
        std::string bytes = std::string("\x93NUMPY\x01\0", 8) + std::string("\x76\0", 2) + header + "\n";
        for (std::size_t i = 0; i < count; ++i) {
          const auto value = static_cast<float>(random.uniform());
          bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
        }
        return bytes;
      };
      source.format = DatasetSource::Format::kNpy;
      source.features = write("x.npy", npy("(80, 2, 3)", 480));
      source.targets = write("y.npy", npy("(80, 4)", 320));
      source.target_kind = data::TargetKind::kReal;
    } else if (format == "tokens") {
      std::string stream;
      for (int i = 0; i < 3000; ++i)
        stream += {static_cast<char>(random.below(256)), static_cast<char>(random.below(190))};
      source.format = DatasetSource::Format::kTokens;
      source.features = write("train.bin", stream);
      source.sequence = 17;
      source.class_count = 50'000;
    } else {
      std::string text;
      for (int i = 0; i < 3000; ++i) text += static_cast<char>(random.below(256));
      source.format = DatasetSource::Format::kText;
      source.features = write("text", text);
      source.sequence = 17;
    }
    auto opened = data::open_dataset(source);
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? std::move(*opened) : nullptr;
  }

  std::unique_ptr<DataServer> node(std::unique_ptr<Dataset> training, std::unique_ptr<Dataset> test = nullptr,
                                   std::uint16_t port = 0) const {
    auto started = DataServer::start({.listen = {"127.0.0.1", port}}, token_,
                                     {std::move(training), std::move(test), "data.name: fake\ndata.target: y\n"});
    EXPECT_TRUE(started) << started.error().message;
    return started ? std::move(*started) : nullptr;
  }

  DataServerAccess access(const net::Endpoint& endpoint) const {
    DataServerAccess access;
    access.endpoint = endpoint;
    access.token = [token = token_]() -> Result<net::Secret> { return token; };
    access.claim.identity = {.job = "job", .tenant = "local", .rank = 3, .session = 77, .epoch = 1};
    access.keys = "data.name: fake\ndata.target: y\n";
    access.join_seconds = 20;
    access.read_seconds = 20;
    return access;
  }

  static inline std::filesystem::path folder_;
  const net::Secret token_ = net::Secret::generate();
};

Batch make_batch(const Dataset& dataset, std::vector<std::uint32_t> samples, Parts parts = {}) {
  Batch batch;
  batch.samples = std::move(samples);
  const Status read = read_batch(dataset, batch, parts);
  EXPECT_TRUE(read) << read.error().message;
  return batch;
}

void expect_equal(const Batch& one, const Batch& other) {
  EXPECT_EQ(one.samples, other.samples);
  EXPECT_EQ(one.features, other.features);  // bitwise but for the sign of zero; there are no NaNs
  EXPECT_EQ(one.classes, other.classes);
  EXPECT_EQ(one.values, other.values);
  EXPECT_EQ(one.ids, other.ids);
}

std::vector<std::uint32_t> random_samples(Random& random, std::uint32_t size) {
  std::vector<std::uint32_t> samples(1 + random.below(40));
  for (std::uint32_t& sample : samples) sample = static_cast<std::uint32_t>(random.below(size));
  return samples;
}

TEST_F(DataNodeTest, EveryFormatReadsAsItsFiles) {
  for (const char* format : {"idx", "csv", "npy", "text", "tokens", "criteo", "clicks"}) {
    SCOPED_TRACE(format);
    const auto local = dataset(format);
    const auto served = node(dataset(format));
    const auto remote = RemoteDataset::open(access(served->endpoint()));
    ASSERT_TRUE(remote) << remote.error().message;
    EXPECT_EQ((*remote)->size(), local->size());
    EXPECT_EQ((*remote)->feature_shape(), local->feature_shape());
    EXPECT_EQ((*remote)->target_kind(), local->target_kind());
    EXPECT_EQ((*remote)->class_count(), local->class_count());
    EXPECT_EQ((*remote)->target_width(), local->target_width());
    EXPECT_EQ((*remote)->categories(), local->categories());
    EXPECT_EQ((*remote)->preprocessing().class_names, local->preprocessing().class_names);
    EXPECT_EQ((*remote)->skipped().lines, local->skipped().lines);
    EXPECT_EQ((*remote)->skipped().first, local->skipped().first);
    Random random(5);
    for (int i = 0; i < 40; ++i) {
      const Parts parts[] = {{true, true}, {true, false}, {false, true}};
      const Parts part = parts[random.below(3)];
      const auto samples = random_samples(random, local->size());
      expect_equal(make_batch(**remote, samples, part), make_batch(*local, samples, part));
    }
  }
}

// The loader asks ahead, and throws requests away at every moment.
TEST_F(DataNodeTest, WhatIsAskedAheadComesInOrder) {
  const auto local = dataset("criteo");
  const auto served = node(dataset("criteo"));
  const auto remote = RemoteDataset::open(access(served->endpoint()));
  ASSERT_TRUE(remote) << remote.error().message;
  data::Loader loader(**remote, 4);
  std::deque<std::vector<std::uint32_t>> waiting;
  Random random(6);
  for (int i = 0; i < 500; ++i) {
    const auto choice = random.below(10);
    if (choice == 0) {
      loader.discard();
      waiting.clear();
    } else if (choice < 6) {
      const auto samples = random_samples(random, local->size());
      if (loader.request(samples)) waiting.push_back(samples);
    } else if (!waiting.empty()) {
      const auto batch = loader.take(Deadline::after(30));
      ASSERT_TRUE(batch) << batch.error().message;
      expect_equal(*batch, make_batch(*local, waiting.front()));
      waiting.pop_front();
    }
  }
}

TEST_F(DataNodeTest, AnswersOfManyPieces) {
  const auto local = dataset("criteo");
  const auto served = node(dataset("criteo"));
  for (const auto encryption : {net::Encryption::kOff, net::Encryption::kOn}) {
    DataServerAccess own = access(served->endpoint());
    own.encryption = encryption;
    const auto remote = RemoteDataset::open(own);
    ASSERT_TRUE(remote) << remote.error().message;
    std::vector<std::uint32_t> samples(samples_in_answer((*remote)->description(), {}) * 5 / 2);
    for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<std::uint32_t>(i * 7 % local->size());
    expect_equal(make_batch(**remote, samples), make_batch(*local, samples));
  }
}

TEST_F(DataNodeTest, ManyReadersAndBothSets) {
  const auto training = dataset("csv");
  const auto test = dataset("text");
  const auto served = node(dataset("csv"), dataset("text"));
  std::vector<std::thread> threads;
  for (int reader = 0; reader < 6; ++reader) {
    threads.emplace_back([&, reader] {
      DataServerAccess own = access(served->endpoint());
      own.set = reader % 2 == 0 ? Set::kTraining : Set::kTest;
      own.encryption = reader % 3 == 0 ? net::Encryption::kOn : net::Encryption::kOff;
      const Dataset& local = reader % 2 == 0 ? *training : *test;
      const auto remote = RemoteDataset::open(own);
      ASSERT_TRUE(remote) << remote.error().message;
      Random random(static_cast<std::uint64_t>(reader));
      for (int i = 0; i < 50; ++i) {
        const auto samples = random_samples(random, local.size());
        expect_equal(make_batch(**remote, samples), make_batch(local, samples));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(DataNodeTest, AReaderThatKnowsTheDescriptionConnectsWhenItReads) {
  const auto local = dataset("idx");
  auto served = node(dataset("idx"));
  const auto first = RemoteDataset::open(access(served->endpoint()));
  ASSERT_TRUE(first) << first.error().message;
  const auto again = decode_description(encode((*first)->description()));
  ASSERT_TRUE(again);
  DataServerAccess later = access(served->endpoint());
  bool asked = false;
  later.token = [&]() -> Result<net::Secret> {
    asked = true;
    return token_;
  };
  const RemoteDataset remote(later, *again);
  EXPECT_EQ(remote.size(), local->size());
  EXPECT_FALSE(asked);
  expect_equal(make_batch(remote, {3, 1}), make_batch(*local, {3, 1}));
  EXPECT_TRUE(asked);
}

TEST_F(DataNodeTest, ANodeThatComesBackGoesUnnoticed) {
  const auto local = dataset("csv");
  auto served = node(dataset("csv"));
  const net::Endpoint endpoint = served->endpoint();
  const auto remote = RemoteDataset::open(access(endpoint));
  ASSERT_TRUE(remote) << remote.error().message;
  expect_equal(make_batch(**remote, {1, 2}), make_batch(*local, {1, 2}));
  (*remote)->expect(std::vector<std::uint32_t>{7, 8}, {});  // asked of nobody
  served.reset();
  served = node(dataset("csv"), nullptr, endpoint.port);
  expect_equal(make_batch(**remote, {7, 8}), make_batch(*local, {7, 8}));
  expect_equal(make_batch(**remote, {9}), make_batch(*local, {9}));
}

TEST_F(DataNodeTest, ANodeThatComesBackWithOtherDataIsRefused) {
  auto served = node(dataset("csv"));
  const net::Endpoint endpoint = served->endpoint();
  const auto remote = RemoteDataset::open(access(endpoint));
  ASSERT_TRUE(remote) << remote.error().message;
  served.reset();
  served = node(dataset("criteo"), nullptr, endpoint.port);
  Batch batch;
  batch.samples = {1};
  const Status read = read_batch(**remote, batch);
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, HasSubstr("other training data than at the job's start"));
}

TEST_F(DataNodeTest, ALostNodeIsNamedWithinTheDeadline) {
  auto served = node(dataset("csv"));
  DataServerAccess impatient = access(served->endpoint());
  impatient.read_seconds = 0.3;
  const std::string name = "data server at " + net::to_string(served->endpoint());
  const auto remote = RemoteDataset::open(impatient);
  ASSERT_TRUE(remote) << remote.error().message;
  served.reset();
  Batch batch;
  batch.samples = {1};
  const Status read = read_batch(**remote, batch);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(read.error().rank, -1);
  EXPECT_THAT(read.error().message, AllOf(HasSubstr(name), HasSubstr("was lost"), HasSubstr("within 0.3 s")));
}

TEST_F(DataNodeTest, AWaitThatIsGivenUpEnds) {
  auto listener = net::listen_at({"127.0.0.1", 0});  // accepts, and never says a word
  ASSERT_TRUE(listener);
  DataServerAccess own = access(net::local_endpoint(*listener));
  own.cancelled = [] { return true; };
  EXPECT_FALSE(RemoteDataset::open(own));
}

TEST_F(DataNodeTest, RefusesWithTheReason) {
  const auto served = node(dataset("csv"));
  const auto refusal = [&](auto change) {
    DataServerAccess own = access(served->endpoint());
    own.join_seconds = 5;
    change(own);
    const auto remote = RemoteDataset::open(own);
    EXPECT_FALSE(remote);
    return remote ? "" : remote.error().message;
  };
  const std::string name = "data server at " + net::to_string(served->endpoint());
  EXPECT_THAT(refusal([](DataServerAccess& own) {
                own.token = []() -> Result<net::Secret> { return net::Secret::generate(); };
              }),
              AllOf(HasSubstr(name), HasSubstr("secret differs")));
  EXPECT_THAT(refusal([](DataServerAccess& own) { own.keys = "data.name: fake\ndata.target: z\n"; }),
              AllOf(HasSubstr(name), HasSubstr("the job has data.target: z; the data server has data.target: y")));
  EXPECT_THAT(refusal([](DataServerAccess& own) { own.set = Set::kTest; }), HasSubstr("no test data"));
  const net::Claim other = {.identity = {.job = "job", .purpose = 0x2000}, .fingerprint = ""};
  const auto server = net::connect_to_host(served->endpoint(), token_, other, Deadline::after(5), true,
                                           net::Encryption::kAuto, [] { return false; });
  ASSERT_FALSE(server);
  EXPECT_THAT(server.error().message, HasSubstr("this is a data server"));
}

TEST_F(DataNodeTest, TakesNoMoreConnectionsThanItsCap) {
  const auto served = DataServer::start({.listen = {"127.0.0.1", 0}, .max_connections = 2}, token_,
                                        {dataset("csv"), nullptr, access({}).keys})
                          .value();
  std::vector<std::unique_ptr<RemoteDataset>> readers;
  for (int i = 0; i < 2; ++i) {
    auto reader = RemoteDataset::open(access(served->endpoint()));
    ASSERT_TRUE(reader) << reader.error().message;
    readers.push_back(std::move(*reader));
  }
  DataServerAccess own = access(served->endpoint());
  own.claim.identity.tenant = "another";  // which nobody has proved
  const auto third = RemoteDataset::open(own);
  ASSERT_FALSE(third);
  EXPECT_THAT(third.error().message, HasSubstr("clients with this token have 2 connections here"));
  expect_equal(make_batch(*readers[0], {5, 8}), make_batch(*dataset("csv"), {5, 8}));
  readers.pop_back();
  own.join_seconds = 0.1;
  const Deadline deadline = Deadline::after(20);
  while (!RemoteDataset::open(own)) ASSERT_FALSE(deadline.passed());
}

// A file that cannot be read ends who asks for it, with its name, and nobody who does not.
TEST_F(DataNodeTest, SaysWhyItCannotReadSamples) {
  class Damaged final : public Dataset {
   public:
    explicit Damaged(std::unique_ptr<Dataset> whole) : whole_(std::move(whole)) {}
    std::uint32_t size() const override { return whole_->size(); }
    const std::vector<std::int64_t>& feature_shape() const override { return whole_->feature_shape(); }
    data::TargetKind target_kind() const override { return whole_->target_kind(); }
    std::uint32_t class_count() const override { return whole_->class_count(); }
    std::uint32_t target_width() const override { return whole_->target_width(); }
    Status read(std::span<const std::uint32_t> samples, const data::ReadTarget& into) const override {
      if (std::ranges::find(samples, 7U) == samples.end() || samples.size() == 1) return whole_->read(samples, into);
      return fail(ErrorCode::kCorrupt, "cat/7.jpg: a damaged JPEG image");
    }

   private:
    const std::unique_ptr<Dataset> whole_;
  };
  const auto served = node(std::make_unique<Damaged>(dataset("npy")));
  const auto remote = RemoteDataset::open(access(served->endpoint()));
  ASSERT_TRUE(remote) << remote.error().message;
  Batch batch;
  batch.samples = {6, 7};
  (*remote)->expect(batch.samples, {});
  const Status read = read_batch(**remote, batch, {});
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, AllOf(HasSubstr("data server at "), HasSubstr("cat/7.jpg: a damaged JPEG image"),
                                          testing::Not(HasSubstr("lost"))));
  expect_equal(make_batch(**remote, {5, 8}), make_batch(*dataset("npy"), {5, 8}));
}

// Who knows the token and sends nonsense is told so, and nobody else is the worse for it.
TEST_F(DataNodeTest, SurvivesNonsense) {
  const auto local = dataset("csv");
  const auto served = node(dataset("csv"));
  const auto remote = RemoteDataset::open(access(served->endpoint()));
  ASSERT_TRUE(remote) << remote.error().message;
  net::Claim claim = access(served->endpoint()).claim;
  claim.identity.purpose = kDataConnection;
  const auto open = encode(Open{Set::kTraining, access(served->endpoint()).keys});
  const std::vector<std::vector<std::byte>> payloads = {
      {}, std::vector<std::byte>(100'000), encode_read({}, std::vector<std::uint32_t>{1'000'000})};
  for (const bool opens : {false, true}) {
    for (const std::uint16_t type : {kDataOpen, kDataRead, kDataSamples}) {
      for (const auto& payload : payloads) {
        const auto connection = net::connect_to_host(served->endpoint(), token_, claim, Deadline::after(10), true,
                                                     net::Encryption::kAuto, [] { return false; });
        ASSERT_TRUE(connection) << connection.error().message;
        const Deadline deadline = Deadline::after(10);
        if (opens) {
          ASSERT_TRUE((*connection)->send(kDataOpen, 0, open, deadline, "open"));
          const auto opened = (*connection)->receive(deadline, "opened");
          ASSERT_TRUE(opened) << opened.error().message;
          EXPECT_EQ(opened->header.type, kDataOpened);
        }
        ASSERT_TRUE((*connection)->send(type, 0, payload, deadline, "nonsense"));
        const auto answer = (*connection)->receive(deadline, "an answer");
        ASSERT_TRUE(answer) << answer.error().message;
        EXPECT_EQ(answer->header.type, kDataFailed);
        EXPECT_TRUE(decode_failed(answer->payload));
      }
    }
  }
  expect_equal(make_batch(**remote, {4, 2}), make_batch(*local, {4, 2}));
}

}  // namespace
}  // namespace motley::data
