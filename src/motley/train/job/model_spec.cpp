#include "motley/train/job/model_spec.h"

namespace motley::train {

using enum OptionKind;

const OptionTable<ModelSpec>& ModelSpec::options() {
  static const OptionTable<ModelSpec> options = {
      {choice("name", "network",
              {"mlp", "cnn", "resnet18", "vgg11", "transformer", "ctrdnn", "2emb", "matchnet", "nce", "torchscript",
               "synthetic"},
              {{"imitation", "synthetic"}}),
       &ModelSpec::name},
      {{"path", kPath,
        "file of model.name torchscript (made by tools/motley-export), or the profile of model.name synthetic"},
       &ModelSpec::path},
      {{"hidden_sizes", kIntegers, "sizes of the hidden fully connected layers; empty: the network's own", 1},
       &ModelSpec::hidden_sizes},
      {{"num_layers", kInteger, "blocks of transformer; 0: 4", 0}, &ModelSpec::num_layers},
      {{"hidden_size", kInteger, "size of transformer's hidden state, for each token; 0: 128", 0},
       &ModelSpec::hidden_size},
      {{"num_heads", kInteger, "attention heads in each block of transformer, a divisor of model.hidden_size; 0: 4", 0},
       &ModelSpec::num_heads},
      {{"tie_embeddings", kBoolean, "transformer's output layer shares the weights of its token embedding"},
       &ModelSpec::tie_embeddings},
      {choice("norm", "normalisation of resnet18 and vgg11; auto: the network's own",
              {"auto", "none", "batch", "group"}),
       &ModelSpec::norm},
      {{"dropout", kReal, "fraction of activations dropped in mlp, vgg11 and transformer", 0, 0.95},
       &ModelSpec::dropout},
      {choice("dtype", "type of weights and gradients", {"float32", "float64"}), &ModelSpec::dtype},
      {{"input_shape", kIntegers, "shape of one sample; empty: the data's", 1}, &ModelSpec::input_shape},
      {{"outputs", kInteger, "outputs of the network; 0: the data's number of classes", 0}, &ModelSpec::outputs},
  };
  return options;
}

Status ModelSpec::check() const {
  if (name == "torchscript" && path.empty()) {
    return fail(ErrorCode::kInvalidInput,
                "model.path: model.name torchscript needs the file; tools/motley-export writes one");
  }
  return {};
}

const OptionTable<EmbeddingSpec>& EmbeddingSpec::options() {
  static const OptionTable<EmbeddingSpec> options = {
      {choice("placement",
              "where the embeddings of ctrdnn, 2emb, matchnet and nce are: server, on parameter servers "
              "(gradient_sync.servers, or one that is started for the job); replicated, all of them on every worker",
              {"server", "replicated"}, {{"worker", "replicated"}}),
       &EmbeddingSpec::placement},
      {{"num_embeddings", kInteger,
        "embeddings of the table, into which ids are folded; 0, only with server: as many as there are ids", 0},
       &EmbeddingSpec::num_embeddings},
      {{"embedding_dim", kInteger, "values of an embedding; 0: the network's own, 10 or with nce 128", 0, 4096},
       &EmbeddingSpec::embedding_dim},
      {choice("optimizer", "server: optimizer of the embeddings; replicated: they are updated as all weights are",
              {"adagrad", "adam", "sgd"}),
       &EmbeddingSpec::optimizer},
      {{"learning_rate", kReal, "server: learning rate of the embeddings", 0}, &EmbeddingSpec::learning_rate},
      {{"memory", kBytes,
        "server: memory for embeddings on each server, which keeps the others on disk (motley server --embedding-dir); "
        "0: all of them in memory",
        0},
       &EmbeddingSpec::memory},
      {choice("comm_dtype",
              "server: type of embeddings and of their gradients on the wire; what it rounds away is lost",
              {"float32", "bfloat16", "float16", "int8"}),
       &EmbeddingSpec::comm_dtype},
      {{"prefetch", kBoolean, "server: ask for the next batch's embeddings while this one is computed"},
       &EmbeddingSpec::prefetch},
      {{"cache_rows", kInteger, "server: hot embeddings that each worker caches, to use them in several steps; 0: none",
        0, 1 << 30},
       &EmbeddingSpec::cache_rows},
      {{"max_staleness", kInteger, "server: how many steps older than a step's own a cached embedding may be", 0,
        1 << 20},
       &EmbeddingSpec::max_staleness},
  };
  return options;
}

}  // namespace motley::train
