#include "motley/train/job/job_data.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

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

data::DatasetSource make_source(const Job& job, bool training) {
  if (job.data.name == "fashion-mnist") return data::fashion_mnist(training, job.data.folder);
  using Format = data::DatasetSource::Format;
  data::DatasetSource source;
  if (job.data.name == "text") {
    source.format = Format::kText;
    source.sequence = static_cast<std::uint32_t>(job.data.sequence_length);
    if (!training && !job.data.test.empty()) {
      source.features = job.data.test;
      return source;
    }
    source.features = job.data.train.empty() ? data::kJargonFile : job.data.train;
    if (job.data.test.empty()) (training ? source.text_end : source.text_begin) = 1 - job.data.test_fraction;
    return source;
  }
  source.format = job.data.name == "idx"      ? Format::kIdx
                  : job.data.name == "csv"    ? Format::kCsv
                  : job.data.name == "criteo" ? Format::kCriteo
                                              : Format::kNpy;
  source.features = training ? job.data.train : job.data.test;
  source.targets = training ? job.data.train_targets : job.data.test_targets;
  source.target_column = job.data.target;
  source.target_kind = job.data.target_kind == "class" ? data::TargetKind::kClass : data::TargetKind::kReal;
  source.drop_columns = listed(job.data.drop_columns);
  source.categories = listed(job.data.categorical_columns);
  source.malformed_share = job.data.max_malformed_fraction;
  return source;
}

// A file of the data that is damaged or cut off is wrong input, as any other that cannot be used.
Result<std::unique_ptr<data::Dataset>> open_files(const data::DatasetSource& source) {
  auto dataset = data::open_dataset(source);
  if (!dataset && dataset.error().code == ErrorCode::kCorrupt) dataset.error().code = ErrorCode::kInvalidInput;
  return dataset;
}

Result<std::unique_ptr<data::Dataset>> open_data(const Job& job, bool training, std::uint32_t class_count) {
  if (job.data.name == "clicks") return data::make_clicks(make_click_source(job, training));
  data::DatasetSource source = make_source(job, training);
  source.class_count = class_count;
  // Measured on the training data; fashion-mnist brings its own, and tokens have none.
  if (!job.data.normalise || job.data.name == "text") {
    source.normalisation = {};
  } else if (job.data.name != "fashion-mnist") {
    MOTLEY_ASSIGN(const auto plain, open_files(make_source(job, true)));
    MOTLEY_ASSIGN(source.normalisation, data::measure_normalisation(*plain));
  }
  return open_files(source);
}

Result<std::unique_ptr<data::Dataset>> open_at_server(const Job& job, data::Set set) {
  MOTLEY_ASSIGN(data::DataServerAccess access, data_server_access(job, set));
  return data::RemoteDataset::open(std::move(access));
}

}  // namespace

Result<std::unique_ptr<data::Dataset>> open_training_data(const Job& job) {
  return job.data.server.empty() ? open_data(job, true, 0) : open_at_server(job, data::Set::kTraining);
}

bool has_test_data(const Job& job) {
  return job.data.name == "fashion-mnist" || job.data.name == "clicks" || !job.data.test.empty() ||
         (job.data.name == "text" && job.data.test_fraction > 0);
}

Result<std::unique_ptr<data::Dataset>> open_test_data(const Job& job, const data::Dataset& training) {
  if (!job.data.server.empty()) return open_at_server(job, data::Set::kTest);
  MOTLEY_ASSIGN(auto test, open_data(job, false, training.class_count()));
  if (test->feature_shape() != training.feature_shape() || test->target_width() != training.target_width()) {
    return fail(ErrorCode::kInvalidInput,
                "data.test: a sample has {} features and {} target values; the training data has {} and {}",
                test->feature_count(), test->target_width(), training.feature_count(), training.target_width());
  }
  return test;
}

std::string data_keys(const Job& job) {
  std::string text;
  for (const auto& entry : Job::options().entries()) {
    const std::string& key = entry.text.key;
    const bool is_data =
        key.starts_with("data.") && key != "data.server" && key != "data.token_file" && key != "data.prefetch";
    if ((!is_data || key == "data.folder") && !(key == "seed" && job.data.name == "clicks")) continue;
    const std::string value = Job::options().get(job, entry);
    const bool is_file = key.starts_with("data.train") || key == "data.test" || key == "data.test_targets";
    text += fmt::format("{}: {}\n", key, is_file ? std::filesystem::path(value).filename().string() : value);
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
  std::vector<std::pair<std::string, std::filesystem::path>> files;
  for (const bool training : {true, false}) {
    if (job.data.name != "clicks" && (training || has_test_data(job))) {
      const data::DatasetSource source = make_source(job, training);
      const std::string key = job.data.name == "fashion-mnist" ? "data.folder" : training ? "data.train" : "data.test";
      files.emplace_back(key, source.features);
      files.emplace_back(job.data.name == "fashion-mnist" ? key : key + "_targets", source.targets);
    }
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
