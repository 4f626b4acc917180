// Two jobs that differ in encryption alone are kept alive side by side and run rounds in turn. Over loopback, where the
// processor is what limits both, encryption cannot take less than the cipher's own time for the bytes; over links of a
// network it should hide behind them.
#include "bench/tls_bench.h"

#include "bench/exchange_job.h"
#include "bench/network_namespaces.h"
#include "bench/server_process.h"
#include "motley/base/clock.h"
#include "motley/base/os/process.h"
#include "motley/base/units.h"

namespace motley::bench {
namespace {

constexpr std::size_t kBytes = 46'800'000;
constexpr const char* kPlain = "off";
constexpr const char* kEncrypted = "on";

// What two processes encrypt a second, together, in records of TLS's size.
Result<double> cipher_bytes_per_second() {
  MOTLEY_ASSIGN(const Output output, run_program({.words = {"openssl", "speed", "-mr", "-multi", "2", "-seconds", "1",
                                                            "-bytes", "16384", "-evp", "aes-128-gcm"}},
                                                 Deadline::after(60)));
  // "+F:22:AES-128-GCM:12345678.90", in bytes a second
  const auto at = output.text.rfind("+F:");
  const auto colon = output.text.find_last_of(':');
  if (!output.is_good() || at == std::string::npos || colon < at) {
    return fail(ErrorCode::kUnavailable, "openssl speed says no speed: '{}'", output.text);
  }
  return std::stod(output.text.substr(colon + 1));
}

class TlsBench {
 public:
  explicit TlsBench(const BenchOptions& options) : options_(options), pairs_(options.quick ? 3 : 11) {}

  Result<std::vector<BenchRow>> run() {
    MOTLEY_ASSIGN(cipher_, cipher_bytes_per_second());
    MOTLEY_TRY(ring());
    MOTLEY_TRY(server());
    MOTLEY_TRY(over_shaped_links());
    return std::move(rows_);
  }

 private:
  void add(const BenchRow& row) {
    rows_.push_back(row);
    if (options_.progress)
      options_.progress(fmt::format("{} {} {:.4g}: {}", row.name, row.metric, row.value, row.note));
  }

  Result<ExchangeJob> start(const char* encryption, const std::string& method, std::vector<std::string> environment,
                            const std::vector<ExchangeJob::Place>& places) const {
    environment.push_back(fmt::format("MOTLEY_ENCRYPTION={}", encryption));
    return ExchangeJob::start(options_, method, std::to_string(kBytes), places, environment);
  }

  Result<Comparison> compare_rounds(ExchangeJob& ours, ExchangeJob& peer) const {
    return compare(pairs_, [&] { return ours.run("round 0 2"); }, [&] { return peer.run("round 0 2"); });
  }

  // `bytes`: that all processes send in a round; each is encrypted once and decrypted once.
  void add_share(const std::string& name, const Comparison& rounds, std::size_t bytes) {
    const double cipher = 2 * static_cast<double>(bytes) / cipher_;
    const double limit = rounds.peer + cipher;
    add({name,
         "share_of_limit",
         limit / rounds.ours,
         "",
         true,
         0.75,
         1.0,
         {},
         fmt::format(
             "{} a round, in the clear {}; limit: {}, that and AES-128-GCM's {} for its bytes, by openssl speed",
             format_seconds(rounds.ours), format_seconds(rounds.peer), format_seconds(limit), format_seconds(cipher))});
  }

  Status ring() {
    const std::vector<ExchangeJob::Place> places(2);
    MOTLEY_ASSIGN(ExchangeJob plain, start(kPlain, "tcp-ring", {}, places));
    MOTLEY_ASSIGN(ExchangeJob encrypted, start(kEncrypted, "tcp-ring", {}, places));
    MOTLEY_ASSIGN(const Comparison rounds, compare_rounds(encrypted, plain));
    add_share("ring-46.8MB-N2", rounds, 2 * kBytes);
    return compare_with_exchange(plain);
  }

  // In the clear, a round is to take no longer than the bench `exchange` says, whose job knows of no encryption.
  Status compare_with_exchange(ExchangeJob& plain) {
    MOTLEY_ASSIGN(ExchangeJob exchange, ExchangeJob::start(options_, "tcp-ring-barrier", std::to_string(kBytes),
                                                           std::vector<ExchangeJob::Place>(2)));
    MOTLEY_ASSIGN(const Comparison rounds, compare_rounds(plain, exchange));
    add({"ring-46.8MB-N2",
         "plain_ratio_to_exchange",
         rounds.ratio,
         "",
         false,
         {},
         {},
         1.0,
         fmt::format("{} a round in the clear, in turns with the bench exchange's {} (its tcp-N2-46.8MB)",
                     format_seconds(rounds.ours), format_seconds(rounds.peer))});
    return {};
  }

  Status server() {
    const std::vector<ExchangeJob::Place> places(2);
    MOTLEY_ASSIGN(const ServerProcess plain_server, ServerProcess::start(options_, 2, {}, {"--encryption", kPlain}));
    MOTLEY_ASSIGN(const ServerProcess server, ServerProcess::start(options_, 2, {}, {"--encryption", kEncrypted}));
    MOTLEY_ASSIGN(ExchangeJob plain, start(kPlain, "ps-tcp", plain_server.environment(), places));
    MOTLEY_ASSIGN(ExchangeJob encrypted, start(kEncrypted, "ps-tcp", server.environment(), places));
    MOTLEY_ASSIGN(const Comparison rounds, compare_rounds(encrypted, plain));
    add_share("server-46.8MB-N2", rounds, 4 * kBytes);
    return {};
  }

  // Four ranks in network namespaces of their own, each with 1 Gb/s in and out.
  Status over_shaped_links() {
    constexpr int kRanks = 4;
    const std::string name = "netns-1Gbps-N4";
    auto network = NetworkNamespaces::create(kRanks, 125e6);
    if (!network) {
      if (options_.progress) options_.progress(fmt::format("{} left out: {}", name, network.error().message));
      return {};
    }
    std::vector<ExchangeJob::Place> places;
    for (int rank = 0; rank < kRanks; ++rank) places.push_back({(*network)->prefix(rank), (*network)->address(rank)});
    MOTLEY_ASSIGN(ExchangeJob plain, start(kPlain, "tcp-ring", {}, places));
    MOTLEY_ASSIGN(ExchangeJob encrypted, start(kEncrypted, "tcp-ring", {}, places));
    MOTLEY_ASSIGN(const Comparison rounds, compare_rounds(encrypted, plain));
    add({name,
         "ratio_to_plain",
         rounds.ratio,
         "",
         false,
         1.05,
         1.0,
         {},
         fmt::format("ring, 46.8 MB: {} a round, in the clear {}; links emulated with htb", format_seconds(rounds.ours),
                     format_seconds(rounds.peer))});
    return {};
  }

  const BenchOptions& options_;
  const int pairs_;
  double cipher_ = 0;
  std::vector<BenchRow> rows_;
};

}  // namespace

Result<std::vector<BenchRow>> tls_bench(const BenchOptions& options) {
  return TlsBench(options).run();
}

}  // namespace motley::bench
