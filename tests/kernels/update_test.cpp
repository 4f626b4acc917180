// The fused update against a plain loop over single elements, bit by bit, in every instruction set.
#include "motley/kernels/update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "motley/base/random.h"
#include "motley/kernels/sum.h"
#include "tests/kernels/supported.h"

namespace motley::kernels {
namespace {

using Bytes = std::vector<std::byte>;

constexpr UpdateRule kRules[] = {UpdateRule::kSum,      UpdateRule::kSgd,  UpdateRule::kMomentum,
                                 UpdateRule::kNesterov, UpdateRule::kAdam, UpdateRule::kAdamW};
constexpr WireFormat kFormats[] = {WireFormat::kFloat32, WireFormat::kBfloat16, WireFormat::kFloat16};
constexpr std::size_t kShift = 3;  // elements by which buffers are out of line

Bytes on_the_wire(const std::vector<float>& values, WireFormat format) {
  Bytes bytes((values.size() + kShift) * byte_size(format));
  std::byte* const to = bytes.data() + kShift * byte_size(format);
  if (format == WireFormat::kFloat32) {
    std::memcpy(to, values.data(), values.size() * sizeof(float));
  } else if (format == WireFormat::kBfloat16) {
    round_to_bfloat16(values, reinterpret_cast<std::uint16_t*>(to), Instructions::kPortable);
  } else {
    round_to_float16(values, reinterpret_cast<std::uint16_t*>(to), Instructions::kPortable);
  }
  return bytes;
}

float element(const Bytes& bytes, WireFormat format, std::size_t e) {
  const std::byte* const from = bytes.data() + (kShift + e) * byte_size(format);
  float value;
  std::uint16_t half;
  if (format == WireFormat::kFloat32) {
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  std::memcpy(&half, from, sizeof(half));
  if (format == WireFormat::kBfloat16) {
    widen_bfloat16({&half, 1}, &value, Instructions::kPortable);
  } else {
    widen_float16({&half, 1}, &value, Instructions::kPortable);
  }
  return value;
}

// Weights, state and what was written for the wire; each behind kShift elements and before one that must not change.
struct Arrays {
  std::vector<float> weights, first, second;
  Bytes wire;
};

struct Problem {
  std::size_t count = 0;
  std::vector<WireFormat> formats;
  std::vector<Bytes> inputs;
  std::vector<float> coefficients;
  float scale = 1;
  UpdateOptions options;
  std::optional<WireFormat> wire;
  Arrays before;

  std::vector<WireInput> wire_inputs() const {
    std::vector<WireInput> result;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      result.push_back({inputs[i].data() + kShift * byte_size(formats[i]), formats[i]});
    }
    return result;
  }
};

std::vector<float> random_values(Random& random, std::size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

Problem random_problem(Random& random, UpdateRule rule, std::size_t inputs, std::size_t count) {
  Problem problem;
  problem.count = count;
  const bool same = random.below(2) == 0;
  for (std::size_t i = 0; i < inputs; ++i) {
    problem.formats.push_back(same ? kFormats[0] : kFormats[random.below(3)]);
    problem.inputs.push_back(on_the_wire(random_values(random, count), problem.formats.back()));
    problem.coefficients.push_back(random.below(3) == 0 ? 1.0F : static_cast<float>(random.uniform() * 100));
  }
  problem.scale = static_cast<float>(0.001 + random.uniform());
  problem.options = {.rule = rule,
                     .learning_rate = random.uniform(),
                     .momentum = random.uniform(),
                     .dampening = random.uniform(),
                     .weight_decay = random.below(2) == 0 ? 0 : random.uniform(),
                     .beta1 = random.uniform(),
                     .beta2 = random.uniform(),
                     .epsilon = 1e-6,
                     .step = static_cast<double>(1 + random.below(5))};
  if (random.below(4) > 0) problem.wire = kFormats[random.below(3)];
  problem.before.weights = random_values(random, count + kShift + 1);
  problem.before.first = random_values(random, count + kShift + 1);
  problem.before.second = random_values(random, count + kShift + 1);
  for (float& value : problem.before.second) value = std::fabs(value);
  problem.before.wire = Bytes((count + kShift + 1) * sizeof(float), std::byte{0x5a});
  return problem;
}

Arrays update(const Problem& problem, const std::vector<WireInput>& inputs, const std::vector<float>& coefficients,
              Instructions instructions) {
  Arrays arrays = problem.before;
  float* const state[] = {arrays.first.data() + kShift, arrays.second.data() + kShift};
  const WireFormat format = problem.wire.value_or(WireFormat::kFloat32);
  fused_update(inputs, coefficients, problem.scale, problem.options, arrays.weights.data() + kShift, state,
               problem.wire ? arrays.wire.data() + kShift * byte_size(format) : nullptr, format, problem.count,
               instructions);
  return arrays;
}

// One element after the other, as PyTorch's documentation words it, each operation rounded to float.
Arrays plain(const Problem& problem) {
  const UpdateOptions& o = problem.options;
  Arrays arrays = problem.before;
  for (std::size_t e = 0; e < problem.count; ++e) {
    float g = 0;
    for (std::size_t i = 0; i < problem.inputs.size(); ++i) {
      const float product = element(problem.inputs[i], problem.formats[i], e) * problem.coefficients[i];
      g = i == 0 ? product : g + product;
    }
    if (!problem.inputs.empty()) g = g * problem.scale;
    float& w = arrays.weights[kShift + e];
    float& first = arrays.first[kShift + e];
    float& second = arrays.second[kShift + e];
    const auto rate = static_cast<float>(o.learning_rate);
    if (o.rule != UpdateRule::kSum && o.rule != UpdateRule::kAdamW && o.weight_decay != 0) {
      g = g + static_cast<float>(o.weight_decay) * w;
    }
    switch (o.rule) {
      case UpdateRule::kSum:
        w = g;
        break;
      case UpdateRule::kSgd:
        w = w - rate * g;
        break;
      case UpdateRule::kMomentum:
      case UpdateRule::kNesterov: {
        const auto momentum = static_cast<float>(o.momentum);
        const float added = o.step == 1 ? g : static_cast<float>(1 - o.dampening) * g;
        first = momentum * first + added;
        g = o.rule == UpdateRule::kNesterov ? g + momentum * first : first;
        w = w - rate * g;
        break;
      }
      case UpdateRule::kAdam:
      case UpdateRule::kAdamW: {
        if (o.rule == UpdateRule::kAdamW) w = w * static_cast<float>(1 - o.learning_rate * o.weight_decay);
        first = static_cast<float>(o.beta1) * first + static_cast<float>(1 - o.beta1) * g;
        second = static_cast<float>(o.beta2) * second + static_cast<float>(1 - o.beta2) * g * g;
        const double step = o.step;
        const auto root = static_cast<float>(1 / std::sqrt(1 - std::pow(o.beta2, step)));
        const float denominator = std::sqrt(second) * root + static_cast<float>(o.epsilon);
        w = w - static_cast<float>(o.learning_rate / (1 - std::pow(o.beta1, step))) * (first / denominator);
        break;
      }
    }
  }
  if (problem.wire) {
    const std::vector<float> weights(arrays.weights.begin() + kShift, arrays.weights.end() - 1);
    const Bytes bytes = on_the_wire(weights, *problem.wire);
    const std::size_t shift = kShift * byte_size(*problem.wire);
    std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(shift), bytes.end(),
              arrays.wire.begin() + static_cast<std::ptrdiff_t>(shift));
  }
  return arrays;
}

void expect_same(const std::vector<float>& one, const std::vector<float>& other) {
  ASSERT_EQ(one.size(), other.size());
  for (std::size_t e = 0; e < one.size(); ++e) {
    ASSERT_EQ(std::memcmp(&one[e], &other[e], sizeof(float)), 0)
        << "element " << e << ": " << one[e] << ", " << other[e];
  }
}

void expect_same(const Arrays& one, const Arrays& other) {
  expect_same(one.weights, other.weights);
  expect_same(one.first, other.first);
  expect_same(one.second, other.second);
  ASSERT_EQ(one.wire, other.wire);
}

std::size_t random_count(Random& random) {
  return random.below(4) == 0 ? random.below(3000) : random.below(150);
}

TEST(FusedUpdate, EqualsAPlainLoopInEveryInstructionSet) {
  Random random(21);
  for (int round = 0; round < 240; ++round) {
    const UpdateRule rule = kRules[round % 6];
    const std::size_t inputs = random.below(round % 5 == 0 ? 25 : 9);
    const Problem problem = random_problem(random, rule, inputs, random_count(random));
    const Arrays expected = plain(problem);
    for (Instructions instructions : supported()) {
      SCOPED_TRACE(::testing::Message() << "rule " << static_cast<int>(rule) << ", " << inputs << " inputs, "
                                        << problem.count << " elements, set " << static_cast<int>(instructions));
      expect_same(update(problem, problem.wire_inputs(), problem.coefficients, instructions), expected);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(FusedUpdate, AddsAsTheReducersDo) {
  Random random(23);
  for (std::size_t inputs : {0, 1, 2, 8, 9, 15, 16, 40}) {
    const std::size_t count = 2077;
    std::vector<std::vector<float>> values;
    std::vector<const float*> pointers;
    std::vector<WireInput> wire;
    std::vector<float> coefficients;
    for (std::size_t i = 0; i < inputs; ++i) {
      values.push_back(random_values(random, count));
      pointers.push_back(values.back().data());
      wire.push_back({values.back().data(), WireFormat::kFloat32});
      coefficients.push_back(static_cast<float>(random.uniform()));
    }
    std::vector<float> sum(count);
    std::vector<float> updated(count);
    float* const output = sum.data();
    weighted_sum(pointers, coefficients, 0.3F, std::span(&output, 1), count);
    fused_update(wire, coefficients, 0.3F, {}, updated.data(), nullptr, nullptr, WireFormat::kFloat32, count);
    expect_same(updated, sum);
  }
}

TEST(FusedUpdate, MayWriteIntoTheBuffersOfItsInputs) {
  Random random(24);
  for (std::size_t inputs : {1, 3, 12}) {
    Problem problem = random_problem(random, UpdateRule::kAdam, inputs, 1501);
    problem.wire = problem.formats.back();
    const Arrays expected = plain(problem);
    Problem same = problem;
    float* const state[] = {same.before.first.data() + kShift, same.before.second.data() + kShift};
    auto wire_inputs = same.wire_inputs();
    fused_update(wire_inputs, same.coefficients, same.scale, same.options, same.before.weights.data() + kShift, state,
                 same.inputs.back().data() + kShift * byte_size(*same.wire), *same.wire, same.count);
    expect_same(same.before.weights, expected.weights);
    const auto begin = static_cast<std::ptrdiff_t>(kShift * byte_size(*same.wire));
    ASSERT_TRUE(
        std::equal(same.inputs.back().begin() + begin, same.inputs.back().end(), expected.wire.begin() + begin));

    Problem sum = random_problem(random, UpdateRule::kSum, inputs, 1501);
    sum.formats.back() = WireFormat::kFloat32;
    sum.inputs.back() = on_the_wire(
        std::vector<float>(sum.before.weights.begin() + kShift, sum.before.weights.end() - 1), WireFormat::kFloat32);
    const Arrays summed = plain(sum);
    wire_inputs = sum.wire_inputs();
    wire_inputs.back().values = sum.before.weights.data() + kShift;
    fused_update(wire_inputs, sum.coefficients, sum.scale, sum.options, sum.before.weights.data() + kShift, nullptr,
                 nullptr, WireFormat::kFloat32, sum.count);
    expect_same(sum.before.weights, summed.weights);
  }
}

// The step into other buffers is the step in place, wherever these lie, and leaves everything else as it is.
TEST(FusedUpdateApart, IsTheStepInPlaceAndKeepsWhatWas) {
  Random random(25);
  for (int round = 0; round < 120; ++round) {
    const UpdateRule rule = kRules[round % 6];
    Problem problem = random_problem(random, rule, 1 + random.below(9), random_count(random));
    problem.wire.reset();
    Arrays expected = plain(problem);
    double squares = 0;
    Problem sum = problem;
    sum.options.rule = UpdateRule::kSum;
    const Arrays gradient = plain(sum);
    for (std::size_t e = 0; e < problem.count; ++e) squares += std::pow(double{gradient.weights[kShift + e]}, 2);
    std::optional<double> first_squares;
    for (Instructions instructions : supported()) {
      for (const std::size_t shift : {std::size_t{0}, kShift}) {
        SCOPED_TRACE(::testing::Message()
                     << "rule " << static_cast<int>(rule) << ", " << problem.count << " elements, set "
                     << static_cast<int>(instructions) << ", shift " << shift);
        const std::size_t room = problem.count + 64;
        std::vector<float> results(3 * room, 7);
        const auto place = [&](std::size_t array) {  // on a line of cache, or shifted from it
          auto at = reinterpret_cast<std::uintptr_t>(results.data() + array * room);
          return reinterpret_cast<float*>((at + 63) / 64 * 64) + shift;
        };
        const Arrays before = problem.before;
        const float* const state[] = {before.first.data() + kShift, before.second.data() + kShift};
        float* const new_state[] = {place(1), place(2)};
        const double found =
            fused_update_apart(problem.wire_inputs(), problem.coefficients, problem.scale, problem.options,
                               before.weights.data() + kShift, state, place(0), new_state, problem.count, instructions);
        expect_same(before, problem.before);
        const auto result = [&](std::size_t array) {
          return std::vector<float>(place(array), place(array) + problem.count);
        };
        const auto part = [&](const std::vector<float>& all) {
          return std::vector<float>(all.begin() + kShift, all.end() - 1);
        };
        expect_same(result(0), part(expected.weights));
        if (state_arrays(rule) > 0) expect_same(result(1), part(expected.first));
        if (state_arrays(rule) > 1) expect_same(result(2), part(expected.second));
        for (std::size_t array = 0; array < 3; ++array) EXPECT_EQ(place(array)[problem.count], 7);
        EXPECT_NEAR(found, squares, 1e-12 * squares);
        EXPECT_EQ(found, first_squares.value_or(found));
        first_squares = found;
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace motley::kernels
