// What PyTorch asks of a plug-in device: memory, streams and events, pinned memory, generators. All of it is registered
// when it is enabled, and not when the program starts: who does not use it is not changed by it.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <regex>
#include <utility>
#include <vector>

#include "motley/nn/emulated/emulated_accelerator.h"
#include "motley/nn/emulated/kernels.h"
#include "motley/nn/emulated/omissions.h"

namespace motley::nn::emulated {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

std::atomic<Runtime*> the_runtime = nullptr;  // never destroyed: tensors may outlive everything
struct sigaction handler_before;

thread_local c10::DeviceIndex current_device = 0;
thread_local std::vector<int> current_streams;  // of each device, numbered within it

c10::DeviceIndex count_devices() {
  const Runtime* const runtime = the_runtime;
  return runtime == nullptr ? c10::DeviceIndex{0} : static_cast<c10::DeviceIndex>(runtime->options().devices);
}

int& own_stream(int device) {
  if (current_streams.empty()) current_streams.resize(static_cast<std::size_t>(count_devices()));
  return current_streams.at(static_cast<std::size_t>(device));
}

int number_stream(const c10::Stream& stream) {
  return stream.device_index() * kStreams + static_cast<int>(stream.id());
}

c10::Stream make_stream(c10::DeviceIndex device, int number) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), number);
}

