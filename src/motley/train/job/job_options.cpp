// The keys of a job file, each with its kind, its help, its bounds and the field that holds it.
#include "motley/net/messages.h"
#include "motley/train/job/job.h"

namespace motley::train {
namespace {

using enum OptionKind;

const OptionTable<ModelSpec> kModelOptions = {
    {common(choice(
         "name", "network",
         {"mlp", "cnn", "resnet18", "vgg11", "transformer", "ctrdnn", "2emb", "matchnet", "nce", "exported",
          "synthetic"},
         {{"imitation", "synthetic"}, {"torchscript", "exported, whose .pt2 file motley export FILE.py:NAME writes"}})),
     &ModelSpec::name},
    {{"path", kPath,
      ".pt2 file of model.name exported (motley export writes it), or the profile of model.name synthetic"},
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
    {choice("norm", "normalisation of resnet18 and vgg11; auto: the network's own", {"auto", "none", "batch", "group"}),
     &ModelSpec::norm},
    {{"dropout", kReal, "fraction of activations dropped in mlp, vgg11 and transformer", 0, 0.95}, &ModelSpec::dropout},
    {choice("dtype", "type of weights and gradients", {"float32", "float64"}), &ModelSpec::dtype},
    {{"input_shape", kIntegers, "shape of one sample; empty: the data's", 1}, &ModelSpec::input_shape},
    {{"outputs", kInteger, "outputs of the network; 0: the data's number of classes", 0}, &ModelSpec::outputs},
};

const OptionTable<EmbeddingSpec> kEmbeddingOptions = {
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
    {choice("comm_dtype", "server: type of embeddings and of their gradients on the wire; what it rounds away is lost",
            {"float32", "bfloat16", "float16", "int8"}),
     &EmbeddingSpec::comm_dtype},
    {{"prefetch", kBoolean, "server: ask for the next batch's embeddings while this one is computed"},
     &EmbeddingSpec::prefetch},
    {{"device_memory", kBytes,
      "server: memory of each worker's accelerator for hot embeddings, which it uses in several steps, where "
      "embedding.max_staleness allows that; 0: none",
      0},
     &EmbeddingSpec::device_memory},
    {{"cache_rows", kInteger,
      "server: hot embeddings that each worker caches in its memory, to use them in several steps, unless its "
      "accelerator has some (embedding.device_memory); 0: none",
      0, 1 << 30},
     &EmbeddingSpec::cache_rows},
    {{"max_staleness", kInteger, "server: how many steps older than a step's own a cached embedding may be", 0,
      1 << 20},
     &EmbeddingSpec::max_staleness},
};

const OptionTable<DataSpec> kDataOptions = {
    {common(choice("name", "format of the data",
                   {"fashion-mnist", "idx", "csv", "parquet", "arrow", "npy", "image-folder", "text", "tokens",
                    "criteo", "clicks"})),
     &DataSpec::name},
    {{"folder", kPath, "folder of the four files of fashion-mnist (MNIST's have the same names)"}, &DataSpec::folder},
    {{"train", kPath,
      "training features (idx, npy), table, folder with a folder of images for each class (image-folder), tokens "
      "or text; empty with text: the one of Debian's package jargon-text"},
     &DataSpec::train},
    {{"train_targets", kPath, "training targets (idx, npy)"}, &DataSpec::train_targets},
    {{"test", kPath, "the same for the test; empty: no evaluation, or with text and tokens by data.test_fraction"},
     &DataSpec::test},
    {{"test_targets", kPath, "test targets (idx, npy)"}, &DataSpec::test_targets},
    {{"target", kText, "column of the target (tables: csv, parquet, arrow)"}, &DataSpec::target},
    {choice("target_kind",
            "what the target is: class, an integer from 0, or, where no cell of a table's column is a number, a label; "
            "label, any text or number, of which classes are made in their order; real",
            {"class", "label", "real"}),
     &DataSpec::target_kind},
    {{"num_classes", kInteger,
      "classes, of which some may have no sample; 0: those of the training data, each of which must occur (idx, npy, "
      "tables)",
      0, 1 << 24},
     &DataSpec::num_classes},
    {{"drop_columns", kNames, "columns that are neither feature nor target (tables)"}, &DataSpec::drop_columns},
    {{"categorical_columns", kNames,
      "columns whose values are categories, which ctrdnn, 2emb, matchnet and nce embed (tables)"},
     &DataSpec::categorical_columns},
    {{"one_hot_columns", kNames,
      "columns with any text, of which each value in the training data becomes a feature, 0 or 1 (tables)"},
     &DataSpec::one_hot_columns},
    {choice(
         "missing",
         "what is done about cells without a number (tables): error; drop the row; or fill the cell with the column's "
         "mean or median over the training data, or zero",
         {"error", "drop", "mean", "median", "zero"}),
     &DataSpec::missing},
    {{"missing_indicator", kBoolean,
      "add a feature, 0 or 1, for each column with missing cells in the training data, that says where they were "
      "(tables)"},
     &DataSpec::missing_indicator},
    {{"max_malformed_fraction", kReal, "fraction of the lines that may be malformed and are skipped (tables, criteo)",
      0, 1},
     &DataSpec::max_malformed_fraction},
    {choice(
         "channels",
         "which axis of a sample holds an image's channels: first; last; auto, the one of first and last that is up to "
         "4 (npy)",
         {"auto", "first", "last"}),
     &DataSpec::channels},
    {{"image_size", kIntegers, "height and width to which images are resized (image-folder)", 1, 1 << 14},
     &DataSpec::image_size},
    {{"grayscale", kBoolean, "images have one channel instead of three (image-folder)"}, &DataSpec::grayscale},
    {{"crop_padding", kInteger,
      "pixels by which training images are moved at most, at random, in each direction (images)", 0, 1 << 14},
     &DataSpec::crop_padding},
    {{"horizontal_flip", kBoolean, "training images are mirrored at random (images)"}, &DataSpec::horizontal_flip},
    {{"num_samples", kReal, "synthetic training samples; a tenth as many for the test (clicks)", 1, 4e9},
     &DataSpec::num_samples},
    {{"num_categories", kReal, "different values of all categorical columns together (clicks)", 260, 1ULL << 32},
     &DataSpec::num_categories},
    {{"zipf", kReal, "exponent of the Zipf distribution of the categories (clicks)", 0.1, 10}, &DataSpec::zipf},
    {choice("token_dtype",
            "type of a file of tokens that is no .npy file; auto: uint16, where that does not look wrong (tokens)",
            {"auto", "uint16", "uint32"}),
     &DataSpec::token_dtype},
    {{"vocab_size", kInteger, "tokens are below it; 0: the largest one of the training data plus one (tokens)", 0,
      1 << 24},
     &DataSpec::vocab_size},
    {{"sequence_length", kInteger,
      "tokens of a sample, with text bytes; 0: 64, or of an array of rows one less than a row has (text, tokens)", 0,
      1 << 20},
     &DataSpec::sequence_length},
    {{"test_fraction", kReal,
      "fraction of the text or tokens, at their end, that is test data where data.test is empty (text, tokens)", 0,
      0.9},
     &DataSpec::test_fraction},
    {{"normalise", kBoolean,
      "shift and scale features to mean 0 and deviation 1, as measured on the training data (not text, tokens)"},
     &DataSpec::normalise},
    {{"server", kText,
      "host:port of the data server (`motley data-server`) that has the files; the other keys of the data are as "
      "there; empty: every worker has the files"},
     &DataSpec::server},
    {{"token_file", kPath,
      "file (mode 0600) with the data server's token; empty: that of the variable MOTLEY_TOKEN_FILE"},
     &DataSpec::token_file},
    {{"prefetch", kInteger, "steps whose samples a worker reads ahead", 0, 64}, &DataSpec::prefetch},
    {{"threads", kInteger, "threads in which a worker reads and decodes its samples", 1, 256}, &DataSpec::threads},
};

const OptionTable<TrainingSpec> kTrainingOptions = {
    {common({"global_batch_size", kInteger, "samples of one step, over all workers", 1, 1 << 30}),
     &TrainingSpec::global_batch_size},
    {{"gradient_accumulation_steps", kInteger, "micro-batches into which a worker cuts its part of a step", 1, 4096},
     &TrainingSpec::gradient_accumulation_steps},
    {common({"epochs", kReal, "passes over the training data", 0, 1e6}), &TrainingSpec::epochs},
    {common({"steps", kInteger, "stop after this many steps; 0: by epochs", 0}), &TrainingSpec::steps},
    {choice("loss", "loss, averaged over the samples of a step", {"cross-entropy", "bce", "mse"}), &TrainingSpec::loss},
};

const OptionTable<OptimizerSpec> kOptimizerOptions = {
    {common(choice("name", "optimizer", {"sgd", "adam", "adamw"})), &OptimizerSpec::name},
    {common({"learning_rate", kReal, "peak learning rate, which lr_scheduler scales", 0}),
     &OptimizerSpec::learning_rate},
    {{"momentum", kReal, "momentum of sgd", 0, 0.99999}, &OptimizerSpec::momentum},
    {{"nesterov", kBoolean, "Nesterov's form of the momentum"}, &OptimizerSpec::nesterov},
    {{"weight_decay", kReal, "weight decay", 0}, &OptimizerSpec::weight_decay},
    {{"betas", kReals, "decay rates of adam and adamw", 0, 0.9999999}, &OptimizerSpec::betas},
    {{"epsilon", kReal, "added to adam's denominator", 0}, &OptimizerSpec::epsilon},
};

const OptionTable<LrSchedulerSpec> kLrSchedulerOptions = {
    {choice("name", "learning-rate scheduler", {"constant", "step", "cosine"}), &LrSchedulerSpec::name},
    {{"warmup_steps", kInteger, "steps of linear warm-up", 0}, &LrSchedulerSpec::warmup_steps},
    {{"step_size", kInteger, "step: multiply by lr_scheduler.gamma every so many steps", 1},
     &LrSchedulerSpec::step_size},
    {{"gamma", kReal, "step: the factor", 0, 1}, &LrSchedulerSpec::gamma},
    {{"min_lr_ratio", kReal,
      "cosine: learning rate that is reached after the last step, as a fraction of optimizer.learning_rate", 0, 1},
     &LrSchedulerSpec::min_lr_ratio},
};

const OptionTable<BatchSplitSpec> kBatchSplitOptions = {
    {common(choice(
         "mode",
         "how a step's samples are split among the workers: dynamic follows measured speed (and takes from a work "
         "queue under random delays)",
         {"dynamic", "equal", "fixed", "replay", "work-queue"}, {{"pull", "work-queue"}})),
     &BatchSplitSpec::mode},
    {{"fixed", kIntegers, "fixed: samples of each worker in a full batch", 0}, &BatchSplitSpec::fixed},
    {{"replay", kPath, "replay: run folder whose recorded splits are used again"}, &BatchSplitSpec::replay},
};

const OptionTable<BaselineSpec> kBaselineOptions = {
    {{"every", kInteger,
      "run baseline steps with the equal split every so many steps, to measure the gain in the same run; 0: never", 0},
     &BaselineSpec::every},
    {{"steps", kInteger, "baseline steps in a row", 1, 1000}, &BaselineSpec::steps},
};

const OptionTable<ExecutionSpec> kExecutionOptions = {
    {common(
         {"workers", kInteger,
          "worker processes, with elastic those that it begins with; 0: those of the launcher, the plan or the cluster "
          "file; with elastic MAX; with device auto one for each accelerator; else one",
          0, 1024}),
     &ExecutionSpec::workers},
    {common(
         {"elastic", kText,
          "MIN:MAX, such as '2:4': the job goes on where workers are lost, as long as MIN are left, and may be given "
          "other "
          "numbers up to MAX while it runs; without workers and a cluster file MAX are started; empty: the loss of one "
          "ends the job"}),
     &ExecutionSpec::elastic},
    {{"replacements", kInteger,
      "with elastic: how often, in all, a worker that was killed is started anew and takes its place again; 0: never",
      0, 1000000},
     &ExecutionSpec::replacements},
    {common({"cluster", kPath, "cluster file that describes the workers; empty: this machine"}),
     &ExecutionSpec::cluster},
    {common({"plan", kPath,
             "plan file (of `motley plan`) that says which layers each worker computes; auto: profile and plan first; "
             "empty: all of them"}),
     &ExecutionSpec::plan},
    {{"profile", kPath,
      "with a plan file: profile that the plan was made from, so that the run can replan and its page show the "
      "predicted step; empty: that of emulation"},
     &ExecutionSpec::profile},
    {{"replan", kBoolean,
      "a planned run whose profile is known moves to a better plan of the same workers when they are not as fast as "
      "that says"},
     &ExecutionSpec::replan},
    {{"emulation", kPath,
      "with a plan file: profile whose times for its device types and layers the workers take, to try a plan for "
      "devices that are not here; empty: they are as fast as they are"},
     &ExecutionSpec::emulation},
    {common(
         {"device", kText,
          "where the cluster file does not say: cpu, cuda, xpu, mps or emulated, or one of them as in cuda:1; auto: "
          "an accelerator where there is one, and without workers, plan and elastic each of this machine's, with its "
          "CPUs beside them where steps are shorter so"}),
     &ExecutionSpec::device},
    {{"threads", kInteger, "compute threads of a worker, where the cluster file does not say", 1, 1024},
     &ExecutionSpec::threads},
    {{"deterministic", kBoolean, "only kernels that give the same bits from run to run"},
     &ExecutionSpec::deterministic},
};

const OptionTable<DeadlineSpec> kDeadlineOptions = {
    {{"join", kSeconds, "how long workers may take to appear", 0.1, 86400}, &DeadlineSpec::join},
    {{"step", kSeconds, "how long a worker may be waited for within a step", 0.1, 86400}, &DeadlineSpec::step},
    {{"silence", kSeconds,
      "how long a worker or parameter server may give no sign of life before it counts as lost; each worker gives at "
      "least one per second, however busy it is, and at least four within this time, ten with elastic; 0: 10 s, with "
      "elastic 1 s",
      0, 86400},
     &DeadlineSpec::silence},
    {{"progress", kSeconds,
      "with elastic: how long a worker may compute without progress while others wait, or a parameter server be at one "
      "piece of an update, before it counts as lost; 0: 10 s, or 20 steps if these take longer",
      0, 86400},
     &DeadlineSpec::progress},
};

const OptionTable<net::CertificateFiles> kCertificateOptions = {
    {{"tls_certificate", kPath,
      "file (PEM) with the job's certificate, for URI:motley:tenant/NAME with gradient_sync.tenant as the name, and "
      "those between it and its CA's; all that the job connects to then needs one, too, besides the secret; empty: "
      "that of the variable MOTLEY_TLS_CERTIFICATE, if any"},
     &net::CertificateFiles::certificate},
    {{"tls_key", kPath,
      "file (PEM, mode 0600) with the private key of network.tls_certificate; empty: that of the variable "
      "MOTLEY_TLS_KEY"},
     &net::CertificateFiles::key},
    {{"tls_ca", kPath,
      "file (PEM) with CA certificates, one of which signed those of workers and servers; empty: that of the variable "
      "MOTLEY_TLS_CA"},
     &net::CertificateFiles::ca},
};

const OptionTable<NetworkSpec> kNetworkOptions = {
    {choice(
         "encryption",
         "TLS 1.3 on the job's connections; auto: on all but those over loopback; off: in the clear, where others on "
         "the network can read gradients, weights and samples, and change them",
         {"auto", "on", "off"}),
     &NetworkSpec::encryption},
    {"", &NetworkSpec::tls, kCertificateOptions},
};

const OptionTable<GradientSyncSpec> kGradientSyncOptions = {
    {choice("method",
            "gradient synchronisation: ring (all-reduce, in shared memory where that is possible) or "
            "parameter-server; auto: ring, or what is measured to be faster where gradient_sync.servers are given",
            {"auto", "ring", "parameter-server", "shared-memory", "tcp-ring"}, {{"ps", "parameter-server"}}),
     &GradientSyncSpec::method},
    {choice("comm_dtype",
            "type on the wire between hosts; parameter-server only: int8, top-k (what a gradient leaves out goes "
            "with the next one), or auto: what of float32, bfloat16 and int8 pays",
            {"float32", "bfloat16", "float16", "int8", "top-k", "auto"}),
     &GradientSyncSpec::comm_dtype},
    {{"top_k", kReal, "top-k: the fraction of a gradient's values that is sent", 1e-6, 0.5}, &GradientSyncSpec::top_k},
    {{"bucket_size", kBytes, "gradients are synchronised in buckets of about this size", 4096},
     &GradientSyncSpec::bucket_size},
    {choice("consistency",
            "parameter-server: whether workers take each step together (bsp), may be gradient_sync.staleness steps "
            "ahead of the slowest (ssp), or any number of steps (async)",
            {"bsp", "ssp", "async"}),
     &GradientSyncSpec::consistency},
    {{"staleness", kInteger,
      "ssp: steps that a worker may be ahead of the slowest, 0 is bsp; async: likewise, but 0 sets no bound", 0,
      1 << 20},
     &GradientSyncSpec::staleness},
    {{"servers", kText,
      "parameter-server, auto: servers to use, 'host:port, host:port'; empty: with parameter-server one is started "
      "on this machine for the job"},
     &GradientSyncSpec::servers},
    {{"token_file", kPath,
      "parameter-server, auto: file (mode 0600) with the servers' token; empty: that of the variable "
      "MOTLEY_TOKEN_FILE"},
     &GradientSyncSpec::token_file},
    {{"tenant", kText,
      "whom the job belongs to: whose token it has for parameter servers that tell tenants apart, and for whom its "
      "certificate speaks (network.tls_certificate)"},
     &GradientSyncSpec::tenant},
    {choice("placement",
            "parameter-server: where gradients are summed: central at the first server, sharded over all, colocated "
            "beside the workers, hierarchical by rack first; auto: sharded, or with gradient_sync.racks what "
            "measured links make faster",
            {"auto", "central", "sharded", "colocated", "hierarchical"}),
     &GradientSyncSpec::placement},
    {choice("replication",
            "parameter-server, with elastic and two or more servers, without racks: whether each one's weights and "
            "optimizer state are in another one's memory, too, after each step, so that the loss of one costs no more "
            "than the step under way; auto: where servers and workers are not all on one host",
            {"auto", "on", "off"}),
     &GradientSyncSpec::replication},
    {{"racks", kIntegers, "parameter-server: for each worker which of gradient_sync.servers, from 0, is in its rack", 0,
      net::kMaxRanks - 1},
     &GradientSyncSpec::racks},
    {{"server_threads", kInteger,
      "parameter-server: threads of the server that is started for the job; 0: one a core, colocated: one", 0, 1024},
     &GradientSyncSpec::server_threads},
    {{"chunk_size", kBytes, "parameter-server: gradients are summed in chunks of this size", 64, 1 << 20},
     &GradientSyncSpec::chunk_size},
    {{"overlap", kBoolean,
      "synchronise finished buckets while backward still runs; copy to and from GPUs while they compute"},
     &GradientSyncSpec::overlap},
};

const OptionTable<CheckpointSpec> kCheckpointOptions = {
    {{"every_steps", kInteger, "checkpoint every so many steps; 0: by time only", 0}, &CheckpointSpec::every_steps},
    {{"every", kSeconds, "checkpoint at least this often; 0: by steps only", 0}, &CheckpointSpec::every},
    {{"keep", kInteger, "checkpoints kept; 0: none is written, not even at the end", 0, 1000}, &CheckpointSpec::keep},
};

const OptionTable<EvaluateSpec> kEvaluateOptions = {
    {{"every_epochs", kReal, "evaluate on the test data this often and at the end; 0: at the end only; -1: never", -1},
     &EvaluateSpec::every_epochs},
};

const OptionTable<AcceptanceSpec> kAcceptanceOptions = {
    {{"test_accuracy", kReal, "the summary says whether the test accuracy reached this; 0: not asked for", 0, 1},
     &AcceptanceSpec::test_accuracy},
    {{"test_auc", kReal, "the same for the area under the ROC curve on the test data, of two classes", 0, 1},
     &AcceptanceSpec::test_auc},
    {{"speedup_over_equal", kReal, "the same for the speed-up over the equal split, which baseline steps measure", 0},
     &AcceptanceSpec::speedup_over_equal},
    {{"wait_fraction", kReal, "the same for the largest fraction of step time that a worker waits", 0, 1},
     &AcceptanceSpec::wait_fraction},
};

const OptionTable<TimelineSpec> kTimelineOptions = {
    {{"steps", kInteger,
      "about how many steps are recorded in timeline.json: the first half of this number, the others spread over the "
      "run",
      0, 100000},
     &TimelineSpec::steps},
};

}  // namespace

const OptionTable<Job>& Job::options() {
  static const OptionTable<Job> options = {
      {{"version", kInteger, "version of the job format", kJobVersion, kJobVersion}, &Job::version},
      {common({"name", kText, "name of the job; run folders are named after it"}), &Job::name},
      {common({"seed", kInteger, "seed of the initial weights, the order of the samples and dropout", 0}), &Job::seed},
      {"model", &Job::model, kModelOptions},
      {"data", &Job::data, kDataOptions},
      {"embedding", &Job::embedding, kEmbeddingOptions},
      {"", &Job::training, kTrainingOptions},
      {"optimizer", &Job::optimizer, kOptimizerOptions},
      {"lr_scheduler", &Job::lr_scheduler, kLrSchedulerOptions},
      {{"max_grad_norm", kReal, "clip the gradient's global norm to this; 0: no clipping", 0}, &Job::max_grad_norm},
      {choice("precision", "bfloat16: forward pass under autocast", {"float32", "bfloat16"}), &Job::precision},
      {"", &Job::execution, kExecutionOptions},
      {"gradient_sync", &Job::gradient_sync, kGradientSyncOptions},
      {"batch_split", &Job::batch_split, kBatchSplitOptions},
      {"baseline", &Job::baseline, kBaselineOptions},
      {"checkpoint", &Job::checkpoint, kCheckpointOptions},
      {"evaluate", &Job::evaluate, kEvaluateOptions},
      {"acceptance", &Job::acceptance, kAcceptanceOptions},
      {"deadline", &Job::deadline, kDeadlineOptions},
      {"network", &Job::network, kNetworkOptions},
      {"timeline", &Job::timeline, kTimelineOptions},
      {choice("log_level", "how much is logged", {"trace", "debug", "info", "warn", "error"}), &Job::log_level},
  };
  return options;
}

}  // namespace motley::train
