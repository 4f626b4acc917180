// In test programs under the thread sanitizer: spdlog's library, which is not instrumented, makes its logger when it is
// first used; made here, before there are threads, it is not taken for a race between the first two that log.
#include <spdlog/spdlog.h>

static const spdlog::logger* const made_before_threads [[maybe_unused]] = spdlog::default_logger_raw();
