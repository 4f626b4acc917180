// Safetensors files of tensors, with the reference library as the other side.
#include "motley/train/step/tensor_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "motley/base/os/file.h"
#include "tests/temporary_folder.h"

namespace motley::train {
namespace {

using nn::NamedTensor;
using nn::NamedTensors;

NamedTensors sample_tensors() {
  torch::manual_seed(1);
  return {{"layer.weight", torch::randn({3, 4}).requires_grad_()},
          {"transposed", torch::randn({3, 4}, torch::kFloat64).t()},
          {"half", torch::randn({5}).to(torch::kBFloat16)},
          {"count", torch::tensor(41, torch::kInt64)},
          {"empty", torch::zeros({0, 3})},
          {"flags", torch::tensor({true, false, true})}};
}

void expect_equal(const NamedTensors& found, const NamedTensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const NamedTensor& tensor : expected) {
    const auto match = std::ranges::find(found, tensor.name, &NamedTensor::name);
    ASSERT_NE(match, found.end()) << tensor.name;
    EXPECT_EQ(match->tensor.scalar_type(), tensor.tensor.scalar_type()) << tensor.name;
    EXPECT_TRUE(torch::equal(match->tensor, tensor.tensor)) << tensor.name;
  }
}

TEST(TensorFile, TensorsComeBackAsTheyWere) {
  const auto bytes = encode_tensors(sample_tensors(), {{"step", "12"}});
  ASSERT_TRUE(bytes) << bytes.error().message;
  const auto file = decode_tensors(*bytes);
  ASSERT_TRUE(file) << file.error().message;
  expect_equal(file->tensors, sample_tensors());
  EXPECT_EQ(file->metadata.at("step"), "12");

  const auto refused = decode_tensors(bytes->substr(0, bytes->size() - 1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  EXPECT_FALSE(encode_tensors({{"a", torch::zeros({1})}, {"a", torch::zeros({1})}})) << "one name twice";
  EXPECT_FALSE(encode_tensors({{"a", torch::zeros({1}, torch::kComplexFloat)}}));
}

TEST(TensorFile, TheReferenceLibraryReadsAndWritesTheSame) {
  const TemporaryFolder folder;
  const std::string python = "cd '" + folder.path.string() + "' && '" MOTLEY_PYTHON "'";
  const char* const look = " -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec(\"safetensors\"))'";
  if (std::system((python + look).c_str()) != 0) {
    GTEST_SKIP() << "no Python module safetensors in " << MOTLEY_PYTHON;
  }
  ASSERT_TRUE(write_file(folder.path / "ours.safetensors", *encode_tensors(sample_tensors(), {{"step", "12"}})));
  ASSERT_TRUE(write_file(folder.path / "rewrite.py", R"(
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
tensors = load_file('ours.safetensors')
with safe_open('ours.safetensors', 'pt') as file:
    save_file(tensors, 'theirs.safetensors', file.metadata())
)"));
  ASSERT_EQ(std::system((python + " rewrite.py").c_str()), 0);
  const auto bytes = read_file(folder.path / "theirs.safetensors");
  ASSERT_TRUE(bytes) << bytes.error().message;
  const auto file = decode_tensors(*bytes);
  ASSERT_TRUE(file) << file.error().message;
  expect_equal(file->tensors, sample_tensors());
  EXPECT_EQ(file->metadata.at("step"), "12");
}

}  // namespace
}  // namespace motley::train
