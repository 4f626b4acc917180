// Any bytes given as the body of POST /v1/jobs are refused with a sentence, or are jobs that the service's checks
// judge, and that are written again to the same.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "motley/scheduling/service/job_record.h"
#include "motley/serial/json_fields.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace motley;
  using namespace motley::scheduling;
  const auto jobs = parse_submitted_jobs({reinterpret_cast<const char*>(bytes), size});
  if (!jobs) {
    MOTLEY_INVARIANT(!jobs.error().message.empty(), "an error says nothing");
    return 0;
  }
  static const ClusterTopology topology = parse_topology("1x4:cpu").value();
  for (const SubmittedJob& job : *jobs) {
    const Status checked = check(job, topology);
    MOTLEY_INVARIANT(checked || !checked.error().message.empty(), "a refusal says nothing");
    if (checked) make_command(job, job.workers, 1, "/folder");
    const std::string text = write_json(job);
    const auto again = parse_submitted_jobs(text);
    MOTLEY_INVARIANT(again && again->size() == 1 && write_json(again->front()) == text, "not the same after writing");
  }
  return 0;
}
