// Goes through a chunk in blocks that stay in the first-level cache: of each block the gradients are widened and
// summed, the optimizer's step is taken and the new weights are rounded for the wire, so that memory is passed over
// once. What the next blocks need is fetched meanwhile: the hardware's prefetchers lose streams that are left and come
// back to in turn, as the passes within a block do.
#include "motley/kernels/update.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "motley/kernels/sum.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace motley::kernels {
namespace {

constexpr std::size_t kBlock = 128;  // elements: some dozen blocks of float32 leave room in the first-level cache
static_assert(kInt8Block % kBlock == 0, "values of a block have one scale of int8");
constexpr std::size_t kGroup = 8;     // inputs in one pass: as many streams as the hardware's prefetchers follow
constexpr std::size_t kAhead = 2;     // blocks, that what is needed is fetched ahead
constexpr std::size_t kLine = 64;     // bytes, that are fetched at once
constexpr std::size_t kSquares = 16;  // sums of squares that run beside each other
static_assert(kBlock % kSquares == 0, "an element's sum does not depend on where blocks end");

// An update's options as the loops want them.
struct Factors {
  float learning_rate;  // of Adam: corrected for the first moment's bias
  float weight_decay;
  float kept;  // of the weights after decoupled decay
  float old_first, new_first;
  float now, ahead;  // kNesterov: of the gradient and of the momentum in the step
  float old_second, new_second;
  float root;  // corrects the square root of the second moment
  float epsilon;
};

#define MOTLEY_BODY "motley/kernels/update_body.inc"
#include "motley/kernels/every_target.inc"

// A step is now * gradient + ahead * momentum. In a step of constant gradient g the momentum goes to
// g / (1 - mu) by the factor mu; a fraction w of the step goes by mu^w, and the weights move by what the whole step
// would have moved them by up to there.
void set_momentum(const UpdateOptions& options, Factors& factors) {
  const double mu = options.momentum;
  const double w = options.fraction;
  const bool nesterov = options.rule == UpdateRule::kNesterov;
  // Not in the first step, nor in its parts.
  const double damped = options.step - options.fraction < 1 - 1e-9 ? 1 : 1 - options.dampening;
  double now = nesterov ? 1 : 0;
  double ahead = nesterov ? mu : 1;
  double reached = 1;  // (1 - mu^w) / (1 - mu)
  if (w < 1) {
    const double rate = nesterov ? 1 + mu * damped / (1 - mu) : damped / (1 - mu);  // at the constant gradient
    reached = (1 - std::pow(mu, w)) / (1 - mu);
    ahead = reached * std::pow(mu, (nesterov ? 2 : 1) - w);
    now = w * rate - reached * damped * ((nesterov ? mu * mu : mu) / (1 - mu) + ahead);
  }
  factors.old_first = static_cast<float>(std::pow(mu, w));
  factors.new_first = static_cast<float>(damped * reached);
  factors.now = static_cast<float>(now);
  factors.ahead = static_cast<float>(ahead);
}

void set_moments(const UpdateOptions& options, Factors& factors) {
  const auto bias = [&](double beta) { return 1 - std::pow(beta, options.step); };
  const double first = std::pow(options.beta1, options.fraction);
  const double second = std::pow(options.beta2, options.fraction);
  factors.learning_rate = static_cast<float>(options.fraction * options.learning_rate / bias(options.beta1));
  factors.old_first = static_cast<float>(first);
  factors.new_first = static_cast<float>(1 - first);
  factors.old_second = static_cast<float>(second);
  factors.new_second = static_cast<float>(1 - second);
  factors.root = static_cast<float>(1 / std::sqrt(bias(options.beta2)));
}

// A part of a step of momentum is of gradient and momentum, as Nesterov's form is.
UpdateRule find_form(const UpdateOptions& options) {
  return options.rule == UpdateRule::kMomentum && options.fraction < 1 ? UpdateRule::kNesterov : options.rule;
}

Factors compute_factors(const UpdateOptions& options) {
  Factors factors{};
  factors.learning_rate = static_cast<float>(options.learning_rate);
  factors.weight_decay = static_cast<float>(options.weight_decay);
  factors.kept = static_cast<float>(std::pow(1 - options.learning_rate * options.weight_decay, options.fraction));
  factors.epsilon = static_cast<float>(options.epsilon);
  const int arrays = state_arrays(options.rule);
  if (arrays == 0) factors.learning_rate = static_cast<float>(options.fraction * options.learning_rate);
  if (arrays == 1) set_momentum(options, factors);
  if (arrays == 2) set_moments(options, factors);
  return factors;
}

void take_step(Instructions instructions, UpdateRule rule, const Factors& factors, const float* gradient,
               float* weights, float* first, float* second, std::size_t count) {
  MOTLEY_DISPATCH(instructions, step(rule, factors, gradient, weights, first, second, count));
}

void take_step_apart(Instructions instructions, UpdateRule rule, const Factors& factors, const float* gradient,
                     const float* weights, const float* first, const float* second, float (*values)[kBlock],
                     std::size_t count) {
  MOTLEY_DISPATCH(instructions,
                  step_apart(rule, factors, gradient, weights, first, second, values[0], values[1], values[2], count));
}

// The input's values from element `begin` as float32: where they lie, or in `widened`.
const float* widen(const WireInput& input, std::size_t begin, std::size_t count, float* widened,
                   Instructions instructions) {
  if (input.scales != nullptr) {
    const std::span values(static_cast<const std::int8_t*>(input.values) + begin, count);
    dequantize_int8_blocks(values, input.scales + begin / kInt8Block, widened, kInt8Block, instructions);
    return widened;
  }
  if (input.format == WireFormat::kFloat32) return static_cast<const float*>(input.values) + begin;
  read_format(input.format, static_cast<const std::byte*>(input.values) + begin * byte_size(input.format),
              {widened, count}, instructions);
  return widened;
}

// sum = (sum_i coefficients[i] * inputs[i]) * scale for the elements [begin, begin + count), at most kBlock of them.
// Inputs that are too many for one pass are added in groups; the sum so far enters a group as its first input with
// coefficient one, so that the order of additions is kept.
void sum_block(std::span<const WireInput> inputs, std::span<const float> coefficients, float scale, std::size_t begin,
               std::size_t count, float* sum, Instructions instructions) {
  alignas(64) float widened[kGroup][kBlock];
  const float* values[kGroup];
  float factors[kGroup];
  std::size_t next = 0;
  do {
    std::size_t used = 0;
    if (next > 0) {
      values[used] = sum;
      factors[used++] = 1;
    }
    while (used < kGroup && next < inputs.size()) {
      values[used] = widen(inputs[next], begin, count, widened[used], instructions);
      factors[used++] = coefficients[next++];
    }
    weighted_sum(std::span<const float* const>(values, used), std::span<const float>(factors, used),
                 next == inputs.size() ? scale : 1.0F, std::span<float* const>(&sum, 1), count, instructions);
  } while (next < inputs.size());
}

// Always inlined: GCC takes a function that only fetches for one without effects, and leaves out calls of it.
template <int kWrites, std::size_t kBytes>
[[gnu::always_inline]] inline void fetch_lines(const void* values) {
  for (std::size_t at = 0; at < kBytes; at += kLine) {
    __builtin_prefetch(static_cast<const std::byte*>(values) + at, kWrites);
  }
}

// Begins to bring what the elements [begin, begin + kBlock) need into the first-level cache. Of more inputs than are
// summed in one pass it has no room for all.
template <int kWrites>
[[gnu::always_inline]] inline void fetch_block(std::span<const WireInput> inputs, const float* weights,
                                               const float* const* state, int states, std::size_t begin) {
  if (inputs.size() > kGroup) return;
  for (const WireInput& input : inputs) {
    const auto* const values = static_cast<const std::byte*>(input.values);
    if (input.scales != nullptr) {
      fetch_lines<0, kBlock>(values + begin);
    } else if (input.format == WireFormat::kFloat32) {
      fetch_lines<0, kBlock * sizeof(float)>(values + begin * sizeof(float));
    } else {
      fetch_lines<0, kBlock * sizeof(std::uint16_t)>(values + begin * sizeof(std::uint16_t));
    }
  }
  fetch_lines<kWrites, kBlock * sizeof(float)>(weights + begin);
  for (int array = 0; array < states; ++array) fetch_lines<kWrites, kBlock * sizeof(float)>(state[array] + begin);
}

// Copies a block, aligned to a line, to memory that is not read soon: whole lines past the caches, which so are not
// fetched first.
void stream_block(Instructions instructions, const float* from, float* to, std::size_t count) {
  if (reinterpret_cast<std::uintptr_t>(to) % kLine != 0 || count % (kLine / sizeof(float)) != 0) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  MOTLEY_DISPATCH(instructions, stream_lines(from, to, count));
}

void finish_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

void add_block_squares(Instructions instructions, const float* values, std::size_t count, double* sums) {
  MOTLEY_DISPATCH(instructions, add_squares(values, count, sums));
}

}  // namespace

