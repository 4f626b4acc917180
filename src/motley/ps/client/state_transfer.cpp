#include "motley/ps/client/state_transfer.h"

#include <algorithm>
#include <cstring>

namespace motley::ps {
namespace {

using Array = std::vector<std::vector<float>>;  // by bucket

// visit(part, its values in the array) for each piece of the segments that the server owns.
template <class Values, class Visit>
Status each_piece(const ControlConnections::Server& server, const DividedModel& model, std::uint8_t number,
                  Values& array, Visit visit) {
  for (std::size_t at = 0; at < model.segments().size(); ++at) {
    const Segment& segment = model.segments()[at];
    if (!server.owns(segment)) continue;
    const auto all = std::span(array[static_cast<std::size_t>(segment.bucket)]).subspan(segment.begin, segment.count);
    for (std::uint32_t piece = 0; piece * kPieceElements < segment.count; ++piece) {
      const std::size_t begin = piece * kPieceElements;
      MOTLEY_TRY(visit(StatePart{number, static_cast<std::uint32_t>(at), piece},
                       all.subspan(begin, std::min(kPieceElements, segment.count - begin))));
    }
  }
  return {};
}

}  // namespace

Status send_state(ControlConnections& controls, const DividedModel& model, const ServerState& state, bool is_rank_0,
                  const Deadline& deadline) {
  const auto lock = controls.lock();
  for (auto& server : controls.servers()) {
    for (std::size_t array = 0; is_rank_0 && array <= state.optimizer.size(); ++array) {
      MOTLEY_TRY(each_piece(
          server, model, static_cast<std::uint8_t>(array), array == 0 ? state.weights : state.optimizer[array - 1],
          [&](const StatePart& part, std::span<const float> values) {
            return server.control->send(kServerLoad, part.tag(), std::as_bytes(values), deadline, "the weights");
          }));
    }
    MOTLEY_TRY(server.control->send(kServerLoaded, state.updates, {}, deadline, "the end of the weights"));
  }
  for (auto& server : controls.servers()) {
    MOTLEY_TRY(controls.receive_from(server, kServerLoaded, deadline, "all ranks to have loaded"));
  }
  return {};
}

Result<ServerState> fetch_state(ControlConnections& controls, const DividedModel& model, int arrays,
                                const Deadline& deadline) {
  const auto lock = controls.lock();
  ServerState state;
  for (const std::uint64_t elements : model.bucket_elements()) state.weights.emplace_back(elements);
  state.optimizer.assign(static_cast<std::size_t>(arrays), state.weights);
  for (std::size_t array = 0; array <= state.optimizer.size(); ++array) {
    for (auto& server : controls.servers()) {
      MOTLEY_TRY(each_piece(
          server, model, static_cast<std::uint8_t>(array), array == 0 ? state.weights : state.optimizer[array - 1],
          [&](const StatePart& part, std::span<float> values) -> Status {
            MOTLEY_TRY(server.control->send(kServerSave, part.tag(), {}, deadline, "the state"));
            MOTLEY_ASSIGN(const auto message, controls.receive_from(server, kServerSave, deadline, "the state"));
            if (message.header.tag != part.tag() || message.payload.size() != values.size_bytes()) {
              return fail(ErrorCode::kCorrupt, "{}: another part of the state than was asked for", server.name);
            }
            std::memcpy(values.data(), message.payload.data(), values.size_bytes());
            return {};
          }));
    }
  }
  return state;
}

}  // namespace motley::ps
