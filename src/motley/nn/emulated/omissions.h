// Deliberate mistakes: one place in Motley's own code at which it keeps order with a device (a wait, an event, memory
// that is recorded or pinned) does nothing, as if it had been forgotten there. A test leaves out one after the other
// and looks whether the emulated accelerator finds each. A place is the way by which our code got there, so that one
// line that several callers use is several places; calls by PyTorch itself are none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/result.h"

namespace motley::nn::emulated {

enum class Order {
  kWait,          // a stream waits for an event
  kRecord,        // an event is recorded
  kSynchronize,   // the host waits for an event, a stream or a device
  kQuery,         // the host asks whether an event has come; left out, it takes it for granted
  kRecordStream,  // memory is noted to be used by another stream
  kPin            // memory is pinned
};

struct Place {
  Order order = Order::kWait;
  std::uint64_t way = 0;
  std::uint64_t calls = 0;  // so far

  std::string text() const;  // "wait:1f00ba"
  static Result<Place> parse(std::string_view text);
};

// Whether to do nothing for a call that came from this return address. Notes the place where that is on. Any thread.
bool omits(Order order, const void* caller);

// Notes places from now on; and which one to leave out, if any.
void note_places(bool on);
void omit_place(const Place* place);
std::vector<Place> noted_places();

}  // namespace motley::nn::emulated
