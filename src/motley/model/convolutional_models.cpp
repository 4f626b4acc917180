// Networks for images of 224 x 224 (Inception: 299 x 299) and 1000 classes, generated from their published lists of
// layers. Shapes, parameters and operations follow from each layer's kernel, stride and padding; branches and skips are
// edges of the graph. A convolution includes the batch normalization and the rectifier that follow it, an addition its
// rectifier. Operations of convolutions and fully connected layers are their multiply-adds, those of the others one for
// each value that is read.
#include "motley/model/table_families.h"

#include <fmt/format.h>

namespace motley::model {
namespace {

constexpr double kClasses = 1000;
constexpr int kImage = -1;  // a layer that reads the image

struct Shape {
  int channels = 0;
  int height = 0;
  int width = 0;
  double values() const { return static_cast<double>(channels) * height * width; }
};

struct Window {
  int height = 1;
  int width = 1;
  int stride = 1;
  int pad_height = 0;
  int pad_width = 0;
  bool round_up = false;  // of the output's size

  static Window square(int size, int stride = 1, int padding = 0, bool round_up = false) {
    return {size, size, stride, padding, padding, round_up};
  }
  Shape over(const Shape& input, int channels) const {
    const int extra = round_up ? stride - 1 : 0;
    return {channels, (input.height + 2 * pad_height - height + extra) / stride + 1,
            (input.width + 2 * pad_width - width + extra) / stride + 1};
  }
  double area() const { return static_cast<double>(height) * width; }
};

class Builder {
 public:
  Builder(std::string source, int side, bool normalized) : image_{3, side, side}, normalized_(normalized) {
    graph_.source = std::move(source);
    graph_.input_bytes = image_.values() * kValueBytes;
  }

  // With a bias, or with batch normalization (a scale and a shift for each channel) in its place.
  int convolution(const std::string& name, int input, int channels, const Window& window) {
    const Shape& from = shape(input);
    const Shape to = window.over(from, channels);
    const double weights = from.channels * window.area() * channels;
    return append({.name = name,
                   .kind = LayerKind::kConvolution,
                   .parameters = weights + (normalized_ ? 2 : 1) * channels,
                   .inner_bytes = normalized_ ? to.values() * kValueBytes : 0,
                   .flops = 2 * weights * to.height * to.width},
                  {input}, to);
  }
  int pooling(const std::string& name, int input, const Window& window) {
    const Shape to = window.over(shape(input), shape(input).channels);
    return append({.name = name, .kind = LayerKind::kPooling, .flops = to.values() * window.area()}, {input}, to);
  }
  int global_pooling(const std::string& name, int input) {
    const Shape& from = shape(input);
    return pooling(name, input, {.height = from.height, .width = from.width});
  }
  int addition(const std::string& name, int a, int b) {
    return append({.name = name, .kind = LayerKind::kElementwise, .flops = 2 * shape(a).values()}, {a, b}, shape(a));
  }
  int concatenation(const std::string& name, const std::vector<int>& inputs) {
    Shape to = shape(inputs.front());
    to.channels = 0;
    for (const int input : inputs) {
      to.channels += shape(input).channels;
    }
    return append({.name = name, .kind = LayerKind::kConcatenation, .flops = to.values()}, inputs, to);
  }
  int fully_connected(const std::string& name, int input, double width) {
    const double values = shape(input).values();
    return append({.name = name,
                   .kind = LayerKind::kFullyConnected,
                   .parameters = values * width + width,
                   .flops = 2 * values * width},
                  {input}, {static_cast<int>(width), 1, 1});
  }
  int channels(int layer) const { return shape(layer).channels; }
  Graph take() { return std::move(graph_); }

 private:
  const Shape& shape(int layer) const { return layer == kImage ? image_ : shapes_[layer]; }
  int append(Layer layer, const std::vector<int>& inputs, const Shape& to) {
    if (inputs.front() != kImage) {
      layer.inputs = inputs;
    }
    layer.activation_bytes = to.values() * kValueBytes;
    graph_.layers.push_back(std::move(layer));
    shapes_.push_back(to);
    return static_cast<int>(shapes_.size()) - 1;
  }

