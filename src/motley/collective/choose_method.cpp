// M bytes, N ranks, S arrays of the optimizer's state. A step reads a gradient, and reads and writes the weights and
// the state: (3 + 2 S) M bytes of memory in each rank that takes it.
//
//   shared memory   each sum is read by one and written for all: 2 N M bytes of memory, and every rank's step
//   ring            2 (N - 1) / N M over each link, 2 (N - 1) messages one after the other, and every rank's step
//   server          M over each rank's link while N M / servers go over each server's, in both directions at once; the
//                   step is taken on the way
//   server, memory  the server reads N gradients once and takes one step: (N + 2 + 2 S) M bytes of memory
#include "motley/collective/choose_method.h"

#include <algorithm>

#include "motley/base/units.h"

namespace motley::collective {
namespace {

double step_bytes(const MethodQuestion& q) {
  return (3 + 2 * q.state_arrays) * q.bytes;
}

MethodEstimate shared_memory(const MethodQuestion& q) {
  // All ranks work at once, each on its share.
  const double moved = (q.ranks > 1 ? 2 * q.bytes : 0) + step_bytes(q);
  return {Method::kSharedMemory, moved / q.rank_memory,
          fmt::format("{} of memory a rank at {}/s", format_bytes(moved), format_bytes(q.rank_memory))};
}

MethodEstimate ring(const MethodQuestion& q) {
  const double carried = 2.0 * (q.ranks - 1) / q.ranks * q.bytes * q.wire_share;
  const double step = step_bytes(q) / q.rank_memory;
  return {Method::kTcpRing, carried / q.rank_link + 2 * (q.ranks - 1) * q.latency + step,
          fmt::format("{} over each link at {}/s, {} for the step", format_bytes(carried), format_bytes(q.rank_link),
                      format_seconds(step))};
}

MethodEstimate server_in_memory(const MethodQuestion& q) {
  const double step = q.server_steps ? 0 : step_bytes(q) / q.rank_memory;
  const double moved =
      q.server_steps ? (q.ranks + 2 + 2 * q.state_arrays) * q.bytes : static_cast<double>(q.ranks + 1) * q.bytes;
  return {Method::kParameterServer, moved / q.server_memory + step,
          fmt::format("{} of memory at {}/s", format_bytes(moved), format_bytes(q.server_memory))};
}

MethodEstimate server_over_links(const MethodQuestion& q) {
  const double step = q.server_steps ? 0 : step_bytes(q) / q.rank_memory;
  const double carried = q.bytes * q.wire_share;
  const double of_ranks = carried / q.rank_to_server_link;
  const double of_servers = q.ranks * carried / (q.servers * q.server_link);
  return {
      Method::kParameterServer, std::max(of_ranks, of_servers) + 2 * q.latency + step,
      of_ranks >= of_servers
          ? fmt::format("{} over each rank's link at {}/s", format_bytes(carried), format_bytes(q.rank_to_server_link))
          : fmt::format("{} over each server's link at {}/s", format_bytes(q.ranks * carried / q.servers),
                        format_bytes(q.server_link))};
}

}  // namespace

const char* to_string(Method method) {
  switch (method) {
    case Method::kAuto:
      return "auto";
    case Method::kSharedMemory:
      return "shared-memory";
    case Method::kTcpRing:
      return "tcp-ring";
    case Method::kParameterServer:
      return "parameter-server";
  }
  return "?";
}

MethodChoice choose_method(const MethodQuestion& question) {
  MethodChoice choice;
  if (question.one_host) {
    choice.estimates.push_back(shared_memory(question));
  } else if (question.ring_allowed || question.servers == 0) {
    choice.estimates.push_back(ring(question));
  }
  if (question.servers > 0) {
    choice.estimates.push_back(question.server_shares_memory ? server_in_memory(question)
                                                             : server_over_links(question));
  }
  std::ranges::stable_sort(choice.estimates, {}, &MethodEstimate::seconds);
  choice.method = choice.estimates.front().method;
  return choice;
}

std::string MethodChoice::explanation() const {
  std::string text;
  for (const MethodEstimate& estimate : estimates) {
    text += fmt::format("{}{}: {} ({})", text.empty() ? "" : "; ", to_string(estimate.method),
                        format_seconds(estimate.seconds), estimate.because);
  }
  return text;
}

}  // namespace motley::collective
