// Processes, their threads and the time of a simulated cluster. Who runs next is drawn by a seed, at each call of the
// system that a thread makes; time moves only where nobody can run. So a seed says all that happens.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "motley/base/random.h"
#include "tests/simulation/fiber.h"

namespace motley::simulation {

struct Process;

struct Thread {
  Process* process = nullptr;
  std::uint64_t number = 0;
  std::unique_ptr<Fiber> fiber;
  std::uint64_t waits = 0;  // how often it has begun to wait; a word for an earlier wait is void
  bool is_waiting = false;
  bool was_woken = false;  // not by the time alone
  bool has_ended = false;
  const char* waits_in = "";  // for messages
};

// Threads that wait until something changes.
class WaitQueue {
 public:
  void add(Thread& thread);
  void wake_all();
  void wake_one();  // any

 private:
  struct Entry {
    Thread* thread;
    std::uint64_t wait;
  };
  std::vector<Entry> entries_;
  std::size_t tidied_at_ = 8;  // entries, from which on those of waits that are over are dropped
};

// What a descriptor refers to.
class File {
 public:
  virtual ~File() = default;
  virtual short ready() const { return 0; }  // events of poll(2) that hold
  virtual void close() {}                    // by its process, or as that has ended
  WaitQueue changed;
};

struct Process {
  int id = 0;
  int host = 0;
  std::string name;
  bool is_service = false;  // run() does not wait for its end
  bool has_ended = false;
  bool is_stopped = false;
  int status = 0;  // what its main function has returned; 128 + signal where it was killed
  // Something that happens before the call of the system of this number.
  struct Calls {
    std::uint64_t number = 0;  // so far
    std::map<std::uint64_t, std::function<void()>> acts;
  };
  Calls operations;
  Calls disk_operations;  // of these that change the disk, or have it synced
  std::vector<Thread*> threads;
  std::vector<Thread*> held;  // that could run, were it not stopped
  std::vector<int> descriptors;
  std::vector<std::shared_ptr<File>> files;  // that others have open to wait for its end
};

class Simulator {
 public:
  explicit Simulator(std::uint64_t seed);
  ~Simulator();
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  // The thread that runs; null outside of all.
  static Thread* running();
  static Simulator& instance();

  double now() const { return now_; }
  void pass(double seconds) { now_ += seconds; }
  Random& random() { return random_; }
  bool chance(double probability) { return random_.uniform() < probability; }

  Process& start_process(int host, std::string name, std::function<int()> main, bool is_service = false);
  Process* find(int id);
  void kill(Process& process, int signal = 9);
  void stop(Process& process);
  void go_on(Process& process);
  const std::deque<std::unique_ptr<Process>>& processes() const { return processes_; }
  std::function<void(Process&)> on_end;  // of any process

  Thread& start_thread(Process& process, std::function<void()> body);
  Thread* find_thread(std::uint64_t number);

  void at(double time, std::function<void()> act);
  // Until all processes but services have ended, or the time; false: the time has come, nothing will ever happen, or
  // threads go on without end.
  bool run(double until);

  // Of the thread that runs. Another one may run now.
  void operation();
  void disk_operation();
  void yield();
  // Until it is woken through one of the queues that it was added to since begin_wait(), or the time has come. Whether
  // it was woken.
  Thread& begin_wait(const char* what);
  bool wait(double until);
  void wake(Thread& thread, std::uint64_t wait, bool by_time = false);

  int open(std::shared_ptr<File> file);
  const std::shared_ptr<File>& file(int descriptor) const;  // until one is opened or closed; null: there is none
  bool close(int descriptor);

  WaitQueue& queue_at(const void* address) { return queues_[address]; }

  // Of all decisions so far: two runs of a seed have the same.
  std::uint64_t trace() const { return trace_; }
  void note(const std::string& text);
  std::vector<std::string> take_notes() { return std::move(notes_); }
  bool keeps_notes = false;
  bool has_pauses = false;  // a thread that could go on is held up now and then, while time goes on
  std::string describe_waits() const;

 private:
  // Something that happens, or the end of a thread's wait.
  struct Event {
    double time;
    std::uint64_t number;
    Thread* thread;  // null: `of` is among acts_
    std::uint64_t of;
    bool operator<(const Event& other) const { return time != other.time ? time > other.time : number > other.number; }
  };
  void end(Process& process, int status);
  void make_runnable(Thread& thread);
  bool count(Process& process, Process::Calls& calls);
  void switch_away();
  void pause();
  void add_event(double time, Thread* thread, std::uint64_t of);
  bool act_on_next_event(double until);

  Random random_;
  double now_ = 0;
  std::uint64_t trace_ = 0;
  std::uint64_t next_event_ = 0;
  std::vector<Event> events_;  // a heap
  std::vector<std::function<void()>> acts_;
  std::vector<std::size_t> free_acts_;  // places in it
  std::deque<std::unique_ptr<Process>> processes_;
  std::deque<std::unique_ptr<Thread>> threads_;  // by number
  std::vector<Thread*> runnable_;
  int alive_ = 0;                                      // processes that are no services
  std::vector<std::shared_ptr<File>> files_;           // by descriptor, from the first on
  std::unordered_map<const void*, WaitQueue> queues_;  // of what threads wait for by its address
  std::vector<std::string> notes_;
};

}  // namespace motley::simulation
