#include "motley/app/train/serve_data.h"

#include "motley/net/socket.h"
#include "motley/train/job/job_data.h"

namespace motley::app {

const OptionTable<DataRequest>& DataRequest::options() {
  using enum OptionKind;
  static const OptionTable<DataRequest> options = {
      {{"listen", kText, "address and port to listen on; port 0: any free one"}, &DataRequest::listen},
      {{"token_file", kPath,
        "file (mode 0600) with the token that workers must know; default: the file that MOTLEY_TOKEN_FILE names"},
       &DataRequest::token_file},
  };
  return options;
}

Result<RunningDataServer> serve_data(train::Job job, const DataRequest& request) {
  job.data.server.clear();  // it is this one
  MOTLEY_TRY(train::check_data(job));
  data::DataServerOptions options;
  MOTLEY_ASSIGN(options.listen, net::parse_endpoint(request.listen));
  const auto token = net::Secret::from_file(request.token_file, net::kTokenFileVariable);
  if (!token) return fail(token.error().within("--token-file, for the token that lets workers in"));
  data::ServedData data;
  data.keys = train::data_keys(job);
  MOTLEY_ASSIGN(data.training, train::open_training_data(job));
  if (train::has_test_data(job)) {
    MOTLEY_ASSIGN(data.test, train::open_test_data(job, *data.training));
  }
  RunningDataServer running;
  MOTLEY_ASSIGN(running.server, data::DataServer::start(options, *token, std::move(data)));
  running.address = net::to_string(running.server->endpoint());
  const data::Description& training = *running.server->description(data::Set::kTraining);
  const auto& test = running.server->description(data::Set::kTest);
  running.description = fmt::format("{} training and {} test samples of {}, {} bytes each", training.size,
                                    test ? test->size : 0, job.data.name, data::sample_bytes(training, {}));
  return running;
}

}  // namespace motley::app
