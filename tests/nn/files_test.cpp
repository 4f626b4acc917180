// Files that others write: TorchScript with motley-export.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>

#include "motley/base/os/file.h"
#include "motley/nn/loss.h"
#include "motley/nn/networks.h"

namespace motley::nn {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FilesTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  struct Answer {
    int exit_code;
    std::string text;  // standard output and error
  };
  Answer run(const std::string& command) {
    FILE* pipe = ::popen(("cd '" + folder_.string() + "' && " + command + " 2>&1").c_str(), "r");
    std::string text;
    std::array<char, 4096> block{};
    while (const std::size_t size = std::fread(block.data(), 1, block.size(), pipe)) {
      text.append(block.data(), size);
    }
    const int status = ::pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
  }
  bool python_has(const std::string& module) { return run(python_ + " -c 'import " + module + "'").exit_code == 0; }

  const fs::path folder_ = fs::temp_directory_path() / ("motley_files_test_" + std::to_string(::getpid()));
  const std::string python_ = MOTLEY_PYTHON;
};

constexpr const char* kModels = R"(
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.fc1 = nn.Linear(12, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(hidden, 3)
    def forward(self, x):
        return self.fc2(self.drop(torch.relu(self.norm(self.fc1(x.flatten(1))))))
class Untyped(Net):
    def forward(self, x, *more):
        return super().forward(x)
)";

TEST_F(FilesTest, AnExportedModuleTrains) {
  if (!python_has("torch")) {
    GTEST_SKIP() << "no Python module torch in " << python_;
  }
  const std::string tool = python_ + " " + MOTLEY_EXPORT;
  ASSERT_TRUE(write_file(folder_ / "model.py", kModels));
  const Answer exported = run(tool + R"( model.py:Net --input 3,2,2 --arguments '{"hidden": 16}' --output out/net.pt)");
  ASSERT_EQ(exported.exit_code, 0) << exported.text;
  EXPECT_THAT(*read_file(folder_ / "out" / "job.yaml"), HasSubstr("input_shape: [3, 2, 2]\n  outputs: 3"));

  NetworkSpec spec;
  spec.name = "torchscript";
  spec.path = (folder_ / "out" / "net.pt").string();
  spec.input_shape = {3, 2, 2};
  const auto stage = make_stage(spec, 0, {});
  ASSERT_TRUE(stage) << stage.error().message;
  EXPECT_EQ((*stage)->parameter_count(), 12 * 16 + 16 + 2 * 16 + 16 * 3 + 3);
  EXPECT_EQ((*stage)->parameters().front().name, "fc1.weight");
  const std::vector<BatchNormLayer> norms = (*stage)->batch_norms();
  ASSERT_EQ(norms.size(), 1u);
  EXPECT_EQ(norms[0].momentum, 0.1);
  EXPECT_TRUE(norms[0].running_mean.eq(0).all().item<bool>()) << "the export must not leave traces of its trial run";

  torch::manual_seed(2);
  const torch::Tensor inputs = torch::randn({96, 3, 2, 2});
  const torch::Tensor targets = inputs.flatten(1).narrow(1, 0, 3).argmax(1);
  std::vector<double> losses;
  for (int step = 0; step < 60; ++step) {
    const Tensors outputs = *(*stage)->forward(step, {inputs});
    const LossOutcome loss = *compute_loss(Loss::kCrossEntropy, outputs[0], targets, 96);
    losses.push_back(loss.sum.item<double>() / 96);
    ASSERT_TRUE((*stage)->backward(step, {loss.output_gradient}));
    const torch::NoGradGuard no_grad;
    for (const NamedTensor& parameter : (*stage)->parameters()) {
      parameter.tensor.sub_(parameter.tensor.grad(), 0.5);
      parameter.tensor.grad().zero_();
    }
  }
  EXPECT_LT(losses.back(), 0.7 * losses.front());
  (*stage)->train(false);
  EXPECT_TRUE(torch::equal((*stage)->forward(0, {inputs})->front(), (*stage)->forward(0, {inputs})->front()))
      << "no dropout in evaluation";
}

TEST_F(FilesTest, TheExportSaysWhatIsWrong) {
  if (!python_has("torch")) {
    GTEST_SKIP() << "no Python module torch in " << python_;
  }
  const std::string tool = python_ + " " + MOTLEY_EXPORT + " ";
  ASSERT_TRUE(write_file(folder_ / "model.py", kModels));
  const auto expect_refusal = [&](const std::string& arguments, const std::string& words) {
    const Answer answer = run(tool + arguments);
    EXPECT_EQ(answer.exit_code, 2) << arguments;
    EXPECT_THAT(answer.text, HasSubstr(words));
    EXPECT_FALSE(fs::exists(folder_ / "model.pt")) << arguments;
  };
  expect_refusal("model.py", "FILE.py:NAME");
  expect_refusal("none.py:Net", "no file");
  expect_refusal("model.py:Nex", "modules in it: Net");
  expect_refusal("model.py:Net --input 5,5", "--input");
  expect_refusal("model.py:Net --input 5,x", "list of sizes");
  expect_refusal("model.py:Net --arguments 3", "object of names");

  const Answer traced = run(tool + "model.py:Untyped --input 12");
  EXPECT_EQ(traced.exit_code, 0) << traced.text;
  EXPECT_THAT(traced.text, HasSubstr("traced instead"));
  EXPECT_THAT(run(tool + "model.py:Net --input 12").text, HasSubstr("--force"));
}

}  // namespace
}  // namespace motley::nn
