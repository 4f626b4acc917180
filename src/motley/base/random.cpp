#include "motley/base/random.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace motley {
namespace {

std::uint64_t scramble(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

std::uint64_t mix(std::initializer_list<std::uint64_t> values) {
  std::uint64_t state = 0x9e3779b97f4a7c15ULL;
  for (std::uint64_t value : values) {
    state = scramble(state + 0x9e3779b97f4a7c15ULL + scramble(value + 0x632be59bd9b4e019ULL));
  }
  return state;
}

std::uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15ULL;
  return scramble(state_);
}

std::uint64_t Random::below(std::uint64_t bound) {
  // Values under the threshold would favour small results; they are drawn again.
  const std::uint64_t threshold = (0 - bound) % bound;
  for (;;) {
    const std::uint64_t value = next();
    if (value >= threshold) return value % bound;
  }
}

double Random::uniform() {
  return static_cast<double>(next() >> 11) * 0x1.0p-53;
}

double Random::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

double Random::exponential(double mean) {
  return -mean * std::log(1.0 - uniform());
}

std::vector<std::uint32_t> permutation(std::uint32_t size, std::uint64_t seed) {
  std::vector<std::uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  Random random(seed);
  for (std::uint32_t i = size; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace motley
