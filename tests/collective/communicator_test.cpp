// Every collective of a communicator over each transport, against what plain loops in the order of the ranks give, bit
// for bit; and how it ends when a rank does.
#include "motley/collective/communicator.h"

#include <gmock/gmock.h>

#include <cstring>
#include <future>
#include <memory>
#include <mutex>

#include "motley/base/random.h"
#include "motley/kernels/convert.h"
#include "tests/collective/ranks.h"
#include "tests/fewer_values.h"

namespace motley::collective {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const auto kTransports = ::testing::Values(Transport::kAuto, Transport::kTcp);
std::string name(Transport transport) {
  return transport == Transport::kTcp ? "tcp" : "shared_memory";
}

class EveryTransport : public ::testing::TestWithParam<Transport> {
 protected:
  // body(rank, communicator) on a thread per rank.
  void run(int size, const std::function<void(int, Communicator&)>& body) {
    run_threads(size, true, [&](int rank, ThreadSession& session) {
      auto made = Communicator::create(session, GetParam(), Deadline::after(30));
      ASSERT_TRUE(made) << made.error().message;
      body(rank, **made);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Communicator, EveryTransport, kTransports, [](const auto& info) { return name(info.param); });

// Starts it and waits for its end.
Status carry_out(Communicator& communicator, Collective what) {
  std::promise<Status> promise;
  what.done = [&](const Status& status) { promise.set_value(status); };
  communicator.start(std::move(what));
  return promise.get_future().get();
}

// Values of an element type as floats and back, by the conversions alone.
double read(ElementType type, const std::byte* at) {
  float value = 0;
  switch (type) {
    case ElementType::kFloat64: {
      double wide = 0;
      std::memcpy(&wide, at, sizeof(wide));
      return wide;
    }
    case ElementType::kFloat32:
      std::memcpy(&value, at, sizeof(value));
      return value;
    case ElementType::kBfloat16:
      kernels::read_format(kernels::WireFormat::kBfloat16, at, {&value, 1});
      return value;
    case ElementType::kFloat16:
      kernels::read_format(kernels::WireFormat::kFloat16, at, {&value, 1});
      return value;
    case ElementType::kByte:
      break;
  }
  return std::to_integer<int>(*at);
}

void write(ElementType type, double value, std::byte* at) {
  const auto narrow = static_cast<float>(value);
  switch (type) {
    case ElementType::kFloat64:
      std::memcpy(at, &value, sizeof(value));
      return;
    case ElementType::kFloat32:
      std::memcpy(at, &narrow, sizeof(narrow));
      return;
    case ElementType::kBfloat16:
      return kernels::write_format(kernels::WireFormat::kBfloat16, {&narrow, 1}, at);
    case ElementType::kFloat16:
      return kernels::write_format(kernels::WireFormat::kFloat16, {&narrow, 1}, at);
    case ElementType::kByte:
      *at = static_cast<std::byte>(value);
  }
}

using Bytes = std::vector<std::byte>;

// What a rank has for an operation, the same whoever asks.
Bytes make_values(ElementType type, std::size_t count, int rank, std::uint64_t operation) {
  Bytes values(count * width(type));
  Random random(mix({operation, static_cast<std::uint64_t>(rank)}));
  for (std::size_t e = 0; e < count; ++e) {
    const auto bits = static_cast<std::int64_t>(random.below(20001)) - 10000;
    write(type, type == ElementType::kByte ? static_cast<double>(bits & 0xff) : static_cast<double>(bits) / 640.0,
          values.data() + e * width(type));
  }
  return values;
}

// The sum in the order of the ranks: in the type itself, and of halves in float32, rounded once.
Bytes make_sum(ElementType type, std::size_t count, int size, std::uint64_t operation, Reduction reduction) {
  std::vector<Bytes> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(make_values(type, count, rank, operation));
  Bytes sums(count * width(type));
  for (std::size_t e = 0; e < count; ++e) {
    double wide = 0;
    float narrow = 0;
    for (int rank = 0; rank < size; ++rank) {
      const double value = read(type, all[rank].data() + e * width(type));
      wide = rank == 0 ? value : wide + value;
      narrow = rank == 0 ? static_cast<float>(value) : narrow + static_cast<float>(value);
    }
    const bool average = reduction == Reduction::kAverage;
    const double sum = type == ElementType::kFloat64 ? wide * (average ? 1.0 / size : 1)
                                                     : narrow * (average ? static_cast<float>(1.0 / size) : 1.0F);
    write(type, sum, sums.data() + e * width(type));
  }
  return sums;
}

// The sum of the operation under way, computed by the first rank that asks for it. For all ranks' threads.
class SumForAll {
 public:
  std::shared_ptr<const Bytes> get(ElementType type, std::size_t count, int size, std::uint64_t operation,
                                   Reduction reduction) {
    const std::lock_guard lock(mutex_);
    if (sum_ == nullptr || operation_ != operation) {
      sum_ = std::make_shared<const Bytes>(make_sum(type, count, size, operation, reduction));
      operation_ = operation;
    }
    return sum_;
  }

 private:
  std::mutex mutex_;
  std::uint64_t operation_ = 0;
  std::shared_ptr<const Bytes> sum_;
};

const ElementType kSummed[] = {ElementType::kFloat32, ElementType::kFloat64, ElementType::kBfloat16,
                               ElementType::kFloat16};

TEST_P(EveryTransport, AllReduceIsTheSumInTheOrderOfTheRanks) {
  for (const int size : {2, 3, 5}) {
    SumForAll sum;
    run(size, [&](int rank, Communicator& communicator) {
      std::uint64_t operation = 0;
      for (const std::size_t count :
           {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{1000}, std::size_t{65537}, fewer(700001)}) {
        for (const ElementType type : kSummed) {
          for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
            Bytes values = make_values(type, count, rank, ++operation);
            const Status done = carry_out(communicator, {.kind = CollectiveKind::kAllReduce,
                                                         .type = type,
                                                         .reduction = reduction,
                                                         .input = values,
                                                         .output = values});
            ASSERT_TRUE(done) << done.error().message;
            EXPECT_EQ(values, *sum.get(type, count, size, operation, reduction)) << to_string(type) << " x " << count;
          }
        }
      }
    });
  }
}

TEST_P(EveryTransport, ReduceScatterIsEachRanksPartOfTheSum) {
  for (const int size : {2, 4}) {
    SumForAll sum;
    run(size, [&](int rank, Communicator& communicator) {
      std::uint64_t operation = 0;
      for (const std::size_t count : {1, 33, 100003}) {  // of a part
        for (const ElementType type : kSummed) {
          const Bytes values = make_values(type, count * size, rank, ++operation);
          Bytes part(count * width(type));
          const Status done = carry_out(
              communicator, {.kind = CollectiveKind::kReduceScatter, .type = type, .input = values, .output = part});
          ASSERT_TRUE(done) << done.error().message;
          const auto sums = sum.get(type, count * size, size, operation, Reduction::kSum);
          EXPECT_TRUE(std::ranges::equal(part, std::span(*sums).subspan(rank * part.size(), part.size())));
          EXPECT_EQ(values, make_values(type, count * size, rank, operation));
        }
      }
    });
  }
}

TEST_P(EveryTransport, GathersAndBroadcasts) {
  for (const int size : {2, 3}) {
    run(size, [&](int rank, Communicator& communicator) {
      std::uint64_t operation = 0;
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{13}, fewer(3000001)}) {
        const Bytes values = make_values(ElementType::kByte, count, rank, ++operation);
        Bytes all(count * size);
        ASSERT_TRUE(carry_out(communicator, {.kind = CollectiveKind::kAllGather, .input = values, .output = all}));
        Bytes expected;
        for (int other = 0; other < size; ++other) {
          const Bytes theirs = make_values(ElementType::kByte, count, other, operation);
          expected.insert(expected.end(), theirs.begin(), theirs.end());
        }
        EXPECT_EQ(all, expected);
        const int root = static_cast<int>(count % size);
        Bytes given = make_values(ElementType::kByte, count, rank, ++operation);
        const auto input = rank == root ? std::span<const std::byte>(given) : std::span<const std::byte>();
        ASSERT_TRUE(carry_out(communicator,
                              {.kind = CollectiveKind::kBroadcast, .root = root, .input = input, .output = given}));
        EXPECT_EQ(given, make_values(ElementType::kByte, count, root, operation));
      }
    });
  }
}

// Many are started before the first has ended; each rank waits for none in between.
TEST_P(EveryTransport, OperationsFollowEachOther) {
  constexpr int kOperations = 400;
  run(3, [&](int rank, Communicator& communicator) {
    std::vector<Bytes> buffers;
    std::vector<int> order;
    std::promise<void> all_done;
    const auto size_of_operation = [](int operation) { return static_cast<std::size_t>(operation * 37 % 5000); };
    for (int operation = 0; operation < kOperations; ++operation) {
      buffers.push_back(make_values(ElementType::kFloat32, size_of_operation(operation), rank, operation));
    }
    std::vector<Bytes> gathered(kOperations);
    for (int operation = 0; operation < kOperations; ++operation) {
      Bytes& buffer = buffers[operation];
      Collective what{
          .kind = CollectiveKind::kAllReduce, .type = ElementType::kFloat32, .input = buffer, .output = buffer};
      if (operation % 3 == 1) {
        gathered[operation].resize(3 * buffer.size());
        what.kind = CollectiveKind::kAllGather;
        what.output = gathered[operation];
      }
      what.done = [&, operation](const Status& status) {
        EXPECT_TRUE(status) << status.error().message;
        order.push_back(operation);
        if (order.size() == kOperations) all_done.set_value();
      };
      EXPECT_EQ(communicator.start(std::move(what)), operation + 1);
    }
    all_done.get_future().get();
    EXPECT_TRUE(std::ranges::is_sorted(order));
    for (int operation = 0; operation < kOperations; operation += 3) {
      EXPECT_EQ(buffers[operation],
                make_sum(ElementType::kFloat32, size_of_operation(operation), 3, operation, Reduction::kSum));
    }
  });
}

TEST(SharedMemoryCommunicator, ReducesItsOwnMemoryAndOthersAlike) {
  SumForAll sum;
  run_threads(3, true, [&](int rank, ThreadSession& session) {
    auto made = Communicator::create(session, Transport::kAuto, Deadline::after(30));
    ASSERT_TRUE(made) << made.error().message;
    constexpr std::size_t kCount = fewer(900001);
    std::vector<std::shared_ptr<std::byte>> blocks;
    for (std::uint64_t operation = 0; operation < 12; ++operation) {
      const Bytes own = make_values(ElementType::kFloat32, kCount, rank, operation);
      auto block = (*made)->allocate(own.size());
      ASSERT_TRUE(block) << block.error().message;
      std::memcpy(block->get(), own.data(), own.size());
      Bytes elsewhere = own;
      // Sometimes one rank's values lie elsewhere.
      const bool in_arena = static_cast<int>(operation % 4) != rank;
      const std::span<std::byte> values = in_arena ? std::span(block->get(), own.size()) : std::span(elsewhere);
      ASSERT_TRUE(carry_out(
          **made,
          {.kind = CollectiveKind::kAllReduce, .type = ElementType::kFloat32, .input = values, .output = values}));
      const auto expected = sum.get(ElementType::kFloat32, kCount, 3, operation, Reduction::kSum);
      EXPECT_TRUE(std::ranges::equal(values, *expected));
      if (operation % 3 != 0) blocks.push_back(*block);
      if (operation % 5 == 4) blocks.erase(blocks.begin());
    }
    EXPECT_NE((*made)->allocate(1)->get(), nullptr);
  });
}

TEST_P(EveryTransport, NamesTheRankThatIsMissingAtTheDeadline) {
  std::barrier all(3);
  run(3, [&](int rank, Communicator& communicator) {
    const LeaveTogether together(all);
    ASSERT_TRUE(carry_out(communicator, {}));
    if (rank == 1) return;
    float values[100] = {};
    const auto bytes = std::as_writable_bytes(std::span(values));
    const Status done = carry_out(communicator, {.kind = CollectiveKind::kAllReduce,
                                                 .type = ElementType::kFloat32,
                                                 .input = bytes,
                                                 .output = bytes,
                                                 .seconds = 0.3});
    ASSERT_FALSE(done);
    EXPECT_THAT(done.error().message, AllOf(HasSubstr("all_reduce, operation 2"), HasSubstr("rank 1")));
    EXPECT_FALSE(carry_out(communicator, {}));
  });
}

// More than sockets hold goes to a rank that does not read.
TEST(TcpCommunicator, NamesTheRankToWhichValuesHaveNotGone) {
  std::barrier all(3);
  run_threads(3, true, [&](int rank, ThreadSession& session) {
    auto made = Communicator::create(session, Transport::kTcp, Deadline::after(30));
    ASSERT_TRUE(made) << made.error().message;
    const LeaveTogether together(all);
    ASSERT_TRUE(carry_out(**made, {}));
    if (rank == 1) return;
    Bytes values(std::size_t{64} << 20);
    const auto input = rank == 0 ? std::span<const std::byte>(values) : std::span<const std::byte>();
    const Status done = carry_out(**made, {.kind = CollectiveKind::kBroadcast,
                                           .root = 0,
                                           .input = input,
                                           .output = values,
                                           .seconds = rank == 0 ? 1.0 : 60.0});  // rank 0's end is the others', too
    if (rank != 0) return;
    ASSERT_FALSE(done);
    EXPECT_THAT(done.error().message, AllOf(HasSubstr("broadcast"), HasSubstr("rank 1")));
  });
}

TEST(SharedMemoryCommunicator, RefusesOperationsThatDiffer) {
  std::barrier all(2);
  run_threads(2, true, [&](int rank, ThreadSession& session) {
    auto made = Communicator::create(session, Transport::kAuto, Deadline::after(30));
    const LeaveTogether together(all);
    Bytes values(64 + 64 * static_cast<std::size_t>(rank));
    const Status done = carry_out(
        **made, {.kind = CollectiveKind::kAllReduce, .type = ElementType::kFloat32, .input = values, .output = values});
    ASSERT_FALSE(done);
    EXPECT_THAT(done.error().message, AllOf(HasSubstr("64 bytes"), HasSubstr("128 bytes")));
  });
}

TEST_P(EveryTransport, AnAbortEndsOperationsUnderWayOnAllRanks) {
  std::barrier all(2);
  run(2, [&](int rank, Communicator& communicator) {
    const LeaveTogether together(all);
    ASSERT_TRUE(carry_out(communicator, {}));  // both are there
    if (rank == 1) {
      communicator.abort({ErrorCode::kInterrupted, "the user has had enough"});
      return;
    }
    const Status done = carry_out(communicator, {});
    ASSERT_FALSE(done);
    EXPECT_THAT(done.error().message, HasSubstr("the user has had enough"));
  });
}

// In each kind of operation, one rank of three is killed; the others say so, and end.
TEST_P(EveryTransport, AKilledRankIsNamed) {
  for (int kind = 0; kind <= static_cast<int>(CollectiveKind::kBarrier); ++kind) {
    const auto ends = run_processes(3, [&](int rank, net::Session& session) {
      auto made = Communicator::create(session, GetParam(), Deadline::after(30));
      if (!made) return 1;
      Bytes values(3 << 20);
      Bytes others(values.size() * 3);
      for (int round = 0;; ++round) {
        if (rank == 1 && round == 5) std::raise(SIGKILL);
        Collective what{.kind = static_cast<CollectiveKind>(kind),
                        .type = ElementType::kFloat32,
                        .input = values,
                        .output = values};
        if (what.kind == CollectiveKind::kReduceScatter) what.output = what.output.first(values.size() / 3);
        if (what.kind == CollectiveKind::kAllGather) what.output = others;
        if (what.kind == CollectiveKind::kBroadcast && rank != 0) what.input = {};
        if (what.kind == CollectiveKind::kBarrier) what = {};
        const Status done = carry_out(**made, what);
        if (done) continue;
        return done.error().rank == 1 && done.error().message.find("rank 1 ended") != std::string::npos ? 7 : 2;
      }
    });
    EXPECT_TRUE(WIFSIGNALED(ends[1]));
    for (const int survivor : {0, 2}) {
      EXPECT_TRUE(WIFEXITED(ends[survivor]) && WEXITSTATUS(ends[survivor]) == 7)
          << "kind " << kind << ", rank " << survivor << ": " << ends[survivor];
    }
  }
}

}  // namespace
}  // namespace motley::collective
