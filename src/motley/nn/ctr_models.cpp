// Every layer passes on what a later one will need beside its own result, so that the network is a chain that can be
// cut anywhere: a fully connected layer reads a part of the values of a sample and puts its result in that part's
// place.
#include "motley/nn/ctr_models.h"

#include <cmath>

#include "motley/model/model_names.h"
#include "motley/nn/layers.h"

namespace motley::nn {
namespace {

using Shape = std::vector<std::int64_t>;

constexpr std::int64_t kDimension = 10;
constexpr std::int64_t kWordDimension = 128;  // nce
constexpr std::int64_t kSmallCategories = 5;  // 2emb: so many of the first ids also have a row in the small table
constexpr std::int64_t kUserCategories = 12;  // matchnet: the first ids are the user's, the others the item's
constexpr std::int64_t kNegatives = 20;       // matchnet
constexpr std::int64_t kContext = 4;          // nce: words around the one that is predicted
constexpr std::int64_t kHidden = 400;
constexpr std::int64_t kTower = 50;  // matchnet: values that a user or an item comes to

// A row for each id of the input, where they are not there already; the small table's ids go to the end:
// [n, features | small | ids or rows] -> [n, features | rows | small].
class Lookup : public OwnLayer {
 public:
  explicit Lookup(const LookupLayout& layout) : layout_(layout) {
    about.kind = model::LayerKind::kEmbedding;
    if (layout.served) {
      about.lookups = static_cast<double>(layout.categories);
      about.row_bytes = static_cast<double>(layout.dimension) * sizeof(float);
      about.table_rows = static_cast<double>(layout.rows);
      return;
    }
    weight_ = register_parameter("weight", torch::empty({layout.rows, layout.dimension}));
    torch::nn::init::uniform_(weight_, -kInitialRows, kInitialRows);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const std::int64_t before = layout_.features + layout_.small;
    torch::Tensor rows = input.narrow(1, before, input.size(1) - before);
    if (!layout_.served) {
      rows = torch::embedding(weight_, rows.round().to(torch::kInt64)).flatten(1);
    }
    return torch::cat({input.narrow(1, 0, layout_.features), rows, input.narrow(1, layout_.features, layout_.small)},
                      1);
  }

 private:
  const LookupLayout layout_;
  torch::Tensor weight_;
};

// Replaces the ids from `begin` on, to the end, by their rows of a small table of the network's own.
class SmallLookup : public OwnLayer {
 public:
  SmallLookup(std::int64_t begin, std::int64_t rows, std::int64_t dimension)
      : begin_(begin), weight_(register_parameter("weight", torch::empty({rows, dimension}))) {
    about.kind = model::LayerKind::kEmbedding;
    torch::nn::init::uniform_(weight_, -kInitialRows, kInitialRows);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor ids = input.narrow(1, begin_, input.size(1) - begin_).round().to(torch::kInt64);
    return torch::cat({input.narrow(1, 0, begin_), torch::embedding(weight_, ids).flatten(1)}, 1);
  }

 private:
  const std::int64_t begin_;
  torch::Tensor weight_;
};

// A fully connected layer over the values [begin, begin + from); the others are passed on around its result.
class PartLinear : public OwnLayer {
 public:
  PartLinear(std::int64_t begin, std::int64_t from, std::int64_t to, bool rectifies)
      : begin_(begin),
        from_(from),
        rectifies_(rectifies),
        linear_(register_module("linear", torch::nn::Linear(from, to))) {
    about.kind = model::LayerKind::kFullyConnected;
    const double gain = rectifies ? std::sqrt(2.0) : 1.0;  // keeps the variance of values (He et al. 2015)
    torch::nn::init::normal_(linear_->weight, 0, gain / std::sqrt(static_cast<double>(from)));
    torch::nn::init::zeros_(linear_->bias);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor own = linear_->forward(input.narrow(1, begin_, from_));
    own = rectifies_ ? torch::relu(own) : own;
    const std::int64_t end = begin_ + from_;
    if (begin_ == 0 && end == input.size(1)) return own;
    return torch::cat({input.narrow(1, 0, begin_), own, input.narrow(1, end, input.size(1) - end)}, 1);
  }

