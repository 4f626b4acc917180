// Time as a value that is passed in: pure code takes times as arguments, edges take a Clock, and every wait takes a
// Deadline. Seconds are doubles on a monotonic clock with an arbitrary zero that all processes of one machine share.
#pragma once

namespace motley {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual double now() const = 0;             // seconds
  virtual void sleep_until(double time) = 0;  // returns at once when the time has passed
};

// The machine's monotonic clock. Thread-safe.
class SteadyClock final : public Clock {
 public:
  double now() const override;
  void sleep_until(double time) override;
  static SteadyClock& instance();
};

// A clock that a test or a simulation moves by hand: sleeping moves it.
class ManualClock final : public Clock {
 public:
  double now() const override { return now_; }
  void sleep_until(double time) override { now_ = time > now_ ? time : now_; }
  void advance(double seconds) { now_ += seconds; }

 private:
  double now_ = 0;
};

// Monotonic seconds now, of the machine's clock.
double monotonic_seconds();
// Seconds since 1970, for file stamps and logs only.
double wall_seconds();
// CPU seconds that this process has used.
double process_cpu_seconds();
// Bytes of memory that this process had resident at most so far.
double peak_resident_bytes();

// The moment by which a wait must end.
class Deadline {
 public:
  static Deadline after(double seconds) { return Deadline(monotonic_seconds() + seconds, seconds); }
  bool passed() const { return monotonic_seconds() >= at_; }
  double remaining() const;                    // seconds, never below zero
  int remaining_milliseconds() const;          // rounded up, for poll(2)
  double at() const { return at_; }            // monotonic seconds
  double allowed() const { return allowed_; }  // the seconds that were granted, for messages

 private:
  Deadline(double at, double allowed) : at_(at), allowed_(allowed) {}
  double at_;
  double allowed_;
};

}  // namespace motley
