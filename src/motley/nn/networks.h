// The networks that Motley can train: a few of its own, and any PyTorch module from a file of torch.export.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/nn/stage.h"

namespace motley::nn {

inline constexpr const char* kExportedNetwork = "exported";  // the name of networks that come from .pt2 files

// The `model` part of a job. Fields that a network does not use must keep their defaults.
struct NetworkSpec {
  std::string name = "cnn";               // mlp, cnn, resnet18, vgg11, transformer, ctrdnn, 2emb, matchnet, nce,
                                          // exported, synthetic
  std::string path;                       // exported: the file; synthetic: the profile
  std::vector<std::int64_t> input_shape;  // one sample: channels x height x width; for mlp any shape;
                                          // for transformer the number of tokens; for networks of ctr_models.h
                                          // the features, beside which there are categories
  std::int64_t outputs = 0;  // classes, or values to predict; of a transformer also the tokens that it reads
  std::string norm;          // resnet18: batch (default) or group; vgg11: none (default), batch or group
  std::optional<std::vector<std::int64_t>> hidden;  // sizes of hidden fully connected layers: mlp (default 128), cnn
                                                    // (64), vgg11 (4096, 4096 for images of 64 and more, else 512),
                                                    // ctrdnn (400, 400, 400), 2emb (400, 400, 50)
  std::int64_t layers = 0;                          // transformer: blocks; 0: 4; synthetic: at most, 0: all
  std::int64_t width = 0;                           // transformer: values a token between the blocks; 0: 128
  std::int64_t heads = 0;                           // transformer: heads of each attention; 0: 4
  bool tied = false;                                // transformer: the output layer's weights are the embedding's
  std::int64_t categories = 0;                      // networks of ctr_models.h: ids a sample
  std::int64_t dimension = 0;                       // the same: values of a row; 0: 10, of nce 128
  std::int64_t rows = 0;          // the same: of the table; 0, if rows are served: as many as there are ids
  bool served_rows = false;       // the same: rows come with the input, see LookupLayout
  double dropout = 0;             // mlp, vgg11, transformer: share of hidden values left out, in [0, 1)
  std::string dtype = "float32";  // float32, float64
};

// Checks the spec; an error names the key ("model.norm") and what would be accepted.
Status check_network(const NetworkSpec& spec);

// Builds or loads the network on the CPU. Initial weights depend on the spec and the seed alone, so all ranks have the
// same; those of an exported module are the file's.
//
// Weights of resnet18 and vgg11 have torchvision's names and shapes (for images of 224). Smaller images meet a smaller
// stem: resnet18 starts with a 3x3 convolution without pooling below 64 pixels, vgg11 leaves out pooling of a single
// pixel.
Result<std::unique_ptr<Network>> make_network(const NetworkSpec& spec, std::uint64_t seed);

// The two together; options.dtype is taken from the spec.
Result<std::unique_ptr<Stage>> make_stage(const NetworkSpec& spec, std::uint64_t seed, StageOptions options);

}  // namespace motley::nn