 private:
  const std::int64_t begin_, from_;
  const bool rectifies_;
  torch::nn::Linear linear_;
};

// MATCHNET's lookup puts the user's rows first: [n, user rows | features | item rows].
class TowerLookup : public OwnLayer {
 public:
  explicit TowerLookup(const LookupLayout& layout)
      : features_(layout.features),
        user_(kUserCategories * layout.dimension),
        lookup_(register_module("table", std::make_shared<Lookup>(layout))) {
    about = lookup_->about;
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor all = lookup_->forward(input);
    const std::int64_t item = features_ + user_;
    return torch::cat(
        {all.narrow(1, features_, user_), all.narrow(1, 0, features_), all.narrow(1, item, all.size(1) - item)}, 1);
  }

 private:
  const std::int64_t features_, user_;
  std::shared_ptr<Lookup> lookup_;
};

// How well user and item agree, and the rows that stand for other items: those numbered as the item's largest values.
// [n, user | item] -> [n, user | cosine | rows].
class Match : public OwnLayer {
 public:
  explicit Match(std::int64_t dimension)
      : negatives_(register_parameter("negatives", torch::empty({kTower, dimension}))) {
    about.kind = model::LayerKind::kSimilarity;
    torch::nn::init::uniform_(negatives_, -kInitialRows, kInitialRows);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor user = input.narrow(1, 0, kTower);
    const torch::Tensor item = input.narrow(1, kTower, kTower);
    const torch::Tensor others = std::get<1>(item.detach().topk(kNegatives, 1));
    return torch::cat(
        {user, torch::cosine_similarity(user, item, 1).unsqueeze(1), torch::embedding(negatives_, others).flatten(1)},
        1);
  }

 private:
  torch::Tensor negatives_;
};

// [n, user | cosine | negative] -> [n, 2]: how well the user and the negative agree, and the user and the item.
class Compare : public OwnLayer {
 public:
  Compare() { about.kind = model::LayerKind::kSimilarity; }
  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor user = input.narrow(1, 0, kTower);
    const torch::Tensor negative = input.narrow(1, kTower + 1, kTower);
    return torch::cat({torch::cosine_similarity(user, negative, 1).unsqueeze(1), input.narrow(1, kTower, 1)}, 1);
  }
};

// [n, hidden | words x dimension] -> [n, words]: the inner product of what was predicted with each word that it may be.
class Candidates : public torch::nn::Module {
 public:
  explicit Candidates(std::int64_t dimension) : dimension_(dimension) {}
  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor predicted = input.narrow(1, 0, dimension_).unsqueeze(2);
    const torch::Tensor words = input.narrow(1, dimension_, input.size(1) - dimension_);
    return torch::bmm(words.reshape({input.size(0), -1, dimension_}), predicted).squeeze(2);
  }

 private:
  const std::int64_t dimension_;
};

Shape hidden_shape(const NetworkSpec& spec) {
  return spec.hidden.value_or(spec.name == "2emb" ? Shape{kHidden, kHidden, kTower} : Shape{kHidden, kHidden, kHidden});
}

// Fully connected layers one after the other, over the values from `begin` on; the result's width.
std::int64_t append_tower(Layers& layers, const std::string& prefix, std::int64_t begin, std::int64_t width,
                          const Shape& hidden) {
  int number = 0;
  for (const std::int64_t to : hidden) {
    layers->push_back(prefix + "fc" + std::to_string(++number), PartLinear(begin, width, to, true));
    width = to;
  }
  return width;
}

}  // namespace

std::optional<LookupLayout> lookup_layout(const NetworkSpec& spec) {
  if (!model::is_ctr_model(spec.name)) return std::nullopt;
  LookupLayout layout;
  layout.features = spec.input_shape.front();
  layout.small = spec.name == "2emb" ? kSmallCategories : 0;
  layout.categories = spec.categories;
  layout.dimension = spec.dimension > 0 ? spec.dimension : spec.name == "nce" ? kWordDimension : kDimension;
  layout.rows = spec.rows;
  layout.served = spec.served_rows;
  return layout;
}

torch::Tensor lookup_input(const LookupLayout& layout, const torch::Tensor& features,
                           const std::vector<std::uint64_t>& ids, const torch::Tensor& rows) {
  // The numbers of each sample's first `count` ids, of a table of so many rows.
  const auto numbers = [&](std::int64_t count, std::uint64_t table_rows) {
    torch::Tensor numbers = torch::empty({features.size(0), count});
    auto* const values = numbers.data_ptr<float>();
    for (std::int64_t i = 0; i < numbers.numel(); ++i) {
      const std::uint64_t id = ids[static_cast<std::size_t>(i / count * layout.categories + i % count)];
      values[i] = static_cast<float>(folded(id, layout) % table_rows);
    }
    return numbers;
  };
  torch::Tensor before = features;
  if (layout.small > 0) before = torch::cat({features, numbers(layout.small, kSmallTableRows)}, 1);
  if (!layout.served) return torch::cat({before, numbers(layout.categories, kMaxOwnRows)}, 1);
  return torch::cat({before.to(rows.device()), rows}, 1);
}

