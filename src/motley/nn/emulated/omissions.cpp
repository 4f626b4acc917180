#include "motley/nn/emulated/omissions.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>

namespace motley::nn::emulated {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"wait", "record", "synchronize", "query", "record_stream", "pin"};
constexpr int kMostFrames = 64;
constexpr int kOwnFrames = 3;  // that tell places apart

struct State {
  std::atomic<bool> is_on = false;
  std::mutex mutex;  // guards all below
  bool notes = false;
  std::map<std::pair<Order, std::uint64_t>, std::uint64_t> calls;
  std::optional<Place> omitted;
};

State& state() {
  static auto* const state = new State();
  return *state;
}

// Where this program or Python module is loaded, whose code is ours.
const void* own_base() {
  static const void* const base = [] {
    Dl_info info = {};
    ::dladdr(reinterpret_cast<const void*>(&note_places), &info);
    return info.dli_fbase;
  }();
  return base;
}

bool is_own(const void* address) {
  Dl_info info = {};
  return ::dladdr(address, &info) != 0 && info.dli_fbase == own_base();
}

// The way by which our code came to a call, as a number; 0: it was not ours that called. Tensors' operations and memory
// come through PyTorch, streams and events directly.
std::uint64_t find_way(Order order, const void* caller) {
  std::array<void*, kMostFrames> frames = {};
  const auto count = ::backtrace(frames.data(), kMostFrames);
  const auto end = frames.begin() + count;
  auto frame = std::find(frames.begin(), end, const_cast<void*>(caller));
  const bool through_torch = order == Order::kRecordStream || order == Order::kPin;
  if (frame == end || (!through_torch && !is_own(*frame))) return 0;
  if (through_torch) {
    const auto torch = std::find_if(frame, end, [](const void* address) { return !is_own(address); });
    const auto own = std::find_if(torch, end, is_own);
    if (own != end) frame = own;
    if (frame == end || !is_own(*frame)) return 0;
  }
  std::uint64_t way = 0xcbf29ce484222325;  // FNV-1a
  for (int own = 0; frame != end && own < kOwnFrames; ++frame) {
    if (!is_own(*frame)) continue;
    ++own;
    way ^= static_cast<std::uint64_t>(static_cast<const char*>(*frame) - static_cast<const char*>(own_base()));
    way *= 0x100000001b3;
  }
  return way;
}

}  // namespace

std::string Place::text() const {
  return fmt::format("{}:{:x}", kNames[static_cast<std::size_t>(order)], way);
}

Result<Place> Place::parse(std::string_view text) {
  const std::size_t colon = text.find(':');
  const auto* const name = std::ranges::find(kNames, text.substr(0, colon));
  Place place;
  const std::string_view digits = text.substr(std::min(text.size(), colon == text.npos ? colon : colon + 1));
  const auto [rest, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), place.way, 16);
  if (name == kNames.end() || problem != std::errc() || rest != digits.data() + digits.size()) {
    return fail(ErrorCode::kInvalidInput, "'{}' is no place; accepted: such as 'wait:1f00ba', as a survey lists them",
                text);
  }
  place.order = static_cast<Order>(name - kNames.begin());
  return place;
}

bool omits(Order order, const void* caller) {
  if (!state().is_on) return false;
  const std::uint64_t way = find_way(order, caller);
  if (way == 0) return false;
  const std::lock_guard lock(state().mutex);
  if (state().notes) ++state().calls[{order, way}];
  const std::optional<Place>& omitted = state().omitted;
  return omitted && omitted->order == order && omitted->way == way;
}

void note_places(bool on) {
  const std::lock_guard lock(state().mutex);
  state().notes = on;
  state().calls.clear();
  state().is_on = on || state().omitted;
}

void omit_place(const Place* place) {
  const std::lock_guard lock(state().mutex);
  state().omitted = place == nullptr ? std::nullopt : std::optional(*place);
  state().is_on = state().notes || state().omitted;
}

std::vector<Place> noted_places() {
  const std::lock_guard lock(state().mutex);
  std::vector<Place> places;
  for (const auto& [place, calls] : state().calls) places.push_back({place.first, place.second, calls});
  return places;
}

}  // namespace motley::nn::emulated
