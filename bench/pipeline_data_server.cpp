// A job whose samples a data server sends over a link of 1 Gb/s, beside the same job with the files: CTRDNN on a file
// in Criteo's format, asking ahead and not. One worker, so that nothing else is on the link.
#include <fstream>
#include <map>

#include "bench/child_process.h"
#include "bench/namespaced_job.h"
#include "bench/pipeline_bench.h"
#include "bench/row_list.h"
#include "bench/temporary_folder.h"
#include "motley/data/local/clicks.h"
#include "motley/data/remote/protocol.h"
#include "motley/net/session.h"

namespace motley::bench {
namespace {

constexpr double kLinkBytesPerSecond = 125e6;
constexpr std::uint32_t kSamples = 40'000;
constexpr std::size_t kSettledSteps = 10;
constexpr int kRounds = 3;
constexpr double kStartSeconds = 30;
constexpr const char* kJob =
    "name: data-server\n"
    "model: {name: ctrdnn}\n"
    "data: {name: criteo, train: clicks.tsv}\n"
    "embedding: {placement: replicated, num_embeddings: 10000}\n"
    "global_batch_size: 512\n"
    "epochs: 1\n"
    "checkpoint: {every: 0}\n";

Status write_clicks(const std::filesystem::path& file) {
  MOTLEY_ASSIGN(const auto clicks, data::make_clicks({.samples = kSamples, .rows = 100'000}));
  std::ofstream out(file);
  return data::write_criteo(*clicks, out);
}

Result<double> bytes_per_sample(const std::filesystem::path& file) {
  data::DatasetSource source;
  source.format = data::DatasetSource::Format::kCriteo;
  source.features = file;
  MOTLEY_ASSIGN(const auto dataset, data::open_dataset(source));
  MOTLEY_ASSIGN(const auto description, data::describe(*dataset));
  return static_cast<double>(sample_bytes(description, {}));
}

// A data server in the second namespace, and its address.
Result<std::unique_ptr<ChildProcess>> start_node(const BenchOptions& options, const NetworkNamespaces& network,
                                                 const std::filesystem::path& folder, std::string& address) {
  std::vector<std::string> command = network.prefix(1);
  for (const std::string& word :
       {options.motley.string(), std::string("data-server"), (folder / "job.yaml").string(), std::string("--listen"),
        network.address(1) + ":0", std::string("--token-file"), (folder / "token").string(),
        std::string("--address-file"), (folder / "address").string(), std::string("--quiet")}) {
    command.push_back(word);
  }
  MOTLEY_ASSIGN(auto process, ChildProcess::start(command));
  for (const Deadline deadline = Deadline::after(kStartSeconds);;) {
    if (const auto text = read_file(folder / "address", 256)) {
      address = text->substr(0, text->find('\n'));
      return process;
    }
    if (deadline.passed()) return fail(ErrorCode::kTimeout, "the data server did not start within {} s", kStartSeconds);
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
  }
}

}  // namespace

Result<std::vector<BenchRow>> pipeline_data_server(const BenchOptions& options) {
  RowList rows(options);
  MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
  MOTLEY_TRY(write_clicks(folder.path() / "clicks.tsv"));
  MOTLEY_TRY(write_file(folder.path() / "job.yaml", kJob));
  MOTLEY_ASSIGN(const double bytes, bytes_per_sample(folder.path() / "clicks.tsv"));
  const auto lines = static_cast<double>(std::filesystem::file_size(folder.path() / "clicks.tsv")) / kSamples;
  rows.add("data-node", "bytes_per_sample", bytes, "B", false, {}, {}, {},
           fmt::format("Criteo's format; a line of the file has {:.0f}", lines));

  const auto network = NetworkNamespaces::create(1, kLinkBytesPerSecond, 1);
  if (!network) {
    rows.left_out("data-node share_of_local", network.error().message);
    return rows.take();
  }
  const std::filesystem::path token = folder.path() / "token";
  MOTLEY_TRY(write_file(token, net::Secret::generate().hex()));
  std::filesystem::permissions(token, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::string address;
  MOTLEY_ASSIGN(const auto node, start_node(options, **network, folder.path(), address));
  const std::vector<std::string> served = {"--data.server", address, "--data.token-file", token.string()};
  std::vector<std::string> unahead = served;
  unahead.insert(unahead.end(), {"--data.prefetch", "0"});
  const std::map<std::string, std::vector<std::string>> ways = {
      {"local", {}}, {"share_of_local", served}, {"share_of_local_without_reading_ahead", unahead}};
  std::map<std::string, std::vector<double>> seconds;  // a step's, of each way and round
  for (int round = 0; round < (options.quick ? 1 : kRounds); ++round) {
    for (const auto& [way, flags] : ways) {
      MOTLEY_ASSIGN(const std::vector<double> steps,
                    train_in_namespaces(options, **network, folder.path(), 1, folder.path() / "job.yaml", flags));
      if (steps.size() <= kSettledSteps) return fail(ErrorCode::kInternal, "the job had {} steps only", steps.size());
      seconds[way].push_back(median({steps.begin() + kSettledSteps, steps.end()}));
    }
  }
  const double local = median(seconds["local"]);
  for (const auto& [way, times] : seconds) {
    if (way == "local") continue;
    rows.add("data-node", way, local / median(times), "share", true, {}, {}, {},
             fmt::format("CTRDNN, batches of 512 over 1 Gb/s; a step takes {:.1f} ms, with files {:.1f} ms",
                         1e3 * median(times), 1e3 * local));
  }
  return rows.take();
}

}  // namespace motley::bench
