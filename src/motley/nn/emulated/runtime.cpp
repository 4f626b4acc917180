#include "motley/nn/emulated/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "motley/base/clock.h"

namespace motley::nn::emulated {
namespace {

constexpr std::size_t kGranularity = 512;  // of a device's memory, as CUDA's
constexpr int kPoison = 0xff;

std::size_t round_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

Runtime::Runtime(const Options& options) : options_(options) {
  devices_.resize(static_cast<std::size_t>(options.devices));
  streams_.resize(devices_.size() * kStreams);
  for (Device& device : devices_) {
    auto memory = TwinMemory::create(static_cast<std::size_t>(options.memory_bytes), Protection::kNone);
    if (!memory) throw std::runtime_error(memory.error().message);
    device.memory = std::move(*memory);
    device.space.emplace(0, device.memory.bytes());
  }
}

Runtime::~Runtime() {
  for (Stream& stream : streams_) stream.queue.reset();
}

std::string Runtime::name_stream(int stream) {
  const int number = stream % kStreams;
  return number == 0 ? fmt::format("the default stream of emulated:{}", find_device_number(stream))
                     : fmt::format("stream {} of emulated:{}", number, find_device_number(stream));
}

void Runtime::check() const {
  if (!failure_.empty()) throw std::runtime_error("emulated accelerator: " + failure_);
}

void Runtime::report(std::string violation) {
  if (!collects_) {
    std::fprintf(stderr, "emulated accelerator: %s\n", violation.c_str());
    if (failure_.empty()) failure_ = violation;
  }
  violations_.push_back(std::move(violation));
}

// Memory of devices.

std::byte* Runtime::allocate(int stream, std::size_t bytes) {
  bytes = round_up(std::max<std::size_t>(bytes, 1), kGranularity);
  std::unique_lock lock(mutex_);
  check();
  Device& device = devices_[static_cast<std::size_t>(find_device_number(stream))];
  auto found = take_block(device, stream, bytes);
  if (!found) {
    // As CUDA's allocator does before it gives up: all is waited for, and whatever nobody has is one space again.
    std::vector<std::pair<StreamQueue*, std::uint64_t>> under_way;
    for (int i = 0; i < kStreams; ++i) {
      StreamQueue& queue = *streams_[static_cast<std::size_t>(find_device_number(stream) * kStreams + i)].queue;
      under_way.emplace_back(&queue, queue.pushed());
    }
    lock.unlock();
    for (const auto& [queue, task] : under_way) queue->wait(task);
    lock.lock();
    const int first = find_device_number(stream) * kStreams;
    for (Freed& freed : device.freed) {  // others may have freed more meanwhile
      std::erase_if(freed.until, [&](const Event& event) {
        const int queue = event.stream - first;
        return queue >= 0 && queue < kStreams && event.task <= under_way[static_cast<std::size_t>(queue)].second;
      });
    }
    release_freed(device);
    release_cached(device);
    found = take_block(device, stream, bytes);
    if (!found) return nullptr;
  }
  const std::uint64_t offset = found->first;
  device.blocks.insert_or_assign(offset, Block{.bytes = bytes, .stream = stream});
  device.allocated += static_cast<double>(bytes);
  device.peak = std::max(device.peak, device.allocated);
  std::byte* const memory = device.memory.host() + offset;
  std::byte* const kernel = device.memory.device() + offset;
  give(
      stream, Engine::kCompute, 0, {{memory, memory + bytes, true}},
      [kernel, bytes] { std::memset(kernel, kPoison, bytes); }, "new memory");
  return memory;
}

std::optional<std::pair<std::uint64_t, Runtime::Block>> Runtime::take_block(Device& device, int stream,
                                                                            std::size_t bytes) {
  release_freed(device);
  if (const auto cached = device.cached.find({stream, bytes});
      cached != device.cached.end() && !cached->second.empty()) {
    auto block = std::move(cached->second.back());
    cached->second.pop_back();
    return block;
  }
  const auto space = std::ranges::find_if(device.space, [&](const auto& free) { return free.second >= bytes; });
  if (space == device.space.end()) return std::nullopt;
  const auto [offset, size] = *space;
  device.space.erase(space);
  if (size > bytes) device.space.emplace(offset + bytes, size - bytes);
  return std::pair(offset, Block());
}

void Runtime::free(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  Device& device = devices_[static_cast<std::size_t>(*find_device(memory))];
  const auto found = device.blocks.find(static_cast<std::uint64_t>(memory - device.memory.host()));
  if (found == device.blocks.end()) return;
  auto node = device.blocks.extract(found);
  Block& block = node.mapped();
  device.allocated -= static_cast<double>(block.bytes);
  // What its stream is given next may get this memory: all that was done with it must come before that.
  VectorClock next = streams_[static_cast<std::size_t>(block.stream)].clock;
  next.join(host_);
  for (const Access& access : block.history.accesses()) {
    if (access.is_before(next) || std::ranges::find(block.recorded, access.stream) != block.recorded.end()) continue;
    report(
        fmt::format("memory of {} is let go while {} still uses it ({}): it is neither recorded on that stream "
                    "(record_stream) nor waited for",
                    name_stream(block.stream), name_stream(access.stream), access.operation));
    break;
  }
  keep_freed(device, node.key(), std::move(block));
}

void Runtime::keep_freed(Device& device, std::uint64_t offset, Block block) {
  std::vector<Event> until;
  for (const int stream : block.recorded) {
    const Stream& user = streams_[static_cast<std::size_t>(stream)];
    until.push_back({stream, user.queue->pushed(), user.clock, user.end});
  }
  Block kept{.bytes = block.bytes, .stream = block.stream};
  if (!until.empty()) {
    device.freed.push_back({offset, std::move(kept), std::move(until)});
  } else {
    device.cached[{kept.stream, kept.bytes}].emplace_back(offset, std::move(kept));
  }
}

void Runtime::release_freed(Device& device) {
  for (auto freed = device.freed.begin(); freed != device.freed.end();) {
    if (!std::ranges::all_of(freed->until, [&](const Event& event) { return is_done(event); })) {
      ++freed;
      continue;
    }
    device.cached[{freed->block.stream, freed->block.bytes}].emplace_back(freed->offset, std::move(freed->block));
    freed = device.freed.erase(freed);
  }
}

void Runtime::release_cached(Device& device) {
  for (auto& [key, blocks] : device.cached) {
    for (const auto& [offset, block] : blocks) device.space.emplace(offset, block.bytes);
  }
  device.cached.clear();
  for (auto space = device.space.begin(); space != device.space.end();) {
    const auto next = std::next(space);
    if (next != device.space.end() && space->first + space->second == next->first) {
      space->second += next->second;
      device.space.erase(next);
    } else {
      space = next;
    }
  }
}

void Runtime::record(const std::byte* memory, int stream) {
  const std::lock_guard lock(mutex_);
  const auto found = find_device(memory);
  if (!found) return;
  Device& device = devices_[static_cast<std::size_t>(*found)];
  const auto block = device.blocks.find(static_cast<std::uint64_t>(memory - device.memory.host()));
  if (block == device.blocks.end() || block->second.stream == stream) return;
  std::vector<int>& recorded = block->second.recorded;
  if (std::ranges::find(recorded, stream) == recorded.end()) recorded.push_back(stream);
}

double Runtime::allocated_bytes(int device) const {
  const std::lock_guard lock(mutex_);
  return devices_[static_cast<std::size_t>(device)].allocated;
}

double Runtime::peak_bytes(int device) const {
  const std::lock_guard lock(mutex_);
  return devices_[static_cast<std::size_t>(device)].peak;
}

void Runtime::reset_peak(int device) {
  const std::lock_guard lock(mutex_);
  Device& reset = devices_[static_cast<std::size_t>(device)];
  reset.peak = reset.allocated;
}

// Pinned memory of the host.

std::byte* Runtime::allocate_pinned(std::size_t bytes) {
  const std::size_t room = std::bit_ceil(std::max(bytes, kPage));
  const std::lock_guard lock(mutex_);
  const auto fits = [&](const auto& free) {
    return free.second.memory.bytes() == room &&
           std::ranges::all_of(free.second.until, [&](const Event& event) { return is_done(event); });
  };
  Pinned pinned;
  if (const auto found = std::ranges::find_if(pinned_free_, fits); found != pinned_free_.end()) {
    pinned.memory = std::move(found->second.memory);
    pinned_free_.erase(found);
    protect(pinned.memory.host(), room, Protection::kReadWrite);
  } else {
    auto memory = TwinMemory::create(room, Protection::kReadWrite);
    if (!memory) return nullptr;
    pinned.memory = std::move(*memory);
  }
  pinned.bytes = bytes;
  std::byte* const host = pinned.memory.host();
  std::memset(host, kPoison, bytes);
  pinned_.emplace(host, std::move(pinned));
  return host;
}

void Runtime::free_pinned(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = pinned_.find(memory);
  if (found == pinned_.end()) return;
  Pinned pinned = std::move(found->second);
  pinned_.erase(found);
  for (const Flight& flight : pinned.flights) {
    const Stream& user = streams_[static_cast<std::size_t>(flight.access.stream)];
    pinned.until.push_back({flight.access.stream, user.queue->pushed(), user.clock, user.end});
  }
  pinned_free_.emplace_back(memory, std::move(pinned));
}

Status Runtime::pin(std::byte* memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (find_pinned(memory) != nullptr) {
    return fail(ErrorCode::kInvalidInput, "memory was pinned twice");
  }
  Pinned pinned;
  MOTLEY_ASSIGN(pinned.memory, TwinMemory::map_again(memory, bytes));
  pinned.is_ours = false;
  pinned.bytes = bytes;
  pinned_.emplace(pinned.memory.host(), std::move(pinned));
  return {};
}

void Runtime::unpin(std::byte* memory) {
  std::unique_lock lock(mutex_);
  const auto* const found = find_pinned(memory);
  if (found == nullptr || found->second.is_ours) return;
  const Pinned& pinned = found->second;
  if (!pinned.flights.empty()) {
    report("memory is unpinned while a copy still uses it");
    const std::vector<Flight> flights = pinned.flights;
    lock.unlock();
    for (const Flight& flight : flights) drain(flight.access.stream);  // so that what was found can be told
    lock.lock();
    protect(pinned.memory.host(), pinned.memory.bytes(), Protection::kReadWrite);
  }
  pinned_.erase(found->first);
}

// Where memory is.

std::optional<int> Runtime::find_device(const void* memory) const {
  const auto* const address = static_cast<const std::byte*>(memory);
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const TwinMemory& arena = devices_[i].memory;
    if (address >= arena.host() && address < arena.host() + arena.bytes()) return static_cast<int>(i);
  }
  return std::nullopt;
}

bool Runtime::is_device(const void* memory) const {
  return find_device(memory).has_value();
}

std::pair<const std::byte* const, Runtime::Pinned>* Runtime::find_pinned(const void* memory) {
  const auto* const address = static_cast<const std::byte*>(memory);
  auto found = pinned_.upper_bound(address);
  if (found == pinned_.begin()) return nullptr;
  --found;
  return address < found->first + found->second.memory.bytes() ? &*found : nullptr;
}

const std::pair<const std::byte* const, Runtime::Pinned>* Runtime::find_pinned(const void* memory) const {
  return const_cast<Runtime*>(this)->find_pinned(memory);
}

bool Runtime::is_pinned(const void* memory) const {
  const std::lock_guard lock(mutex_);
  return find_pinned(memory) != nullptr;
}

std::byte* Runtime::kernel_address(const void* memory) const {
  const auto* const address = static_cast<const std::byte*>(memory);
  if (const auto device = find_device(memory)) {
    const TwinMemory& arena = devices_[static_cast<std::size_t>(*device)].memory;
    return arena.device() + (address - arena.host());
  }
  const std::lock_guard lock(mutex_);
  if (const auto* pinned = find_pinned(memory)) {
    const TwinMemory& twin = pinned->second.memory;
    return twin.device() + (address - twin.host());
  }
  return const_cast<std::byte*>(address);
}

// Streams.

// What is wrong with an operation's access, if anything.
std::optional<std::string> Runtime::note(int stream, const Bytes& bytes, std::uint64_t count, const VectorClock& clock,
                                         const char* name) {
  const auto explain = [&](const Access& earlier) -> std::string {
    return fmt::format("'{}' on {} {} bytes that '{}' on {} {}, with neither an event nor a wait of the host between",
                       name, name_stream(stream), bytes.writes ? "writes" : "reads", earlier.operation,
                       name_stream(earlier.stream), earlier.writes ? "writes" : "reads");
  };
  std::optional<std::string> violation;
  Access access{.stream = stream, .count = count, .writes = bytes.writes, .operation = name};
  if (const auto number = find_device(bytes.begin)) {
    Device& device = devices_[static_cast<std::size_t>(*number)];
    access.begin = static_cast<std::uint64_t>(bytes.begin - device.memory.host());
    access.end = static_cast<std::uint64_t>(bytes.end - device.memory.host());
    auto block = device.blocks.upper_bound(access.begin);
    if (block == device.blocks.begin() || (--block)->first + block->second.bytes < access.end) {
      return fmt::format("'{}' on {} uses memory of emulated:{} that was let go", name, name_stream(stream), *number);
    }
    if (const auto earlier = block->second.history.add(access, clock)) violation = explain(*earlier);
    return violation;
  }
  auto* const found = find_pinned(bytes.begin);
  if (found == nullptr) return violation;
  Pinned& pinned = found->second;
  access.begin = static_cast<std::uint64_t>(bytes.begin - found->first);
  access.end = static_cast<std::uint64_t>(bytes.end - found->first);
  if (const auto earlier = pinned.history.add(access, clock)) violation = explain(*earlier);
  // Pages that others have bytes in, too, cannot be protected.
  const bool to_end = pinned.is_ours && access.end >= pinned.bytes;
  Flight flight{round_up(access.begin, kPage), to_end ? pinned.memory.bytes() : access.end / kPage * kPage, access};
  if (flight.begin >= flight.end) return violation;
  pinned.flights.push_back(flight);
  protect_pages(pinned.memory.host(), pinned, flight.begin, flight.end);
  return violation;
}

// What all copies that are under way allow, page by page where they differ.
void Runtime::protect_pages(std::byte* host, const Pinned& pinned, std::uint64_t begin, std::uint64_t end) const {
  protect(host + begin, end - begin, Protection::kReadWrite);
  for (const bool writes : {false, true}) {
    for (const Flight& flight : pinned.flights) {
      const std::uint64_t from = std::max(begin, flight.begin), to = std::min(end, flight.end);
      if (flight.access.writes != writes || from >= to) continue;
      protect(host + from, to - from, writes ? Protection::kNone : Protection::kRead);
    }
  }
}

Event Runtime::give(int number, Engine engine, double seconds, const std::vector<Bytes>& bytes,
                    std::function<void()> work, const char* name) {
  Stream& stream = streams_[static_cast<std::size_t>(number)];
  stream.clock.join(host_);
  const std::uint64_t count = stream.clock.advance(number);
  std::optional<std::string> violation;
  for (const Bytes& used : bytes) {
    if (used.begin == used.end) continue;
    auto found = note(number, used, count, stream.clock, name);
    if (!violation) violation = std::move(found);
  }
  if (violation) report(std::move(*violation));
  if (seconds > 0) {
    double& engine_end =
        devices_[static_cast<std::size_t>(find_device_number(number))].engine_end[static_cast<std::size_t>(engine)];
    engine_end = stream.end = std::max({monotonic_seconds(), stream.end, engine_end}) + seconds;
  }
  const std::uint64_t task = stream.queue->push(std::move(work));
  return {number, task, stream.clock, stream.end};
}

Event Runtime::issue(int stream, Engine engine, double seconds, const std::vector<Bytes>& bytes,
                     std::function<void()> work, const char* name) {
  const std::lock_guard lock(mutex_);
  check();
  const auto guarded = [this, work = std::move(work), name] {
    try {
      work();
    } catch (const std::exception& error) {
      const std::lock_guard in_task(mutex_);
      report(fmt::format("'{}' failed: {}", name, error.what()));
    }
  };
  Event event = give(stream, engine, seconds, bytes, guarded, name);
  check();
  return event;
}

Event Runtime::issue_and_see(int stream, Engine engine, double seconds, const std::vector<Bytes>& bytes,
                             const std::function<void()>& work, const char* name) {
  std::exception_ptr thrown;
  Event event;
  {
    const std::lock_guard lock(mutex_);
    check();
    event = give(
        stream, engine, seconds, bytes,
        [&] {
          try {
            work();
          } catch (...) {
            thrown = std::current_exception();
          }
        },
        name);
  }
  streams_[static_cast<std::size_t>(stream)].queue->wait(event.task);
  if (thrown) std::rethrow_exception(thrown);
  const std::lock_guard lock(mutex_);
  check();
  return event;
}

Event Runtime::record_event(int number) const {
  const std::lock_guard lock(mutex_);
  const Stream& stream = streams_[static_cast<std::size_t>(number)];
  return {number, stream.queue->pushed(), stream.clock, stream.end};
}

void Runtime::wait_for_event(int number, const Event& event) {
  if (event.stream < 0 || event.stream == number) return;
  const std::lock_guard lock(mutex_);
  Stream& stream = streams_[static_cast<std::size_t>(number)];
  stream.clock.join(event.clock);
  stream.end = std::max(stream.end, event.end);
  const StreamQueue& other = *streams_[static_cast<std::size_t>(event.stream)].queue;
  if (!other.is_done(event.task)) {
    stream.queue->push([&other, task = event.task] { other.wait(task); });
  }
}

bool Runtime::is_done(const Event& event) const {
  return event.stream < 0 || (streams_[static_cast<std::size_t>(event.stream)].queue->is_done(event.task) &&
                              monotonic_seconds() >= event.end);
}

void Runtime::wait(const Event& event) const {
  if (event.stream < 0) return;
  streams_[static_cast<std::size_t>(event.stream)].queue->wait(event.task);
  SteadyClock::instance().sleep_until(event.end);
}

// The host may touch what copies before `clock` read and wrote.
void Runtime::host_sees(const VectorClock& clock) {
  host_.join(clock);
  for (auto& [host, pinned] : pinned_) {
    std::uint64_t begin = ~std::uint64_t{0}, end = 0;
    std::erase_if(pinned.flights, [&](const Flight& flight) {
      if (!flight.access.is_before(host_)) return false;
      begin = std::min(begin, flight.begin);
      end = std::max(end, flight.end);
      return true;
    });
    if (begin < end) protect_pages(pinned.memory.host(), pinned, begin, end);
  }
}

bool Runtime::query(const Event& event) {
  const std::lock_guard lock(mutex_);
  check();
  if (!is_done(event)) return false;
  host_sees(event.clock);
  return true;
}

void Runtime::synchronize(const Event& event) {
  wait(event);
  const std::lock_guard lock(mutex_);
  host_sees(event.clock);
  check();
}

void Runtime::synchronize_stream(int stream) {
  synchronize(record_event(stream));
}

void Runtime::synchronize_device(int device) {
  for (int i = 0; i < kStreams; ++i) synchronize_stream(device * kStreams + i);
}

void Runtime::drain(int stream) const {
  const StreamQueue& queue = *streams_[static_cast<std::size_t>(stream)].queue;
  queue.wait(queue.pushed());
}

void Runtime::collect_violations(bool on) {
  const std::lock_guard lock(mutex_);
  collects_ = on;
  failure_.clear();
}

std::vector<std::string> Runtime::take_violations() {
  const std::lock_guard lock(mutex_);
  return std::exchange(violations_, {});
}

bool Runtime::has_failed() const {
  const std::lock_guard lock(mutex_);
  return !failure_.empty();
}

void Runtime::refuse(std::string violation) {
  const std::lock_guard lock(mutex_);
  report(std::move(violation));
}

bool Runtime::is_forbidden_access(const void* address, bool* goes_on) {
  const std::lock_guard lock(mutex_);
  *goes_on = collects_;
  if (const auto number = find_device(address)) {
    report(fmt::format("the host touches memory of emulated:{}, which only that device reads and writes", *number));
    if (*goes_on) {
      const TwinMemory& arena = devices_[static_cast<std::size_t>(*number)].memory;
      const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(address) - arena.host());
      protect(arena.host() + offset / kPage * kPage, kPage, Protection::kReadWrite);
    }
    return true;
  }
  auto* const found = find_pinned(address);
  if (found == nullptr) return false;
  Pinned& pinned = found->second;
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - found->first);
  const auto covers = [&](const Flight& flight) { return flight.begin <= offset && offset < flight.end; };
  const auto flight = std::ranges::find_if(pinned.flights, covers);
  if (flight == pinned.flights.end()) {  // another thread has waited since
    *goes_on = true;
    return true;
  }
  report(fmt::format("the host touches pinned memory that '{}' on {} still {}: it has not waited for it",
                     flight->access.operation, name_stream(flight->access.stream),
                     flight->access.writes ? "writes" : "reads"));
  if (*goes_on) {
    std::erase_if(pinned.flights, covers);
    protect_pages(pinned.memory.host(), pinned, 0, pinned.memory.bytes());
  }
  return true;
}

}  // namespace motley::nn::emulated
