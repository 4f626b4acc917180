// A model as a graph of layers with sizes: what the planner knows of a network before anything has been measured, and
// the chain of cut points that a pipeline may be cut at.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/base/result.h"

namespace motley::model {

enum class LayerKind {
  kInput,
  kEmbedding,  // sparse: looks up rows of a table
  kFullyConnected,
  kConvolution,
  kPooling,
  kNormalization,
  kActivation,
  kConcatenation,
  kElementwise,
  kAttention,
  kRecurrent,
  kSimilarity,  // cosine and the like
  kLoss,
  kBlock,  // several layers that are never cut
  kOther,
};
const char* to_string(LayerKind kind);          // "embedding", "fully-connected", ...
std::vector<LayerKind> every_value(LayerKind);  // all of them

// Sizes are for ONE sample; bytes are of fp32 values.
struct Layer {
  std::string name;  // unique in its graph
  LayerKind kind = LayerKind::kOther;
  std::vector<int> inputs;       // earlier layers whose outputs it reads; empty: the model's own input
  double parameters = 0;         // dense trainable scalars
  double activation_bytes = 0;   // of its output
  double inner_bytes = 0;        // kept inside it for the backward pass, beside its output (blocks, normalization)
  double flops = 0;              // of its forward pass; a multiply-add counts two
  double lookups = 0;            // rows of its sparse table that a sample reads
  double row_bytes = 0;          // of one row of that table
  double table_rows = 0;         // rows of that table in all
  std::string parameter_shapes;  // "24x5, 24"; empty where there are none, or they are not known

  bool operator==(const Layer&) const = default;
};

// Of the lookups of a batch of so many samples, the share whose row no lookup before it reads: a row that a batch reads
// twice comes once, and the more samples, the fewer of their rows are new.
struct DistinctLookups {
  double batch = 1;
  double share = 1;

  bool operator==(const DistinctLookups&) const = default;
};

// How many times the rows of one sample a batch of `samples` reads, each row once. Counted at some batches, 1 being one
// of them; between two, as beyond the last, a power law (Heaps' law) through them. Nothing counted: no row is read
// twice.
double distinct_rows(std::span<const DistinctLookups> counted, double samples);

struct Graph {
  std::string name;
  std::string source;                             // where its sizes come from
  double input_bytes = 0;                         // of one sample
  std::vector<Layer> layers;                      // in an order in which every layer comes after its inputs
  std::vector<DistinctLookups> distinct_lookups;  // in the job's data, by ascending batches; empty: all are distinct

  bool operator==(const Graph&) const = default;
};

// Errors (kInvalidInput, naming layer, field and value): no layers, repeated names, inputs that are not earlier layers
// (a cycle), negative or non-finite sizes, batches of `distinct_lookups` that do not ascend or read fewer rows than a
// smaller one.
Status validate(const Graph& graph);

// Bytes of one sample that must be sent when the chain of layers is cut before layer i, for i = 0 .. layers: every
// output (and the model's input) that was made before the cut and is read at or after it counts once, so that skips
// over the cut are carried along. Element 0 is input_bytes, the last is 0.
std::vector<double> cut_bytes(const Graph& graph);

// The same model with neighbouring layers joined into kBlock layers until at most `most` (at least one) are left: those
// pairs first whose cut would be the dearest to send for the work it separates (bytes * (1 / left + 1 / right)), pairs
// of a sparse and a dense layer last. Sums and dependencies are kept; a cut never carries less than in the original.
// `members`, where given, receives for every layer of the result the range [first, last] of the original's layers.
// `work`, of every layer; where empty, flops and bytes of sparse rows.
Graph coarsen(const Graph& graph, int most, std::vector<std::pair<int, int>>* members = nullptr,
              const std::vector<double>& work = {});

}  // namespace motley::model