void fused_update(std::span<const WireInput> inputs, std::span<const float> coefficients, float scale,
                  const UpdateOptions& options, float* weights, float* const* state, void* wire_weights,
                  WireFormat wire_format, std::size_t count, Instructions instructions) {
  const Factors factors = compute_factors(options);
  const UpdateRule form = find_form(options);
  const int states = state_arrays(form);
  alignas(64) float gradient[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t length = std::min(kBlock, count - begin);
    const std::size_t ahead = begin + kAhead * kBlock;
    if (ahead + kBlock <= count) fetch_block<1>(inputs, weights, state, states, ahead);
    sum_block(inputs, coefficients, scale, begin, length, gradient, instructions);
    take_step(instructions, form, factors, gradient, weights + begin, states > 0 ? state[0] + begin : nullptr,
              states > 1 ? state[1] + begin : nullptr, length);
    if (wire_weights == nullptr) continue;
    write_format(wire_format, {weights + begin, length},
                 static_cast<std::byte*>(wire_weights) + begin * byte_size(wire_format), instructions);
  }
}

double fused_update_apart(std::span<const WireInput> inputs, std::span<const float> coefficients, float scale,
                          const UpdateOptions& options, const float* weights, const float* const* state,
                          float* new_weights, float* const* new_state, std::size_t count, Instructions instructions) {
  const Factors factors = compute_factors(options);
  const UpdateRule form = find_form(options);
  const int states = state_arrays(form);
  alignas(kLine) float gradient[kBlock];
  alignas(kLine) float values[3][kBlock];  // the block's new weights and state
  alignas(kLine) double squares[kSquares] = {};
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t length = std::min(kBlock, count - begin);
    const std::size_t ahead = begin + kAhead * kBlock;
    if (ahead + kBlock <= count) fetch_block<0>(inputs, weights, state, states, ahead);
    sum_block(inputs, coefficients, scale, begin, length, gradient, instructions);
    add_block_squares(instructions, gradient, length, squares);
    take_step_apart(instructions, form, factors, gradient, weights + begin, states > 0 ? state[0] + begin : nullptr,
                    states > 1 ? state[1] + begin : nullptr, values, length);
    stream_block(instructions, values[0], new_weights + begin, length);
    for (int array = 0; array < states; ++array) {
      stream_block(instructions, values[array + 1], new_state[array] + begin, length);
    }
  }
  finish_streams();
  double sum = 0;
  for (const double one : squares) sum += one;
  return sum;
}

}  // namespace motley::kernels
