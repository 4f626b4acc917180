// Networks for images of 224 x 224 (Inception: 299 x 299) and 1000 classes, generated from their published lists of
// layers. Shapes, parameters and operations follow from each layer's kernel, stride and padding; branches and skips are
// edges of the graph. A convolution includes the batch normalization and the rectifier that follow it, an addition its
// rectifier. Operations of convolutions and fully connected layers are their multiply-adds, those of the others one for
// each value that is read.
#include <fmt/format.h>

#include "motley/model/graph_builder.h"

namespace motley::model {
namespace {

constexpr double kClasses = 1000;

using Window = GraphBuilder::Window;

constexpr Window square(int size, int stride = 1, int padding = 0, bool round_up = false) {
  return {size, size, stride, padding, padding, round_up};
}
// Of this height or width, and one value the other way; keeps the shape.
constexpr Window column(int size) {
  return {.height = size, .pad_height = size / 2};
}
constexpr Window row(int size) {
  return {.width = size, .pad_width = size / 2};
}
constexpr Window kPoint = square(1);
constexpr Window kThree = square(3, 1, 1);  // keeps the shape

struct Convolution {
  const char* name;
  int channels;
  Window window;
};

class ImageBuilder : public GraphBuilder {
 public:
  static constexpr int kImage = kInput;

  ImageBuilder(std::string source, int side, bool normalized)
      : GraphBuilder(std::move(source), {3, side, side}, 3.0 * side * side * kValueBytes), normalized_(normalized) {}

  // With a bias, or with batch normalization (a scale and a shift for each channel) in its place.
  int convolution(const std::string& name, int input, int channels, const Window& window) {
    const Shape to = window.over(shape(input), channels);
    const double weights = shape(input).channels * window.area() * channels;
    return append({.name = name,
                   .kind = LayerKind::kConvolution,
                   .parameters = weights + (normalized_ ? 2 : 1) * channels,
                   .inner_bytes = normalized_ ? to.values() * kValueBytes : 0,
                   .flops = 2 * weights * to.height * to.width},
                  {input}, to);
  }
  // Convolutions one after the other, whose names follow that of their block.
  int chain(const std::string& block, int last, const std::vector<Convolution>& convolutions) {
    for (const auto& [name, channels, window] : convolutions) last = convolution(block + name, last, channels, window);
    return last;
  }
  int pooling(const std::string& name, int input, const Window& window) {
    const Shape to = window.over(shape(input), shape(input).channels);
    return append({.name = name, .kind = LayerKind::kPooling, .flops = to.values() * window.area()}, {input}, to);
  }
  int addition(const std::string& name, int a, int b) {
    return append({.name = name, .kind = LayerKind::kElementwise, .flops = 2 * shape(a).values()}, {a, b}, shape(a));
  }
  int joined(const std::string& block, const std::vector<int>& branches) {
    return concatenation(block + ".concat", branches, 1);
  }
  // A branch of Inception: the mean of the neighbours, then a convolution of one by one.
  int pooled(const std::string& block, int input, int channels) {
    return convolution(block + ".pool-project", pooling(block + ".pool", input, kThree), channels, kPoint);
  }
  // The end of AlexNet and VGG: three fully connected layers.
  Graph classified_deeply(int last) {
    fully_connected("fc3", fully_connected("fc2", fully_connected("fc1", last, 4096), 4096), kClasses);
    return take();
  }
  // That of the others: each channel's mean, and one.
  Graph classified(const std::string& pool, int last) {
    fully_connected("fc", pooling(pool, last, {.height = shape(last).height, .width = shape(last).width}), kClasses);
    return take();
  }

