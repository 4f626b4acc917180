// Builds the graphs of published networks (tables.h): appends layers, and knows the shape of each one's output, from
// which the next one's sizes follow.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "motley/model/graph.h"

namespace motley::model {

using TableFamily = std::vector<std::pair<std::string, std::function<Graph()>>>;  // by name
const TableFamily& convolutional_models();                                        // images

constexpr double kValueBytes = 4;  // fp32

class GraphBuilder {
 public:
  static constexpr int kInput = -1;  // a layer that reads the model's own input

  // Of one sample's output, or of the model's input. Plain values are channels of one by one.
  struct Shape {
    double channels = 0;
    int height = 1, width = 1;
    double values() const { return channels * height * width; }
  };
  struct Window {
    int height = 1, width = 1, stride = 1, pad_height = 0, pad_width = 0;
    bool round_up = false;  // of the output's size

    double area() const { return static_cast<double>(height) * width; }
    Shape over(const Shape& input, double channels) const {
      const int extra = round_up ? stride - 1 : 0;
      return {channels, (input.height + 2 * pad_height - height + extra) / stride + 1,
              (input.width + 2 * pad_width - width + extra) / stride + 1};
    }
  };

  GraphBuilder(std::string source, Shape input, double input_bytes)
      : graph_{.source = std::move(source), .input_bytes = input_bytes}, input_(input) {}

  const Shape& shape(int layer) const { return layer == kInput ? input_ : shapes_[layer]; }

  // The number of the new layer, which reads these (kInput alone: the model's input) and gives `output`.
  int append(Layer layer, const std::vector<int>& inputs, const Shape& output) {
    if (inputs.front() != kInput) layer.inputs = inputs;
    layer.activation_bytes = output.values() * kValueBytes;
    graph_.layers.push_back(std::move(layer));
    shapes_.push_back(output);
    return static_cast<int>(shapes_.size()) - 1;
  }
  int fully_connected(const std::string& name, int input, double width) {
    const double values = shape(input).values();
    return append({.name = name,
                   .kind = LayerKind::kFullyConnected,
                   .parameters = values * width + width,
                   .flops = 2 * values * width},
                  {input}, {width});
  }
  // Of the channels of outputs of one size.
  int concatenation(const std::string& name, const std::vector<int>& inputs, double flops_per_value) {
    Shape output = shape(inputs.front());
    output.channels = 0;
    for (const int input : inputs) output.channels += shape(input).channels;
    return append({.name = name, .kind = LayerKind::kConcatenation, .flops = flops_per_value * output.values()}, inputs,
                  output);
  }
  Graph take() { return std::move(graph_); }

 private:
  Graph graph_;
  Shape input_;
  std::vector<Shape> shapes_;
};

}  // namespace motley::model
