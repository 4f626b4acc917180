// Seeded randomness that is the same on every machine and compiler: a counter-based hash, a small generator on it, and
// permutations. Nothing here reads the clock or the operating system.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace motley {

// A well-mixed 64-bit value of its arguments; order matters. Use it to derive seeds: mix({seed, epoch, rank}).
std::uint64_t mix(std::initializer_list<std::uint64_t> values);

// splitmix64 (Steele, Lea, Flood 2014): 64 bits of state, period 2^64. Not thread-safe.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  std::uint64_t below(std::uint64_t bound);  // uniform in [0, bound), bound > 0
  double uniform();                          // uniform in [0, 1)
  double normal();                           // mean 0, variance 1
  double exponential(double mean);

 private:
  std::uint64_t state_;
};

// A uniformly random order of 0 .. size-1 (Fisher-Yates), fixed by the seed. size < 2^32.
std::vector<std::uint32_t> permutation(std::uint32_t size, std::uint64_t seed);

}  // namespace motley