  Graph graph_;
  Shape image_;
  bool normalized_;
  std::vector<Shape> shapes_;
};

// The three fully connected layers that AlexNet and VGG end with.
Graph classified(Builder& net, int last) {
  last = net.fully_connected("fc1", last, 4096);
  last = net.fully_connected("fc2", last, 4096);
  net.fully_connected("fc3", last, kClasses);
  return net.take();
}

Graph alexnet() {
  Builder net("Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks, as torchvision has it",
              224, false);
  int last = net.convolution("conv1", kImage, 64, Window::square(11, 4, 2));
  last = net.pooling("pool1", last, Window::square(3, 2));
  last = net.convolution("conv2", last, 192, Window::square(5, 1, 2));
  last = net.pooling("pool2", last, Window::square(3, 2));
  last = net.convolution("conv3", last, 384, Window::square(3, 1, 1));
  last = net.convolution("conv4", last, 256, Window::square(3, 1, 1));
  last = net.convolution("conv5", last, 256, Window::square(3, 1, 1));
  return classified(net, net.pooling("pool5", last, Window::square(3, 2)));
}

// `repeats`: convolutions of each of the five groups.
Graph vgg(const std::vector<int>& repeats) {
  Builder net("Simonyan and Zisserman 2015, Very Deep Convolutional Networks for Large-Scale Image Recognition", 224,
              false);
  int last = kImage;
  for (int group = 0; group < 5; ++group) {
    const int channels = std::min(64 << group, 512);
    for (int i = 0; i < repeats[group]; ++i) {
      last = net.convolution(fmt::format("conv{}-{}", group + 1, i + 1), last, channels, Window::square(3, 1, 1));
    }
    last = net.pooling(fmt::format("pool{}", group + 1), last, Window::square(2, 2));
  }
  return classified(net, last);
}

// Blocks of two 3 x 3 convolutions, or bottlenecks (1 x 1, 3 x 3, 1 x 1 four times as wide), each around a skip that is
// a 1 x 1 convolution where the shape changes. The stride is in the 3 x 3 convolution of a bottleneck.
Graph resnet(const std::vector<int>& repeats, bool bottleneck, const std::string& note) {
  Builder net("He et al. 2016, Deep Residual Learning for Image Recognition, as torchvision has it" + note, 224, true);
  int last = net.convolution("conv1", kImage, 64, Window::square(7, 2, 3));
  last = net.pooling("pool1", last, Window::square(3, 2, 1));
  for (int group = 0; group < 4; ++group) {
    const int width = 64 << group;
    const int wide = bottleneck ? 4 * width : width;
    for (int i = 0; i < repeats[group]; ++i) {
      const std::string name = fmt::format("block{}-{}", group + 1, i + 1);
      const int stride = group > 0 && i == 0 ? 2 : 1;
      int branch = last;
      if (bottleneck) {
        branch = net.convolution(name + ".conv1", branch, width, Window::square(1));
        branch = net.convolution(name + ".conv2", branch, width, Window::square(3, stride, 1));
        branch = net.convolution(name + ".conv3", branch, wide, Window::square(1));
      } else {
        branch = net.convolution(name + ".conv1", branch, width, Window::square(3, stride, 1));
        branch = net.convolution(name + ".conv2", branch, width, Window::square(3, 1, 1));
      }
      if (stride != 1 || net.channels(last) != wide) {
        last = net.convolution(name + ".skip", last, wide, Window::square(1, stride));
      }
      last = net.addition(name + ".add", branch, last);
    }
  }
  net.fully_connected("fc", net.global_pooling("pool5", last), kClasses);
  return net.take();
}

Graph googlenet() {
  Builder net(
      "Szegedy et al. 2015, Going Deeper with Convolutions, as torchvision has it: batch normalization, 3 x 3 in "
      "place of 5 x 5, without the auxiliary classifiers",
      224, true);
  const auto halved = [&](const std::string& name, int input, int size) {
    return net.pooling(name, input, Window::square(size, 2, 0, true));
  };
  struct Inception {
    std::string name;
    int one, reduced_three, three, reduced_five, five, pooled;
  };
  int last = net.convolution("conv1", kImage, 64, Window::square(7, 2, 3));
  last = halved("pool1", last, 3);
  last = net.convolution("conv2", last, 64, Window::square(1));
  last = net.convolution("conv3", last, 192, Window::square(3, 1, 1));
  last = halved("pool3", last, 3);
  for (const Inception& part : {Inception{"inception3a", 64, 96, 128, 16, 32, 32},
                                {"inception3b", 128, 128, 192, 32, 96, 64},
                                {"inception4a", 192, 96, 208, 16, 48, 64},
                                {"inception4b", 160, 112, 224, 24, 64, 64},
                                {"inception4c", 128, 128, 256, 24, 64, 64},
                                {"inception4d", 112, 144, 288, 32, 64, 64},
                                {"inception4e", 256, 160, 320, 32, 128, 128},
                                {"inception5a", 256, 160, 320, 32, 128, 128},
                                {"inception5b", 384, 192, 384, 48, 128, 128}}) {
    if (part.name == "inception4a") {
      last = halved("pool4", last, 3);
    } else if (part.name == "inception5a") {
      last = halved("pool5", last, 2);
    }
    const int one = net.convolution(part.name + ".1x1", last, part.one, Window::square(1));
    int three = net.convolution(part.name + ".3x3-reduce", last, part.reduced_three, Window::square(1));
    three = net.convolution(part.name + ".3x3", three, part.three, Window::square(3, 1, 1));
    int five = net.convolution(part.name + ".5x5-reduce", last, part.reduced_five, Window::square(1));
    five = net.convolution(part.name + ".5x5", five, part.five, Window::square(3, 1, 1));
    int pooled = net.pooling(part.name + ".pool", last, Window::square(3, 1, 1));
    pooled = net.convolution(part.name + ".pool-project", pooled, part.pooled, Window::square(1));
    last = net.concatenation(part.name + ".concat", {one, three, five, pooled});
  }
  net.fully_connected("fc", net.global_pooling("pool6", last), kClasses);
  return net.take();
}

// The five kinds of blocks of Inception-v3, named as in the paper's figures 5, 6, 7 and its two reductions.
class InceptionV3 {
 public:
  Graph build() {
    int last = conv("conv1", kImage, 32, Window::square(3, 2));
    last = conv("conv2", last, 32, Window::square(3));
    last = conv("conv3", last, 64, Window::square(3, 1, 1));
    last = net_.pooling("pool1", last, Window::square(3, 2));
    last = conv("conv4", last, 80, Window::square(1));
    last = conv("conv5", last, 192, Window::square(3));
    last = net_.pooling("pool2", last, Window::square(3, 2));
    last = square_block("mixed1", last, 32);
    last = square_block("mixed2", last, 64);
    last = square_block("mixed3", last, 64);
    last = first_reduction("mixed4", last);
    last = factorized_block("mixed5", last, 128);
    last = factorized_block("mixed6", last, 160);
    last = factorized_block("mixed7", last, 160);
    last = factorized_block("mixed8", last, 192);
    last = second_reduction("mixed9", last);
    last = expanded_block("mixed10", last);
    last = expanded_block("mixed11", last);
    net_.fully_connected("fc", net_.global_pooling("pool3", last), kClasses);
    return net_.take();
  }

