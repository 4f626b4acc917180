#include <chrono>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "motley/train/worker/rank_worker.h"

namespace motley::train {
namespace {

class TorchrunStore : public KeyValueStore {
 public:
  explicit TorchrunStore(c10::intrusive_ptr<c10d::TCPStore> store) : store_(std::move(store)) {}

  Status set(const std::string& key, const std::string& text) override {
    try {
      store_->set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
      return {};
    } catch (const std::exception& problem) {
      return fail(ErrorCode::kIo, "{}", problem.what());
    }
  }

  Result<std::string> get(const std::string& key) override {
    try {
      const std::vector<std::uint8_t> bytes = store_->get(key);
      return std::string(bytes.begin(), bytes.end());
    } catch (const std::exception& problem) {
      return fail(ErrorCode::kTimeout, "{}", problem.what());
    }
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

Result<std::unique_ptr<KeyValueStore>> open_torchrun_store(const StoreAddress& address) {
  try {
    c10d::TCPStoreOptions options;
    options.port = address.endpoint.port;
    options.isServer = address.is_server;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(static_cast<long>(address.timeout_seconds * 1e3));
    return std::make_unique<TorchrunStore>(c10::make_intrusive<c10d::TCPStore>(address.endpoint.host, options));
  } catch (const std::exception& problem) {
    return fail(ErrorCode::kTimeout, "{}", problem.what());
  }
}

}  // namespace motley::train
