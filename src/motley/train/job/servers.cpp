#include "motley/train/job/servers.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "motley/ps/protocol/server_protocol.h"

namespace motley::train {

kernels::UpdateOptions make_update_options(const OptimizerSpec& optimizer) {
  using kernels::UpdateRule;
  const double momentum = optimizer.name == "sgd" ? optimizer.momentum : 0;
  const UpdateRule sgd = momentum == 0        ? UpdateRule::kSgd
                         : optimizer.nesterov ? UpdateRule::kNesterov
                                              : UpdateRule::kMomentum;
  return {.rule = optimizer.name == "sgd"    ? sgd
                  : optimizer.name == "adam" ? UpdateRule::kAdam
                                             : UpdateRule::kAdamW,
          .learning_rate = optimizer.learning_rate,
          .momentum = momentum,
          .weight_decay = optimizer.weight_decay,
          .beta1 = optimizer.betas[0],
          .beta2 = optimizer.betas[1],
          .epsilon = optimizer.epsilon};
}

collective::WireType parse_wire_type(const std::string& name) {
  return name == "bfloat16"  ? collective::WireType::kBfloat16
         : name == "float16" ? collective::WireType::kFloat16
         : name == "int8"    ? collective::WireType::kInt8
         : name == "top-k"   ? collective::WireType::kTopK
         : name == "auto"    ? collective::WireType::kAuto
                             : collective::WireType::kNative;
}

ps::ServerOptions make_server_options(const Job& job) {
  const GradientSyncSpec& keys = job.gradient_sync;
  ps::ServerOptions options;
  options.method = keys.method == "parameter-server" ? collective::Method::kParameterServer
                   : keys.method == "shared-memory"  ? collective::Method::kSharedMemory
                   : keys.method == "tcp-ring"       ? collective::Method::kTcpRing
                                                     : collective::Method::kAuto;
  options.wire = parse_wire_type(keys.comm_dtype);
  options.top_k = keys.top_k;
  options.chunk_bytes = static_cast<std::size_t>(keys.chunk_size);
  // Clipping needs the norm of the whole gradient before any weight changes: the workers do it.
  if (job.max_grad_norm == 0) options.update = make_update_options(job.optimizer);
  const auto staleness = static_cast<std::uint32_t>(keys.staleness);
  if (keys.consistency == "async") {
    options.staleness = staleness > 0 ? staleness : ps::kAnyStaleness;
  } else if (keys.consistency == "ssp" && staleness > 0) {
    options.staleness = staleness;
  }
  options.background_progress = keys.overlap;
  return options;
}

Result<std::vector<ps::ServerAddress>> read_servers(const Job& job) {
  const char* given = std::getenv(kServersVariable);
  std::string list = job.gradient_sync.servers.empty() && given != nullptr ? given : job.gradient_sync.servers;
  if (list.empty()) {
    return fail(
        ErrorCode::kInvalidInput,
        "gradient_sync.servers: empty; accepted: 'host:port' of each `motley server` (only `motley train` without a "
        "launcher starts one itself)");
  }
  std::vector<net::Endpoint> endpoints;
  std::ranges::replace(list, ',', ' ');
  std::istringstream words(list);
  for (std::string word; words >> word;) {
    auto endpoint = net::parse_endpoint(word);
    if (!endpoint) return fail(endpoint.error().within("gradient_sync.servers"));
    endpoints.push_back(*endpoint);
  }
  const auto token = net::Secret::from_file(job.gradient_sync.token_file, net::kTokenFileVariable);
  if (!token) return fail(token.error().within("gradient_sync.token_file"));
  std::vector<ps::ServerAddress> servers;
  for (const net::Endpoint& endpoint : endpoints) servers.push_back({endpoint, *token});
  return servers;
}

void name_token_files(Job& job) {
  const char* named = std::getenv(net::kTokenFileVariable);
  if (named == nullptr) return;
  const std::string file = std::filesystem::absolute(named).string();
  if (!job.data.server.empty() && job.data.token_file.empty()) job.data.token_file = file;
  if (!job.gradient_sync.servers.empty() && job.gradient_sync.token_file.empty()) job.gradient_sync.token_file = file;
}

}  // namespace motley::train
