#include "tests/simulation/simulator.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>

namespace motley::simulation {
namespace {

constexpr int kFirstDescriptor = 1 << 20;  // larger than any of the system's
constexpr int kFirstProcess = 1000;
constexpr double kSwitchChance = 0.15;  // at an operation that could go on
constexpr double kOperationSeconds = 1e-6;
constexpr double kPauseChance = 1e-3;  // at an operation, where there are pauses
constexpr double kPauseSeconds = 8e-3;
constexpr std::uint64_t kMostTurns = 3'000'000;  // of threads, a hundred times as many as a run takes on average

Thread* the_running = nullptr;
Simulator* the_instance = nullptr;

}  // namespace

void WaitQueue::add(Thread& thread) {
  if (entries_.size() >= tidied_at_) {
    std::erase_if(entries_,
                  [](const Entry& entry) { return entry.thread->waits != entry.wait || entry.thread->has_ended; });
    tidied_at_ = 2 * entries_.size() + 8;
  }
  entries_.push_back({&thread, thread.waits});
}

void WaitQueue::wake_all() {
  for (const Entry& entry : std::exchange(entries_, {})) Simulator::instance().wake(*entry.thread, entry.wait);
}

void WaitQueue::wake_one() {
  std::erase_if(entries_, [](const Entry& entry) {
    return !entry.thread->is_waiting || entry.thread->waits != entry.wait || entry.thread->has_ended;
  });
  if (entries_.empty()) return;
  const auto chosen =
      entries_.begin() + static_cast<std::ptrdiff_t>(Simulator::instance().random().below(entries_.size()));
  const Entry entry = *chosen;
  entries_.erase(chosen);
  Simulator::instance().wake(*entry.thread, entry.wait);
}

Simulator::Simulator(std::uint64_t seed) : random_(mix({seed, 0x51})) {
  the_instance = this;
}

Simulator::~Simulator() {
  the_instance = nullptr;
}

Thread* Simulator::running() {
  return the_running;
}

Simulator& Simulator::instance() {
  return *the_instance;
}

Process& Simulator::start_process(int host, std::string name, std::function<int()> main, bool is_service) {
  auto process = std::make_unique<Process>();
  process->id = kFirstProcess + static_cast<int>(processes_.size());
  process->host = host;
  process->name = std::move(name);
  Process& started = *processes_.emplace_back(std::move(process));
  started.is_service = is_service;
  if (!is_service) ++alive_;
  start_thread(started, [this, &started, main = std::move(main)] { end(started, main()); });
  return started;
}

Process* Simulator::find(int id) {
  const auto index = static_cast<std::size_t>(id - kFirstProcess);
  return id >= kFirstProcess && index < processes_.size() ? processes_[index].get() : nullptr;
}

Thread& Simulator::start_thread(Process& process, std::function<void()> body) {
  auto thread = std::make_unique<Thread>();
  Thread& started = *thread;
  started.process = &process;
  started.number = threads_.size();
  started.fiber = std::make_unique<Fiber>([this, &started, body = std::move(body)] {
    body();
    started.has_ended = true;
    queues_[&started].wake_all();
  });
  threads_.push_back(std::move(thread));
  process.threads.push_back(&started);
  make_runnable(started);
  return started;
}

Thread* Simulator::find_thread(std::uint64_t number) {
  return number < threads_.size() ? threads_[number].get() : nullptr;
}

// Its threads never run again; what it had open is closed by the system.
void Simulator::end(Process& process, int status) {
  if (std::exchange(process.has_ended, true)) return;
  if (!process.is_service) --alive_;
  process.status = status;
  for (Thread* thread : process.threads) {
    thread->has_ended = true;
    thread->is_waiting = false;
    if (thread != the_running) thread->fiber->abandon();
  }
  std::erase_if(runnable_, [&](const Thread* thread) { return thread->process == &process; });
  process.held.clear();
  for (const int descriptor : std::exchange(process.descriptors, {})) {
    const auto file = std::move(files_[static_cast<std::size_t>(descriptor - kFirstDescriptor)]);
    if (file) file->close();
  }
  for (const auto& file : process.files) file->changed.wake_all();
  if (on_end) on_end(process);
}

void Simulator::kill(Process& process, int signal) {
  if (process.has_ended) return;
  note(fmt::format("{} is killed by signal {}", process.name, signal));
  end(process, 128 + signal);
}

void Simulator::stop(Process& process) {
  if (process.has_ended) return;
  note(fmt::format("{} is stopped", process.name));
  process.is_stopped = true;
}

void Simulator::go_on(Process& process) {
  if (process.has_ended || !std::exchange(process.is_stopped, false)) return;
  note(fmt::format("{} goes on", process.name));
  for (Thread* thread : std::exchange(process.held, {})) runnable_.push_back(thread);
}

void Simulator::make_runnable(Thread& thread) {
  (thread.process->is_stopped ? thread.process->held : runnable_).push_back(&thread);
}

void Simulator::at(double time, std::function<void()> act) {
  if (free_acts_.empty()) {
    free_acts_.push_back(acts_.size());
    acts_.emplace_back();
  }
  const std::size_t place = free_acts_.back();
  free_acts_.pop_back();
  acts_[place] = std::move(act);
  add_event(time, nullptr, place);
}

void Simulator::add_event(double time, Thread* thread, std::uint64_t of) {
  events_.push_back({std::max(time, now_), next_event_++, thread, of});
  std::push_heap(events_.begin(), events_.end());
}

bool Simulator::act_on_next_event(double until) {
  if (events_.empty() || events_.front().time > until) return false;
  std::pop_heap(events_.begin(), events_.end());
  const Event event = events_.back();
  events_.pop_back();
  now_ = std::max(now_, event.time);
  if (event.thread != nullptr) {
    wake(*event.thread, event.of, true);
  } else {
    const auto act = std::exchange(acts_[event.of], nullptr);
    free_acts_.push_back(event.of);
    act();
  }
  return true;
}

bool Simulator::run(double until) {
  for (std::uint64_t turn = 0; alive_ > 0; ++turn) {
    while (act_on_next_event(now_)) continue;
    if (alive_ == 0) break;
    if (now_ > until || turn == kMostTurns) return false;
    if (runnable_.empty()) {
      if (!act_on_next_event(until)) return false;
      continue;
    }
    const auto chosen = runnable_.size() == 1 ? 0 : random_.below(runnable_.size());
    Thread* const thread = runnable_[chosen];
    runnable_[chosen] = runnable_.back();
    runnable_.pop_back();
    if (thread->process->is_stopped) {
      thread->process->held.push_back(thread);
      continue;
    }
    trace_ = mix({trace_, thread->number, std::bit_cast<std::uint64_t>(now_)});
    the_running = thread;
    thread->fiber->resume();
    the_running = nullptr;
    if (thread->has_ended) thread->fiber->abandon();
  }
  return true;
}

void Simulator::switch_away() {
  Fiber& own = *the_running->fiber;
  own.suspend();
}

void Simulator::yield() {
  make_runnable(*the_running);
  switch_away();
}

void Simulator::operation() {
  Process& process = *the_running->process;
  if (process.has_ended) switch_away();  // for ever
  now_ += kOperationSeconds;
  if (count(process, process.operations)) return;
  if (has_pauses && chance(kPauseChance)) return pause();
  if (chance(kSwitchChance)) yield();
}

void Simulator::disk_operation() {
  Process& process = *the_running->process;
  if (!process.has_ended && count(process, process.disk_operations)) return;
  operation();
}

// Whether others have run since, as the process was stopped.
bool Simulator::count(Process& process, Process::Calls& calls) {
  ++calls.number;
  if (calls.acts.empty() || calls.acts.begin()->first > calls.number) return false;
  const auto act = std::move(calls.acts.begin()->second);
  calls.acts.erase(calls.acts.begin());
  act();
  if (process.has_ended) switch_away();  // for ever
  const bool is_stopped = process.is_stopped;
  if (is_stopped) yield();
  return is_stopped;
}

// As where the system has no processor for it.
void Simulator::pause() {
  Thread& thread = *the_running;
  at(now_ + random_.exponential(kPauseSeconds), [this, &thread] {
    if (!thread.has_ended) make_runnable(thread);
  });
  switch_away();
}

Thread& Simulator::begin_wait(const char* what) {
  Thread& thread = *the_running;
  ++thread.waits;
  thread.waits_in = what;
  return thread;
}

bool Simulator::wait(double until) {
  Thread& thread = *the_running;
  thread.is_waiting = true;
  thread.was_woken = false;
  if (until < 1e17) add_event(until, &thread, thread.waits);
  switch_away();
  return thread.was_woken;
}

void Simulator::wake(Thread& thread, std::uint64_t wait, bool by_time) {
  if (!thread.is_waiting || thread.waits != wait || thread.has_ended) return;
  thread.is_waiting = false;
  thread.was_woken = !by_time;
  make_runnable(thread);
}

int Simulator::open(std::shared_ptr<File> file) {
  const int descriptor = kFirstDescriptor + static_cast<int>(files_.size());
  files_.push_back(std::move(file));
  the_running->process->descriptors.push_back(descriptor);
  return descriptor;
}

const std::shared_ptr<File>& Simulator::file(int descriptor) const {
  static const std::shared_ptr<File> kNone;
  const auto index = static_cast<std::size_t>(descriptor - kFirstDescriptor);
  return descriptor >= kFirstDescriptor && index < files_.size() ? files_[index] : kNone;
}

bool Simulator::close(int descriptor) {
  const std::shared_ptr<File> closed = file(descriptor);
  if (!closed) return false;
  files_[static_cast<std::size_t>(descriptor - kFirstDescriptor)] = nullptr;
  std::erase(the_running->process->descriptors, descriptor);
  closed->close();
  return true;
}

void Simulator::note(const std::string& text) {
  if (keeps_notes) notes_.push_back(fmt::format("{:10.6f} s  {}", now_, text));
}

std::string Simulator::describe_waits() const {
  std::string text;
  for (const auto& thread : threads_) {
    if (thread->has_ended || thread->process->is_stopped) continue;
    text += fmt::format("{}{} in {}", text.empty() ? "" : ", ", thread->process->name,
                        thread->is_waiting ? thread->waits_in : "work");
  }
  return text;
}

}  // namespace motley::simulation
