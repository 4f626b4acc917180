#include "motley/train/records/worker_count.h"

#include "motley/base/text.h"

namespace motley::train {

Result<int> parse_worker_request(const std::string& text, int min_workers, int max_workers) {
  const auto number = parse_number<int>(text.substr(0, text.find(' ')));
  if (number && *number >= min_workers && *number <= max_workers) return *number;
  return fail(ErrorCode::kInvalidInput, "workers: '{}' is asked for; accepted: {} to {}", escaped(text), min_workers,
              max_workers);
}

}  // namespace motley::train