 private:
  static Window row(int size) { return {.height = 1, .width = size, .pad_width = size / 2}; }
  static Window column(int size) { return {.height = size, .width = 1, .pad_height = size / 2}; }

  int conv(const std::string& name, int input, int channels, const Window& window) {
    return net_.convolution(name, input, channels, window);
  }
  int pooled(const std::string& name, int input, int channels) {
    const int average = net_.pooling(name + ".pool", input, Window::square(3, 1, 1));
    return conv(name + ".pool-project", average, channels, Window::square(1));
  }

  int square_block(const std::string& name, int input, int pooled_channels) {
    const int one = conv(name + ".1x1", input, 64, Window::square(1));
    int five = conv(name + ".5x5-reduce", input, 48, Window::square(1));
    five = conv(name + ".5x5", five, 64, Window::square(5, 1, 2));
    int three = conv(name + ".3x3-reduce", input, 64, Window::square(1));
    three = conv(name + ".3x3-1", three, 96, Window::square(3, 1, 1));
    three = conv(name + ".3x3-2", three, 96, Window::square(3, 1, 1));
    return net_.concatenation(name + ".concat", {one, five, three, pooled(name, input, pooled_channels)});
  }
  int first_reduction(const std::string& name, int input) {
    const int three = conv(name + ".3x3", input, 384, Window::square(3, 2));
    int twice = conv(name + ".double-reduce", input, 64, Window::square(1));
    twice = conv(name + ".double-1", twice, 96, Window::square(3, 1, 1));
    twice = conv(name + ".double-2", twice, 96, Window::square(3, 2));
    return net_.concatenation(name + ".concat",
                              {three, twice, net_.pooling(name + ".pool", input, Window::square(3, 2))});
  }
  int factorized_block(const std::string& name, int input, int inner) {
    const int one = conv(name + ".1x1", input, 192, Window::square(1));
    int once = conv(name + ".7x7-reduce", input, inner, Window::square(1));
    once = conv(name + ".7x7-row", once, inner, row(7));
    once = conv(name + ".7x7-column", once, 192, column(7));
    int twice = conv(name + ".double-reduce", input, inner, Window::square(1));
    twice = conv(name + ".double-column1", twice, inner, column(7));
    twice = conv(name + ".double-row1", twice, inner, row(7));
    twice = conv(name + ".double-column2", twice, inner, column(7));
    twice = conv(name + ".double-row2", twice, 192, row(7));
    return net_.concatenation(name + ".concat", {one, once, twice, pooled(name, input, 192)});
  }
  int second_reduction(const std::string& name, int input) {
    int three = conv(name + ".3x3-reduce", input, 192, Window::square(1));
    three = conv(name + ".3x3", three, 320, Window::square(3, 2));
    int seven = conv(name + ".7x7-reduce", input, 192, Window::square(1));
    seven = conv(name + ".7x7-row", seven, 192, row(7));
    seven = conv(name + ".7x7-column", seven, 192, column(7));
    seven = conv(name + ".7x7-3x3", seven, 192, Window::square(3, 2));
    return net_.concatenation(name + ".concat",
                              {three, seven, net_.pooling(name + ".pool", input, Window::square(3, 2))});
  }
  int expanded_block(const std::string& name, int input) {
    const int one = conv(name + ".1x1", input, 320, Window::square(1));
    const int three = conv(name + ".3x3-reduce", input, 384, Window::square(1));
    const int three_row = conv(name + ".3x3-row", three, 384, row(3));
    const int three_column = conv(name + ".3x3-column", three, 384, column(3));
    int twice = conv(name + ".double-reduce", input, 448, Window::square(1));
    twice = conv(name + ".double-3x3", twice, 384, Window::square(3, 1, 1));
    const int twice_row = conv(name + ".double-row", twice, 384, row(3));
    const int twice_column = conv(name + ".double-column", twice, 384, column(3));
    return net_.concatenation(name + ".concat",
                              {one, three_row, three_column, twice_row, twice_column, pooled(name, input, 192)});
  }

  Builder net_{
      "Szegedy et al. 2016, Rethinking the Inception Architecture for Computer Vision, as torchvision has it, "
      "without the auxiliary classifier",
      299, true};
};

}  // namespace

const TableFamily& convolutional_models() {
  static const TableFamily family = {
      {"alexnet", alexnet},
      {"vgg11", [] { return vgg({1, 1, 2, 2, 2}); }},
      {"vgg16", [] { return vgg({2, 2, 3, 3, 3}); }},
      {"vgg19", [] { return vgg({2, 2, 4, 4, 4}); }},
      {"resnet18", [] { return resnet({2, 2, 2, 2}, false, ""); }},
      {"resnet50", [] { return resnet({3, 4, 6, 3}, true, ""); }},
      {"resnet101", [] { return resnet({3, 4, 23, 3}, true, ""); }},
      {"resnet269", [] { return resnet({3, 30, 48, 8}, true, ", with MXNet's numbers of blocks for 269 layers"); }},
      {"googlenet", googlenet},
      {"inception-v3", [] { return InceptionV3().build(); }}};
  return family;
}

}  // namespace motley::model
