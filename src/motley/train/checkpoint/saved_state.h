// The part of a checkpoint that is neither weights nor optimizer: where the run stands. state.json.
#pragma once

#include <cstdint>
#include <string>

#include "motley/base/result.h"
#include "motley/data/local/ledger.h"

namespace motley::train {

struct SavedState {
  std::int64_t step = 0;
  data::LedgerState ledger;
  std::string partition;     // as data::Partition::save gives it; empty with a plan
  std::string stage_shares;  // as StageShares::save gives it; empty without a plan
  int table_servers = 0;     // that wrote the rows of the network's table after `step`; 0: it has none
  std::int64_t evaluated_step = 0;
  double next_evaluation = 0;      // epochs
  std::int64_t not_used_once = 0;  // samples, over the epochs that ended
};

std::string format_state(const SavedState& state);
Result<SavedState> parse_state(const std::string& text);

}  // namespace motley::train
