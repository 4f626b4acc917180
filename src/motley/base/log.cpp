#include "motley/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

namespace motley {

void start_logging(const std::string& level, int rank) {
  auto logger = std::make_shared<spdlog::logger>("motley", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(level));
  logger->set_pattern(rank < 0 ? "[%H:%M:%S] %l: %v" : "[%H:%M:%S] rank " + std::to_string(rank) + " %l: %v");
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace motley
