#include "motley/nn/gradients/named_tensors.h"

#include <c10/util/Exception.h>

namespace motley::nn {

Error error_of_current_exception(ErrorCode code, const std::string& doing) {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return {ErrorCode::kUnavailable, fmt::format("{}: out of memory: {}", doing, error.what_without_backtrace())};
  } catch (const c10::Error& error) {
    return {code, fmt::format("{}: {}", doing, error.what_without_backtrace())};
  } catch (const std::exception& error) {
    return {code, fmt::format("{}: {}", doing, error.what())};
  }
}

}  // namespace motley::nn