 private:
  bool normalized_;
};

Graph alexnet() {
  ImageBuilder net(
      "Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks, as torchvision has it", 224,
      false);
  int last = net.convolution("conv1", ImageBuilder::kImage, 64, square(11, 4, 2));
  last = net.pooling("pool1", last, square(3, 2));
  last = net.convolution("conv2", last, 192, square(5, 1, 2));
  last = net.pooling("pool2", last, square(3, 2));
  last = net.chain("", last, {{"conv3", 384, kThree}, {"conv4", 256, kThree}, {"conv5", 256, kThree}});
  return net.classified_deeply(net.pooling("pool5", last, square(3, 2)));
}

// `repeats`: convolutions of each of the five groups.
Graph vgg(const std::vector<int>& repeats) {
  ImageBuilder net("Simonyan and Zisserman 2015, Very Deep Convolutional Networks for Large-Scale Image Recognition",
                   224, false);
  int last = ImageBuilder::kImage;
  for (int group = 0; group < 5; ++group) {
    for (int i = 0; i < repeats[group]; ++i) {
      last = net.convolution(fmt::format("conv{}-{}", group + 1, i + 1), last, std::min(64 << group, 512), kThree);
    }
    last = net.pooling(fmt::format("pool{}", group + 1), last, square(2, 2));
  }
  return net.classified_deeply(last);
}

// Blocks of two 3 x 3 convolutions, or bottlenecks (1 x 1, 3 x 3, 1 x 1 four times as wide), each around a skip that is
// a 1 x 1 convolution where the shape changes. The stride is in the 3 x 3 convolution of a bottleneck.
Graph resnet(const std::vector<int>& repeats, bool bottleneck, const std::string& note = "") {
  ImageBuilder net("He et al. 2016, Deep Residual Learning for Image Recognition, as torchvision has it" + note, 224,
                   true);
  int last = net.convolution("conv1", ImageBuilder::kImage, 64, square(7, 2, 3));
  last = net.pooling("pool1", last, square(3, 2, 1));
  for (int group = 0; group < 4; ++group) {
    const int width = 64 << group;
    const int wide = bottleneck ? 4 * width : width;
    for (int i = 0; i < repeats[group]; ++i) {
      const std::string name = fmt::format("block{}-{}", group + 1, i + 1);
      const int stride = group > 0 && i == 0 ? 2 : 1;
      const Window strided = square(3, stride, 1);
      const int branch =
          bottleneck
              ? net.chain(name, last, {{".conv1", width, kPoint}, {".conv2", width, strided}, {".conv3", wide, kPoint}})
              : net.chain(name, last, {{".conv1", width, strided}, {".conv2", width, kThree}});
      if (stride != 1 || net.shape(last).channels != wide) {
        last = net.convolution(name + ".skip", last, wide, square(1, stride));
      }
      last = net.addition(name + ".add", branch, last);
    }
  }
  return net.classified("pool5", last);
}

Graph googlenet() {
  ImageBuilder net(
      "Szegedy et al. 2015, Going Deeper with Convolutions, as torchvision has it: batch normalization, 3 x 3 in "
      "place of 5 x 5, without the auxiliary classifiers",
      224, true);
  const auto halved = [&](const std::string& name, int input, int size) {
    return net.pooling(name, input, square(size, 2, 0, true));
  };
  struct Inception {
    std::string name;
    int one, reduced_three, three, reduced_five, five, pooled;
  };
  int last = net.convolution("conv1", ImageBuilder::kImage, 64, square(7, 2, 3));
  last = halved("pool1", last, 3);
  last = net.chain("", last, {{"conv2", 64, kPoint}, {"conv3", 192, kThree}});
  last = halved("pool3", last, 3);
  for (const auto& [name, one, reduced_three, three, reduced_five, five, pooled] :
       {Inception{"inception3a", 64, 96, 128, 16, 32, 32},
        {"inception3b", 128, 128, 192, 32, 96, 64},
        {"inception4a", 192, 96, 208, 16, 48, 64},
        {"inception4b", 160, 112, 224, 24, 64, 64},
        {"inception4c", 128, 128, 256, 24, 64, 64},
        {"inception4d", 112, 144, 288, 32, 64, 64},
        {"inception4e", 256, 160, 320, 32, 128, 128},
        {"inception5a", 256, 160, 320, 32, 128, 128},
        {"inception5b", 384, 192, 384, 48, 128, 128}}) {
    if (name == "inception4a") last = halved("pool4", last, 3);
    if (name == "inception5a") last = halved("pool5", last, 2);
    last = net.joined(name, {net.chain(name, last, {{".1x1", one, kPoint}}),
                             net.chain(name, last, {{".3x3-reduce", reduced_three, kPoint}, {".3x3", three, kThree}}),
                             net.chain(name, last, {{".5x5-reduce", reduced_five, kPoint}, {".5x5", five, kThree}}),
                             net.pooled(name, last, pooled)});
  }
  return net.classified("pool6", last);
}

// The blocks are those of the paper's figures 5, 6, 7 and its two reductions.
Graph inception_v3() {
  ImageBuilder net(
      "Szegedy et al. 2016, Rethinking the Inception Architecture for Computer Vision, as torchvision has it, "
      "without the auxiliary classifier",
      299, true);
  const Window halving = square(3, 2);
  int last =
      net.chain("", ImageBuilder::kImage, {{"conv1", 32, halving}, {"conv2", 32, square(3)}, {"conv3", 64, kThree}});
  last = net.pooling("pool1", last, halving);
  last = net.chain("", last, {{"conv4", 80, kPoint}, {"conv5", 192, square(3)}});
  last = net.pooling("pool2", last, halving);
  for (const auto& [name, pooled] : {std::pair<std::string, int>("mixed1", 32), {"mixed2", 64}, {"mixed3", 64}}) {
    last = net.joined(
        name, {net.chain(name, last, {{".1x1", 64, kPoint}}),
               net.chain(name, last, {{".5x5-reduce", 48, kPoint}, {".5x5", 64, square(5, 1, 2)}}),
               net.chain(name, last, {{".3x3-reduce", 64, kPoint}, {".3x3-1", 96, kThree}, {".3x3-2", 96, kThree}}),
               net.pooled(name, last, pooled)});
  }
  last = net.joined("mixed4",
                    {net.chain("mixed4", last, {{".3x3", 384, halving}}),
                     net.chain("mixed4", last,
                               {{".double-reduce", 64, kPoint}, {".double-1", 96, kThree}, {".double-2", 96, halving}}),
                     net.pooling("mixed4.pool", last, halving)});
  for (const auto& [name, inner] :
       {std::pair<std::string, int>("mixed5", 128), {"mixed6", 160}, {"mixed7", 160}, {"mixed8", 192}}) {
    last = net.joined(
        name,
        {net.chain(name, last, {{".1x1", 192, kPoint}}),
         net.chain(name, last,
                   {{".7x7-reduce", inner, kPoint}, {".7x7-row", inner, row(7)}, {".7x7-column", 192, column(7)}}),
         net.chain(name, last,
                   {{".double-reduce", inner, kPoint},
                    {".double-column1", inner, column(7)},
                    {".double-row1", inner, row(7)},
                    {".double-column2", inner, column(7)},
                    {".double-row2", 192, row(7)}}),
         net.pooled(name, last, 192)});
  }
  last = net.joined("mixed9", {net.chain("mixed9", last, {{".3x3-reduce", 192, kPoint}, {".3x3", 320, halving}}),
                               net.chain("mixed9", last,
                                         {{".7x7-reduce", 192, kPoint},
                                          {".7x7-row", 192, row(7)},
                                          {".7x7-column", 192, column(7)},
                                          {".7x7-3x3", 192, halving}}),
                               net.pooling("mixed9.pool", last, halving)});
  for (const std::string name : {"mixed10", "mixed11"}) {
    const int one = net.chain(name, last, {{".1x1", 320, kPoint}});
    const int three = net.chain(name, last, {{".3x3-reduce", 384, kPoint}});
    const int three_row = net.chain(name, three, {{".3x3-row", 384, row(3)}});
    const int three_column = net.chain(name, three, {{".3x3-column", 384, column(3)}});
    const int twice = net.chain(name, last, {{".double-reduce", 448, kPoint}, {".double-3x3", 384, kThree}});
    const int twice_row = net.chain(name, twice, {{".double-row", 384, row(3)}});
    const int twice_column = net.chain(name, twice, {{".double-column", 384, column(3)}});
    last = net.joined(name, {one, three_row, three_column, twice_row, twice_column, net.pooled(name, last, 192)});
  }
  return net.classified("pool3", last);
}

}  // namespace

const TableFamily& convolutional_models() {
  static const TableFamily family = {
      {"alexnet", alexnet},
      {"vgg11", [] { return vgg({1, 1, 2, 2, 2}); }},
      {"vgg16", [] { return vgg({2, 2, 3, 3, 3}); }},
      {"vgg19", [] { return vgg({2, 2, 4, 4, 4}); }},
      {"resnet18", [] { return resnet({2, 2, 2, 2}, false); }},
      {"resnet50", [] { return resnet({3, 4, 6, 3}, true); }},
      {"resnet101", [] { return resnet({3, 4, 23, 3}, true); }},
      {"resnet269", [] { return resnet({3, 30, 48, 8}, true, ", with MXNet's numbers of blocks for 269 layers"); }},
      {"googlenet", googlenet},
      {"inception-v3", inception_v3}};
  return family;
}

}  // namespace motley::model
