// The emulated accelerator without PyTorch: devices with memory and streams, events, pinned memory of the host, and the
// time that everything takes. It computes with what it is given, on a thread a stream, and checks on the way that
// whoever uses it orders every access as a real accelerator needs it:
//
// - Operations of two streams on the same bytes, of which one writes, need an event between them, or a wait of the
// host.
// - Memory of a device that another stream uses must be recorded on that stream before it is let go, unless the stream
//   that it belongs to comes after.
// - The host never touches a device's memory. Pinned memory that a copy writes it may not touch, and one that a copy
//   reads it may not write, until it has waited for the copy: both fault.
//
// Order is what was given when, by vector clocks; so a missing wait is found in every run, however fast the threads
// are. All threads of the host count as one. Time is kept aside: an operation ends when its profile says, and who waits
// for it waits until then; kernels and copies themselves run as soon as their stream's turn comes.
#pragma once

#include <array>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "motley/nn/emulated/happens_before.h"
#include "motley/nn/emulated/options.h"
#include "motley/nn/emulated/stream_queue.h"
#include "motley/nn/emulated/twin_memory.h"

namespace motley::nn::emulated {

constexpr int kStreams = 9;  // of a device: the default one, and those that are given out

// What an operation takes its time of; those of one engine of a device take turns.
enum class Engine { kCompute, kToDevice, kToHost };

// Bytes that an operation uses, as tensors have them.
struct Bytes {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool writes = false;
};

// Where a stream stood.
struct Event {
  int stream = -1;         // -1: not recorded
  std::uint64_t task = 0;  // done once this is
  VectorClock clock = {};  // what is before it
  double end = 0;          // monotonic seconds
};

// Any thread. Streams are numbered over all devices: a device's are kStreams in a row. Where an operation is refused it
// throws std::runtime_error, with what was not ordered, and so does every one after it, as a device that has failed
// does.
class Runtime {
 public:
  explicit Runtime(const Options& options);
  ~Runtime();  // once all is done
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const Options& options() const { return options_; }
  static int find_device_number(int stream) { return stream / kStreams; }

  // Memory of a stream's device, poisoned: all bits set, which is NaN, or -1. Of the stream's own order: what it freed
  // it may be given again at once. nullptr where there is none left.
  std::byte* allocate(int stream, std::size_t bytes);
  void free(std::byte* memory);
  // Memory is not given out again before what this stream has been given so far is done.
  void record(const std::byte* memory, int stream);
  double allocated_bytes(int device) const;
  double peak_bytes(int device) const;
  void reset_peak(int device);

  // Pinned memory of the host, and memory that is pinned where it is, which must be mapped shared (Status says why
  // not).
  std::byte* allocate_pinned(std::size_t bytes);
  void free_pinned(std::byte* memory);
  Status pin(std::byte* memory, std::size_t bytes);
  void unpin(std::byte* memory);

  bool is_device(const void* memory) const;
  std::optional<int> find_device(const void* memory) const;
  bool is_pinned(const void* memory) const;
  // Where kernels find these bytes: elsewhere for a device's and pinned ones.
  std::byte* kernel_address(const void* memory) const;

  // Work for a stream, which reads and writes these bytes and takes so many seconds of the engine. The work uses what
  // kernel_address() says, and may throw: the device has failed then. Returns an event after it.
  Event issue(int stream, Engine engine, double seconds, const std::vector<Bytes>& bytes, std::function<void()> work,
              const char* name);
  // Work whose result the host must see before it can go on; `work` is done when this returns, and what it throws is
  // thrown here. For the order it is as if the host had not seen it.
  Event issue_and_see(int stream, Engine engine, double seconds, const std::vector<Bytes>& bytes,
                      const std::function<void()>& work, const char* name);

  Event record_event(int stream) const;
  void wait_for_event(int stream, const Event& event);
  // Whether the host may go on after it, which counts as having waited.
  bool query(const Event& event);
  void synchronize(const Event& event);
  void synchronize_stream(int stream);
  void synchronize_device(int device);
  // Waits until a stream's work is done, which for the order is as if the host had not.
  void drain(int stream) const;

  // Whether what was found is kept for take_violations() and no longer makes operations fail.
  void collect_violations(bool on);
  std::vector<std::string> take_violations();
  bool has_failed() const;

  // Notes that what is asked for is not allowed.
  void refuse(std::string violation);

  // A fault at an address: whether it was the host's forbidden access to this runtime's memory, which is noted, and
  // which may be repeated. Called by the handler of SIGSEGV.
  bool is_forbidden_access(const void* address, bool* goes_on);

 private:
  struct Block {
    std::size_t bytes = 0;
    int stream = 0;
    AccessHistory history = {};
    std::vector<int> recorded = {};  // streams that use it besides
  };
  struct Freed {
    std::uint64_t offset;
    Block block;
    std::vector<Event> until;
  };
  struct Device {
    TwinMemory memory;
    std::map<std::uint64_t, Block> blocks = {};         // given out, by offset
    std::map<std::uint64_t, std::uint64_t> space = {};  // that no stream has: offset and bytes
    std::map<std::pair<int, std::size_t>, std::vector<std::pair<std::uint64_t, Block>>> cached = {};
    std::list<Freed> freed = {};  // still used by streams that were recorded
    std::array<double, 3> engine_end = {};
    double allocated = 0;
    double peak = 0;
  };
  // A copy that the host may not disturb yet.
  struct Flight {
    std::uint64_t begin;  // whole pages, from the block's beginning
    std::uint64_t end;
    Access access;
  };
  struct Pinned {
    TwinMemory memory;
    bool is_ours = true;
    std::size_t bytes = 0;  // that were asked for; what follows them in the last page is nobody's
    AccessHistory history = {};
    std::vector<Flight> flights = {};
    std::vector<Event> until = {};  // once freed
  };
  struct Stream {
    VectorClock clock;
    double end = 0;
    std::unique_ptr<StreamQueue> queue = std::make_unique<StreamQueue>();
  };

  void check() const;
  void report(std::string violation);
  std::optional<std::string> note(int stream, const Bytes& bytes, std::uint64_t count, const VectorClock& clock,
                                  const char* name);
  Event give(int stream, Engine engine, double seconds, const std::vector<Bytes>& bytes, std::function<void()> work,
             const char* name);
  std::optional<std::pair<std::uint64_t, Block>> take_block(Device& device, int stream, std::size_t bytes);
  void keep_freed(Device& device, std::uint64_t offset, Block block);
  void release_freed(Device& device);
  void release_cached(Device& device);
  std::pair<const std::byte* const, Pinned>* find_pinned(const void* memory);
  const std::pair<const std::byte* const, Pinned>* find_pinned(const void* memory) const;
  void protect_pages(std::byte* host, const Pinned& pinned, std::uint64_t begin, std::uint64_t end) const;
  void host_sees(const VectorClock& clock);
  bool is_done(const Event& event) const;
  void wait(const Event& event) const;
  static std::string name_stream(int stream);

  const Options options_;
  mutable std::mutex mutex_;  // guards all below
  std::vector<Device> devices_;
  std::vector<Stream> streams_;
  std::map<const std::byte*, Pinned> pinned_;
  std::vector<std::pair<std::byte*, Pinned>> pinned_free_;
  VectorClock host_;  // what the host has waited for
  bool collects_ = false;
  std::vector<std::string> violations_;
  std::string failure_;  // of the device: empty as long as there is none
};

}  // namespace motley::nn::emulated
