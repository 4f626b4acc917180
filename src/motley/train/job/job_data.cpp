#include "motley/train/job/job_data.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/data/local/clicks.h"
#include "motley/net/socket.h"

namespace motley::train {
namespace {

std::vector<std::string> listed(const std::string& names) {
  std::vector<std::string> list;
  std::istringstream words(names);
  for (std::string word; std::getline(words, word, ',');) {
    const std::size_t begin = word.find_first_not_of(' ');
    if (begin != std::string::npos) list.push_back(word.substr(begin, word.find_last_not_of(' ') - begin + 1));
  }
  return list;
}

// Test samples are those after the training samples, a tenth as many.
data::ClickSource make_click_source(const Job& job, bool training) {
  data::ClickSource source;
  source.seed = static_cast<std::uint64_t>(job.seed);
  source.rows = static_cast<std::uint64_t>(job.data.num_categories);
  source.zipf = job.data.zipf;
  source.samples = static_cast<std::uint32_t>(job.data.num_samples);
  if (!training) {
    source.first = source.samples;
    source.samples = std::max(1U, source.samples / 10);
  }
  return source;
}

// What the word of a choice stands for.
template <class Value>
Value find_value(const std::string& word, std::initializer_list<std::pair<std::string_view, Value>> words) {
  for (const auto& [known, value] : words) {
    if (known == word) return value;
  }
  MOTLEY_INVARIANT(false, "the choice '{}' stands for nothing", word);
}

data::DatasetSource::Format find_format(const std::string& name) {
  using enum data::DatasetSource::Format;
  return find_value<data::DatasetSource::Format>(name, {{"fashion-mnist", kIdx},
                                                        {"idx", kIdx},
                                                        {"csv", kCsv},
                                                        {"parquet", kArrow},
                                                        {"arrow", kArrow},
                                                        {"npy", kNpy},
                                                        {"image-folder", kImageFolder},
                                                        {"text", kText},
                                                        {"tokens", kTokens},
                                                        {"criteo", kCriteo}});
}

void describe_table(const DataSpec& keys, data::DatasetSource& source) {
  source.target_column = keys.target;
  source.drop_columns = listed(keys.drop_columns);
  source.categories = listed(keys.categorical_columns);
  source.one_hot = listed(keys.one_hot_columns);
  source.malformed_share = keys.max_malformed_fraction;
  source.missing_indicator = keys.missing_indicator;
  using enum data::MissingCells;
  source.missing = find_value<data::MissingCells>(
      keys.missing, {{"error", kError}, {"drop", kDrop}, {"mean", kMean}, {"median", kMedian}, {"zero", kZero}});
}

// The file of a text or of tokens: the test data are the end of the training data where they have no file.
void describe_tokens(const DataSpec& keys, bool training, data::DatasetSource& source) {
  source.sequence = static_cast<std::uint32_t>(keys.sequence_length);
  source.class_count = keys.name == "tokens" ? static_cast<std::uint32_t>(keys.vocab_size) : 0;
  using enum data::TokenType;
  source.token_type =
      find_value<data::TokenType>(keys.token_dtype, {{"auto", kAuto}, {"uint16", kUint16}, {"uint32", kUint32}});
  if (!training && !keys.test.empty()) return;
  source.features = keys.train.empty() ? data::kJargonFile : keys.train;
  if (keys.test.empty()) (training ? source.text_end : source.text_begin) = 1 - keys.test_fraction;
}

// `training`: the training data; null: this is it.
data::DatasetSource make_source(const Job& job, const data::Dataset* training) {
  const DataSpec& keys = job.data;
  const bool is_training = training == nullptr;
  data::DatasetSource source;
  source.format = find_format(keys.name);
  source.features = is_training ? keys.train : keys.test;
  source.targets = is_training ? keys.train_targets : keys.test_targets;
  source.target_kind = keys.target_kind == "real" ? data::TargetKind::kReal : data::TargetKind::kClass;
  source.labels = keys.target_kind == "label" ? data::ClassLabels::kLabel : data::ClassLabels::kAuto;
  source.class_count = static_cast<std::uint32_t>(keys.num_classes);
  using enum data::ChannelOrder;
  source.channels =
      find_value<data::ChannelOrder>(keys.channels, {{"auto", kAuto}, {"first", kFirst}, {"last", kLast}});
  source.images = {static_cast<std::uint32_t>(keys.image_size.front()),
                   static_cast<std::uint32_t>(keys.image_size.back()), keys.grayscale};
  describe_table(keys, source);
  if (has_tokens(keys)) describe_tokens(keys, is_training, source);
  if (keys.name == "fashion-mnist") {
    source = data::fashion_mnist(is_training, keys.folder);  // with its normalisation
    if (!keys.normalise) source.normalisation = {};
  } else {
    source.normalise = keys.normalise && !has_tokens(keys);
  }
  if (!is_training) source.preprocessing = &training->preprocessing();
  return source;
}

// A file of the data that is damaged or cut off is wrong input, as any other that cannot be used.
Result<std::unique_ptr<data::Dataset>> open_files(const data::DatasetSource& source) {
  auto dataset = data::open_dataset(source);
  if (!dataset && dataset.error().code == ErrorCode::kCorrupt) dataset.error().code = ErrorCode::kInvalidInput;
  return dataset;
}

// The loss bce of a target that is no probability has no least value, and training would go on without saying so.
Status check_targets(const Job& job, const data::Dataset& dataset, const char* key) {
  if (job.training.loss != "bce") return {};
  MOTLEY_ASSIGN(const auto wrong, data::find_improbable_target(dataset));
  if (!wrong) return {};
  return fail(ErrorCode::kInvalidInput,
              "loss: 'bce' does not suit {}, whose sample {} (counted from 0) has the target {}; accepted with bce: "
              "targets from 0 to 1",
              key, wrong->sample, wrong->value);
}

Result<std::unique_ptr<data::Dataset>> open_data(const Job& job, const data::Dataset* training) {
  if (job.data.name == "clicks") return data::make_clicks(make_click_source(job, training == nullptr));
  MOTLEY_ASSIGN(auto dataset, open_files(make_source(job, training)));
  MOTLEY_TRY(check_targets(job, *dataset, training == nullptr ? "data.train" : "data.test"));
  return dataset;
}

Result<std::unique_ptr<data::Dataset>> open_at_server(const Job& job, data::Set set) {
  MOTLEY_ASSIGN(data::DataServerAccess access, data_server_access(job, set));
  MOTLEY_ASSIGN(auto dataset, data::RemoteDataset::open(std::move(access)));
  MOTLEY_TRY(check_served_targets(job, set, dataset->description()));
  return dataset;
}

}  // namespace

Status check_served_targets(const Job& job, data::Set set, const data::Description& served) {
  if (job.training.loss != "bce" || !served.improbable_target) return {};
  return fail(ErrorCode::kInvalidInput,
              "loss: 'bce' does not suit the {} data of data.server {}, whose sample {} (counted from 0) has a target "
              "that is not from 0 to 1; accepted with bce: targets from 0 to 1",
              data::to_string(set), job.data.server, *served.improbable_target);
}

Result<std::unique_ptr<data::Dataset>> open_training_data(const Job& job) {
  return job.data.server.empty() ? open_data(job, nullptr) : open_at_server(job, data::Set::kTraining);
}

bool has_test_data(const Job& job) {
  return job.data.name == "fashion-mnist" || job.data.name == "clicks" || !job.data.test.empty() ||
         (has_tokens(job.data) && job.data.test_fraction > 0);
}

Result<std::unique_ptr<data::Dataset>> open_test_data(const Job& job, const data::Dataset& training) {
  if (!job.data.server.empty()) return open_at_server(job, data::Set::kTest);
  MOTLEY_ASSIGN(auto test, open_data(job, &training));
  if (test->feature_shape() != training.feature_shape() || test->target_width() != training.target_width()) {
    return fail(ErrorCode::kInvalidInput,
                "data.test: a sample has {} features and {} target values; the training data has {} and {}",
                test->feature_count(), test->target_width(), training.feature_count(), training.target_width());
  }
  return test;
}

Result<data::Augmentation> make_augmentation(const Job& job, const data::Dataset& training) {
  const data::Augmentation augmentation{.crop_padding = static_cast<std::uint32_t>(job.data.crop_padding),
                                        .horizontal_flip = job.data.horizontal_flip,
                                        .seed = static_cast<std::uint64_t>(job.seed)};
  if (augmentation.is_none() || training.feature_shape().size() == 3) return augmentation;
  return fail(ErrorCode::kInvalidInput,
              "data.{}: samples have the shape [{}]; accepted with images, channels x height x width",
              job.data.horizontal_flip ? "horizontal_flip" : "crop_padding", fmt::join(training.feature_shape(), ", "));
}

std::string data_keys(const Job& job) {
  // What a worker does for itself.
  constexpr std::string_view kOwn[] = {"data.server",  "data.token_file",   "data.prefetch",
                                       "data.threads", "data.crop_padding", "data.horizontal_flip"};
  std::string text;
  for (const auto& entry : Job::options().entries()) {
    const std::string& key = entry.text.key;
    const bool is_data = key.starts_with("data.") && std::ranges::find(kOwn, key) == std::end(kOwn);
    if ((!is_data || key == "data.folder") && !(key == "seed" && job.data.name == "clicks")) continue;
    const std::string value = Job::options().get(job, entry);
    const bool is_file = key.starts_with("data.train") || key == "data.test" || key == "data.test_targets";
    std::filesystem::path path = value;
    if (!path.has_filename()) path = path.parent_path();  // a folder with a slash behind it
    text += fmt::format("{}: {}\n", key, is_file ? path.filename().string() : value);
  }
  return text;
}

Result<data::DataServerAccess> data_server_access(const Job& job, data::Set set) {
  const auto endpoint = net::parse_endpoint(job.data.server);
  if (!endpoint) return fail(endpoint.error().within("data.server"));
  data::DataServerAccess access;
  access.endpoint = *endpoint;
  access.token = [file = job.data.token_file]() -> Result<net::Secret> {
    auto token = net::Secret::from_file(file, net::kTokenFileVariable);
    return token ? token : fail(token.error().within("data.token_file"));
  };
  access.claim.identity = {.job = job.name, .tenant = job.gradient_sync.tenant, .session = 1, .epoch = 1};
  access.set = set;
  access.keys = data_keys(job);
  access.join_seconds = job.deadline.join;
  access.read_seconds = job.deadline.step / 2;
  MOTLEY_ASSIGN(access.encryption, read_encryption(job));
  return access;
}

Result<RunningDataServer> serve_data(Job job, const std::string& listen, const std::string& token_file) {
  job.data.server.clear();  // it is this one
  MOTLEY_TRY(check_data(job));
  MOTLEY_ASSIGN(const net::Endpoint endpoint, net::parse_endpoint(listen));
  const auto token = net::Secret::from_file(token_file, net::kTokenFileVariable);
  if (!token) return fail(token.error().within("--token-file, for the token that lets workers in"));
  data::ServedData data{.training = nullptr, .test = nullptr, .keys = data_keys(job)};
  MOTLEY_ASSIGN(data.training, open_training_data(job));
  if (has_test_data(job)) {
    MOTLEY_ASSIGN(data.test, open_test_data(job, *data.training));
  }
  for (const auto* dataset : {data.training.get(), data.test.get()}) {
    if (dataset == nullptr) continue;
    for (const std::string& note : dataset->notes()) spdlog::info("{}", note);
  }
  MOTLEY_ASSIGN(const auto encryption, read_encryption(job));
  MOTLEY_ASSIGN(auto server,
                data::DataServer::start({.listen = endpoint, .encryption = encryption}, *token, std::move(data)));
  const data::Description& training = *server->description(data::Set::kTraining);
  const auto& test = server->description(data::Set::kTest);
  std::string description = fmt::format("{} training and {} test samples of {}, {} bytes each", training.size,
                                        test ? test->size : 0, job.data.name, data::sample_bytes(training, {}));
  std::string address = net::to_string(server->endpoint());
  return RunningDataServer{std::move(server), std::move(address), std::move(description)};
}

Status check_data(const Job& job) {
  if (!job.data.server.empty()) {
    MOTLEY_ASSIGN(const data::DataServerAccess access, data_server_access(job, data::Set::kTraining));
    const auto token = access.token();
    return token ? Status() : fail(token.error());
  }
  const DataSpec& data = job.data;
  std::vector<std::pair<std::string, std::filesystem::path>> files;
  if (data.name == "fashion-mnist") {
    for (const bool training : {true, false}) {
      const data::DatasetSource source = data::fashion_mnist(training, data.folder);
      files.insert(files.end(), {{"data.folder", source.features}, {"data.folder", source.targets}});
    }
  } else if (data.name == "text" && data.train.empty()) {
    files.emplace_back("data.train", data::kJargonFile);
  }
  if (data.name != "fashion-mnist" && data.name != "clicks") {
    files.insert(files.end(), {{"data.train", data.train},
                               {"data.train_targets", data.train_targets},
                               {"data.test", data.test},
                               {"data.test_targets", data.test_targets}});
  }
  for (const auto& [key, file] : files) {
    if (!file.empty() && !std::ifstream(file)) {
      return fail(ErrorCode::kInvalidInput, "{}: cannot read '{}': {}{}", key, file.string(), errno_text(),
                  data::install_hint(file));
    }
  }
  return {};
}

}  // namespace motley::train