torch::Tensor row_gradients(const LookupLayout& layout, const torch::Tensor& input_gradient) {
  return input_gradient.narrow(1, layout.features + layout.small, layout.row_values());
}

Status check_ctr_model(const NetworkSpec& spec) {
  if (spec.input_shape.size() != 1) {
    return fail(ErrorCode::kInvalidInput,
                "model.input_shape: network '{}' takes the features of a table, such as [13]; given: {}", spec.name,
                spec.input_shape.empty() ? "nothing" : format_shape(spec.input_shape));
  }
  const std::int64_t least = spec.name == "2emb"       ? kSmallCategories
                             : spec.name == "matchnet" ? kUserCategories + 1
                             : spec.name == "nce"      ? kContext + 2
                                                       : 1;
  if (spec.categories < least) {
    return fail(ErrorCode::kInvalidInput,
                "model.name: network '{}' looks up categories, of which the data has {}; accepted: {} or more "
                "(data.categorical_columns, or data.name criteo or clicks)",
                spec.name, spec.categories, least);
  }
  if (spec.name == "matchnet" && spec.outputs != 2) {
    return fail(ErrorCode::kInvalidInput, "model.outputs: {}; accepted with network 'matchnet': 2", spec.outputs);
  }
  if (spec.name == "nce" && spec.outputs != spec.categories - kContext) {
    return fail(ErrorCode::kInvalidInput,
                "model.outputs: {}; accepted with network 'nce': {}, an output for each word that may be the one",
                spec.outputs, spec.categories - kContext);
  }
  if (spec.dimension < 0 || spec.dimension > 4096) {
    return fail(ErrorCode::kInvalidInput,
                "embedding.embedding_dim: {}; accepted: 1 to 4096, or 0 for the network's own", spec.dimension);
  }
  if (!spec.served_rows && (spec.rows < 1 || spec.rows > kMaxOwnRows)) {
    return fail(ErrorCode::kInvalidInput,
                "embedding.num_embeddings: {}; accepted with embedding.placement replicated: 1 to {} (more with "
                "embedding.placement server)",
                spec.rows, kMaxOwnRows);
  }
  return {};
}

Layers ctr_layers(const NetworkSpec& spec) {
  const LookupLayout layout = *lookup_layout(spec);
  const std::int64_t looked_up = layout.features + layout.row_values();
  Layers layers;
  if (spec.name == "matchnet") {
    const Shape tower = {kHidden, kHidden, kTower};
    const std::int64_t user = kUserCategories * layout.dimension;
    layers->push_back("lookup", TowerLookup(layout));
    append_tower(layers, "user_", 0, user, tower);
    append_tower(layers, "item_", kTower, looked_up - user, tower);
    layers->push_back("match", Match(layout.dimension));
    append_tower(layers, "negative_", kTower + 1, kNegatives * layout.dimension, {kHidden, kTower});
    layers->push_back("compare", Compare());
    return layers;
  }
  layers->push_back("lookup", Lookup(layout));
  if (spec.name == "nce") {
    const std::int64_t width =
        append_tower(layers, "", 0, layout.features + kContext * layout.dimension, {2 * layout.dimension});
    layers->push_back("fc2", PartLinear(0, width, layout.dimension, false));
    layers->push_back("candidates", Candidates(layout.dimension));
    return layers;
  }
  std::int64_t width = append_tower(layers, "", 0, looked_up, hidden_shape(spec));
  if (spec.name == "2emb") {
    constexpr std::int64_t kSmallWidth = 128;
    layers->push_back("small_lookup", SmallLookup(width, kSmallTableRows, layout.dimension));
    layers->push_back("small_fc", PartLinear(width, layout.small * layout.dimension, kSmallWidth, true));
    width += kSmallWidth;
  }
  layers->push_back("output", PartLinear(0, width, spec.outputs, false));
  return layers;
}

}  // namespace motley::nn
