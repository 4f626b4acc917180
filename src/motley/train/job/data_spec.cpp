#include "motley/train/job/data_spec.h"

namespace motley::train {

using enum OptionKind;

const OptionTable<DataSpec>& DataSpec::options() {
  static const OptionTable<DataSpec> options = {
      {choice("name", "format of the data", {"fashion-mnist", "idx", "csv", "npy", "text", "criteo", "clicks"}),
       &DataSpec::name},
      {{"folder", kPath, "folder of the four files of fashion-mnist (MNIST's have the same names)"}, &DataSpec::folder},
      {{"train", kPath,
        "training features (idx, npy), table (csv) or text; empty with text: the one of Debian's package jargon-text"},
       &DataSpec::train},
      {{"train_targets", kPath, "training targets (idx, npy)"}, &DataSpec::train_targets},
      {{"test", kPath, "test features, table or text; empty: no evaluation, or with text by data.test_fraction"},
       &DataSpec::test},
      {{"test_targets", kPath, "test targets (idx, npy)"}, &DataSpec::test_targets},
      {{"target", kText, "column of the target (csv)"}, &DataSpec::target},
      {choice("target_kind", "what the target is", {"class", "real"}), &DataSpec::target_kind},
      {{"drop_columns", kText, "columns that are neither feature nor target (csv), separated by commas"},
       &DataSpec::drop_columns},
      {{"categorical_columns", kText,
        "columns whose values are categories, which ctrdnn, 2emb, matchnet and nce embed (csv), separated by commas"},
       &DataSpec::categorical_columns},
      {{"max_malformed_fraction", kReal, "fraction of the lines that may be malformed and are skipped (csv, criteo)", 0,
        1},
       &DataSpec::max_malformed_fraction},
      {{"num_samples", kReal, "synthetic training samples; a tenth as many for the test (clicks)", 1, 4e9},
       &DataSpec::num_samples},
      {{"num_categories", kReal, "different values of all categorical columns together (clicks)", 260, 1ULL << 32},
       &DataSpec::num_categories},
      {{"zipf", kReal, "exponent of the Zipf distribution of the categories (clicks)", 0.1, 10}, &DataSpec::zipf},
      {{"sequence_length", kInteger, "bytes of a sample (text)", 1, 1 << 20}, &DataSpec::sequence_length},
      {{"test_fraction", kReal, "fraction of the text, at its end, that is test data where data.test is empty (text)",
        0, 0.9},
       &DataSpec::test_fraction},
      {{"normalise", kBoolean,
        "shift and scale features to mean 0 and deviation 1, as measured on the training data (not text)"},
       &DataSpec::normalise},
      {{"server", kText,
        "host:port of the data server (`motley data-server`) that has the files; the other keys of the data are as "
        "there; empty: every worker has the files"},
       &DataSpec::server},
      {{"token_file", kPath,
        "file (mode 0600) with the data server's token; empty: that of the variable MOTLEY_TOKEN_FILE"},
       &DataSpec::token_file},
      {{"prefetch", kInteger, "steps whose samples a worker reads ahead", 0, 64}, &DataSpec::prefetch},
  };
  return options;
}

Status DataSpec::check() const {
  if (name == "fashion-mnist" && folder.empty()) {
    return fail(ErrorCode::kInvalidInput, "data.folder: fashion-mnist needs the folder of its four files");
  }
  if (!categorical_columns.empty() && name != "csv") {
    return fail(ErrorCode::kInvalidInput, "data.categorical_columns: accepted with data.name csv, not {}", name);
  }
  const bool has_file = name != "fashion-mnist" && name != "text" && name != "clicks";
  if (has_file && train.empty()) {
    return fail(ErrorCode::kInvalidInput, "data.train: data.name {} needs the training file", name);
  }
  if (name == "csv" && target.empty()) {
    return fail(ErrorCode::kInvalidInput, "data.target: data.name csv needs the name of the target's column");
  }
  if ((name == "idx" || name == "npy") && train_targets.empty()) {
    return fail(ErrorCode::kInvalidInput, "data.train_targets: data.name {} needs the file of the training targets",
                name);
  }
  return {};
}

}  // namespace motley::train