c10::DeviceIndex find_index(c10::Device device) {
  return device.has_index() ? device.index() : current_device;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(current_device, find_index(device))};
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override { current_device = find_index(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = find_index(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return count_devices(); }

  c10::Stream getStream(c10::Device device) const override {
    return make_stream(find_index(device), own_stream(find_index(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return make_stream(find_index(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  // As CUDA's: of a few, in turn.
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<unsigned> given = 0;
    return make_stream(find_index(device), 1 + static_cast<int>(given++ % (kStreams - 1)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::DeviceIndex device = stream.device_index();
    return make_stream(device, std::exchange(own_stream(device), static_cast<int>(stream.id())));
  }
  bool queryStream(const c10::Stream& stream) const override {
    if (omits(Order::kQuery, __builtin_return_address(0))) return true;
    return runtime().query(runtime().record_event(number_stream(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    if (omits(Order::kSynchronize, __builtin_return_address(0))) return;
    runtime().synchronize_stream(number_stream(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    if (!omits(Order::kSynchronize, __builtin_return_address(0))) runtime().synchronize_device(device);
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    const bool keeps_order = flag != c10::EventFlag::BACKEND_DEFAULT;  // those are there to take times
    if (keeps_order && omits(Order::kRecord, __builtin_return_address(0))) return;
    if (*event == nullptr) *event = new Event();
    *static_cast<Event*>(*event) = runtime().record_event(number_stream(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr || omits(Order::kWait, __builtin_return_address(0))) return;
    runtime().wait_for_event(number_stream(stream), *static_cast<Event*>(event));
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr || omits(Order::kQuery, __builtin_return_address(0))) return true;
    return runtime().query(*static_cast<Event*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr || omits(Order::kSynchronize, __builtin_return_address(0))) return;
    runtime().synchronize(*static_cast<Event*>(event));
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    return 1e3 * (static_cast<Event*>(second)->end - static_cast<Event*>(first)->end);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    runtime().record(static_cast<const std::byte*>(data.get()), number_stream(stream));
  }
};

void free_memory(void* memory) {
  runtime().free(static_cast<std::byte*>(memory));
}

class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::DeviceIndex device = current_device;
    void* memory = nullptr;
    if (bytes > 0) {
      memory = runtime().allocate(current_stream(device), bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "emulated:", static_cast<int>(device), " has ",
                       runtime().options().memory_bytes, " bytes, of which ", runtime().allocated_bytes(device),
                       " are taken and ", bytes, " more were asked for");
    }
    return {memory, memory, memory == nullptr ? &c10::detail::deleteNothing : &free_memory, c10::Device(kType, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::byte* const target = runtime().kernel_address(to);
    const std::byte* const source = runtime().kernel_address(from);
    const auto* const begin = static_cast<const std::byte*>(from);
    runtime().issue(
        current_stream(current_device), Engine::kCompute, 0,
        {{begin, begin + bytes, false}, {static_cast<std::byte*>(to), static_cast<std::byte*>(to) + bytes, true}},
        [=] { std::memcpy(target, source, bytes); }, "clone of memory");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    runtime().record(static_cast<const std::byte*>(data.get()), number_stream(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& allocated = stats.allocated_bytes[0];
    allocated.current = static_cast<std::int64_t>(runtime().allocated_bytes(device));
    allocated.peak = static_cast<std::int64_t>(runtime().peak_bytes(device));
    stats.reserved_bytes[0] = allocated;
    stats.active_bytes[0] = allocated;
    return stats;
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const double all = runtime().options().memory_bytes;
    return {static_cast<std::size_t>(all - runtime().allocated_bytes(device)), static_cast<std::size_t>(all)};
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { runtime().reset_peak(device); }
};

void free_pinned_memory(void* memory) {
  runtime().free_pinned(static_cast<std::byte*>(memory));
}

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::kCPU};
    if (omits(Order::kPin, __builtin_return_address(0))) return c10::GetAllocator(c10::kCPU)->allocate(bytes);
    void* const memory = runtime().allocate_pinned(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "cannot map ", bytes, " bytes of pinned memory");
    return {memory, memory, &free_pinned_memory, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned_memory; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

// Draws what a generator of the CPU with the same seed does. Kernels draw in the order of their stream.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex device)
      : c10::GeneratorImpl({kType, device}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu_(at::make_generator<at::CPUGeneratorImpl>()) {}

  const at::Generator& cpu() const { return cpu_; }
  void set_current_seed(std::uint64_t seed) override { drained().set_current_seed(seed); }
  void set_offset(std::uint64_t offset) override { drained().set_offset(offset); }
  std::uint64_t get_offset() const override { return drained().get_offset(); }
  std::uint64_t current_seed() const override { return drained().current_seed(); }
  std::uint64_t seed() override { return drained().seed(); }
  void set_state(const c10::TensorImpl& state) override { drained().unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return drained().unsafeGetGeneratorImpl()->get_state();
  }

 private:
  // Once kernels that were given before have drawn. The order of other accesses is not the host's by that.
  at::Generator& drained() const;
  Generator* clone_impl() const override {
    auto* const copy = new Generator(device_.index());
    copy->set_state(*get_state());
    return copy;
  }
  mutable at::Generator cpu_;
};

at::Generator& Generator::drained() const {
  for (int i = 0; i < kStreams; ++i) runtime().drain(device_.index() * kStreams + i);
  return cpu_;
}

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return count_devices() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return count_devices(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current_device, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device : exchangeDevice(device);
  }
  bool isPinnedPtr(const void* memory) const override { return runtime().is_pinned(memory); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* const allocator = new PinnedMemory();
    return allocator;
  }
  c10::Device getDeviceFromPtr(void* memory) const override {
    const auto device = runtime().find_device(memory);
    TORCH_CHECK(device, "an address that is no memory of an emulated accelerator");
    return {kType, static_cast<c10::DeviceIndex>(*device)};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    static auto* const generators = [] {
      auto* const made = new std::vector<at::Generator>();
      for (c10::DeviceIndex i = 0; i < count_devices(); ++i) made->push_back(at::make_generator<Generator>(i));
      return made;
    }();
    return generators->at(static_cast<std::size_t>(device < 0 ? current_device : device));
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current_device : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::Allocator& allocator = *c10::GetAllocator(kType);
    c10::DataPtr memory = allocator.allocate(bytes);
    if (const std::size_t kept = std::min(bytes, storage.nbytes()); kept > 0) {
      allocator.copy_data(memory.get_context(), storage.data_ptr().get_context(), kept);
    }
    storage.set_data_ptr(std::move(memory));
    storage.set_nbytes(bytes);
  }
};

// The host's faults at memory that is not its own, said in words before they end the process.
void on_fault(int signal, siginfo_t* info, void* context) {
  bool goes_on = false;
  if (runtime().is_forbidden_access(info->si_addr, &goes_on) && goes_on) return;
  ::sigaction(signal, &handler_before, nullptr);  // the access is repeated, and meets that one
  (void)context;
}

void catch_faults() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGSEGV, &action, &handler_before);
}

void write_survey(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "a");
  if (file == nullptr) return;
  for (const Place& place : noted_places()) {
    fmt::print(file, "{} {}\n", place.text(), place.calls);
  }
  std::fclose(file);
}

// Threads compute no longer when what they use is destroyed. What was found so late that no operation failed of it
// fails the process.
void end_at_exit() {
  for (int i = 0; i < count_devices() * kStreams; ++i) runtime().drain(i);
  if (const std::string& survey = runtime().options().survey; !survey.empty()) write_survey(survey);
  if (!runtime().has_failed()) return;
  std::fflush(nullptr);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace

Runtime& runtime() {
  return *the_runtime;
}

Status pin(void* memory, std::size_t bytes) {
  if (omits(Order::kPin, __builtin_return_address(0))) return {};
  return runtime().pin(static_cast<std::byte*>(memory), bytes);
}

bool is_enabled() {
  return the_runtime != nullptr;
}

bool is_asked_for() {
  return std::getenv("MOTLEY_EMULATED") != nullptr;
}

std::string given_options() {
  const char* const text = std::getenv("MOTLEY_EMULATED");
  return text == nullptr ? "" : text;
}

std::string describe(const std::string& text) {
  const Options options = Options::parse(text).value_or(Options());
  const bool is_slowed =
      options.flops_per_second > 0 || options.memory_bytes_per_second > 0 || options.kernel_seconds > 0;
  return fmt::format("an emulated accelerator{}{}", is_slowed ? "" : " as fast as the CPU",
                     text.empty() ? "" : ": " + std::regex_replace(text, std::regex(",\\s*"), ", "));
}

int current_stream(int device) {
  return device * kStreams + own_stream(device);
}

const at::Generator& cpu_generator(const at::Generator& generator) {
  return dynamic_cast<const Generator&>(*generator.unsafeGetGeneratorImpl()).cpu();
}

Status enable(const Options& options) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (is_enabled()) return {};
  if (at::isPrivateUse1HooksRegistered()) {
    return fail(ErrorCode::kUnavailable, "device: '{}' was asked for, and another plug-in of PyTorch is in its place",
                kDeviceName);
  }
  if (!options.omit.empty()) {
    MOTLEY_ASSIGN(const Place place, Place::parse(options.omit));
    omit_place(&place);
  }
  if (!options.survey.empty()) note_places(true);
  try {
    the_runtime = new Runtime(options);
    c10::register_privateuse1_backend(kDeviceName);
    static const c10::impl::DeviceGuardImplRegistrar guard(kType, new Guard());
    c10::SetAllocator(kType, new Memory());
    at::RegisterPrivateUse1HooksInterface(new Hooks());
    register_kernels();
  } catch (const std::exception& error) {
    return fail(ErrorCode::kUnavailable, "device: '{}': {}", kDeviceName, error.what());
  }
  catch_faults();
  std::atexit(end_at_exit);
  return {};
}

Status enable() {
  if (is_enabled()) return {};
  MOTLEY_ASSIGN(const Options options, Options::parse(given_options()));
  return enable(options);
}

}  // namespace motley::nn::emulated
