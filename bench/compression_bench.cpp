// All types' jobs live side by side and take turns, so that what disturbs the machine disturbs all of them.
#include "bench/compression_bench.h"

#include <sstream>

#include "motley/base/units.h"
#include "motley/collective/wire_form.h"
#include "motley/ps/client/server_options.h"

namespace motley::bench {
namespace {

using collective::WireForm;
using collective::WireType;

struct Way {
  const char* name;
  const char* method;
  WireForm form;
  ExchangeJob job = {};
  std::vector<double> seconds = {};
};

std::string frame_bytes(const WireForm& form, std::size_t elements) {
  return fmt::format("{} in {}", format_bytes(static_cast<double>(form.frame_bytes(elements))), to_string(form));
}

}  // namespace

Result<std::vector<BenchRow>> compression_rows(const BenchOptions& options,
                                               const std::vector<ExchangeJob::Place>& places, const std::string& bytes,
                                               const std::vector<std::string>& server) {
  std::size_t elements = 0;
  std::istringstream sizes(bytes);
  for (std::string size; std::getline(sizes, size, ',');) elements += std::stoull(size) / sizeof(float);

  std::vector<Way> ways;
  ways.push_back({"fp32", "ps-tcp", {WireType::kNative}});
  ways.push_back({"bf16", "ps-tcp-bfloat16", {WireType::kBfloat16}});
  ways.push_back({"int8", "ps-tcp-int8", {WireType::kInt8}});
  ways.push_back({"top-k", "ps-tcp-top-k", {WireType::kTopK, ps::ServerOptions{}.top_k}});
  for (Way& way : ways) {
    MOTLEY_ASSIGN(way.job, ExchangeJob::start(options, way.method, bytes, places, server,
                                              fmt::format("compression-{}", way.name)));
  }
  const int turns = options.quick ? 3 : 9;
  for (int turn = 0; turn < turns + 1; ++turn) {
    for (Way& way : ways) {
      MOTLEY_ASSIGN(const double seconds, way.job.run("round 0 1"));
      if (turn > 0) way.seconds.push_back(seconds);  // the first only warms up
    }
  }
  std::vector<BenchRow> rows;
  for (const Way& way : ways) {
    const std::string note = fmt::format(
        "{} to the server and {} back, of each of {} workers; links emulated with htb", frame_bytes(way.form, elements),
        frame_bytes(way.form.answer(static_cast<int>(places.size()), {.rule = kernels::UpdateRule::kSgd}), elements),
        places.size());
    rows.push_back({fmt::format("netns-1Gbps-N{}-{}", places.size(), way.name),
                    "round_seconds",
                    median(way.seconds),
                    "s",
                    false,
                    {},
                    {},
                    {},
                    note});
    if (options.progress) {
      options.progress(
          fmt::format("{} {} {:.4g} s: {}", rows.back().name, rows.back().metric, rows.back().value, note));
    }
  }
  return rows;
}

}  // namespace motley::bench
