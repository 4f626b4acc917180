#include "motley/base/log.h"

#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>

#include <cstdlib>
#include <memory>

namespace motley {
namespace {

std::shared_ptr<spdlog::sinks::dist_sink_mt> outputs;  // of the process's logger
std::string pattern;

}  // namespace

void start_logging(const std::string& level, int rank) {
  const char* no_color = std::getenv("NO_COLOR");
  const bool may_color = no_color == nullptr || *no_color == '\0';
  outputs = std::make_shared<spdlog::sinks::dist_sink_mt>();
  outputs->add_sink(std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>(may_color ? spdlog::color_mode::automatic
                                                                                        : spdlog::color_mode::never));
  auto logger = std::make_shared<spdlog::logger>("motley", outputs);
  logger->set_level(spdlog::level::from_str(level));
  pattern = rank < 0 ? "[%H:%M:%S] %^%l%$: %v" : "[%H:%M:%S] rank " + std::to_string(rank) + " %^%l%$: %v";
  logger->set_pattern(pattern);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

Status log_to_file(const std::filesystem::path& file) {
  try {
    auto output = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string());
    output->set_pattern(pattern);
    outputs->add_sink(std::move(output));
  } catch (const spdlog::spdlog_ex& problem) {
    return fail(ErrorCode::kIo, "cannot log to '{}': {}", file.string(), problem.what());
  }
  return {};
}

}  // namespace motley
