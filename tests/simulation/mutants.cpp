#include "tests/simulation/mutants.h"

#include <algorithm>
#include <cstring>

#include "motley/base/guard.h"

namespace motley::simulation {
namespace {

constexpr const char* kGuards[] = {
    "file-aside",
    "file-rename",
    "file-fsync",
    "folder-fsync",
    "made-folder-fsync",
    "checkpoint-aside",
    "checkpoint-checksum",
    "checkpoint-one-before",
    "checkpoint-all-know",
    "kill-lost-process",
    "roster-majority-of-promises",
    "roster-majority-of-acceptances",
    "roster-promise",
    "roster-own-ballot",
    "roster-own-acceptance",
    "roster-best-acceptance",
    "roster-past-epoch",
    "roster-own-membership",
    "group-two-chunks",
    "group-arrival",
    "reducer-all-arrived",
    "reducer-all-reduced",
    "reducer-round-over",
    "reducer-claims-round",
    "mean-no-weight",
    "kept-start-error",
    "server-all-arrived",
    "server-all-received",
    "server-bucket-updated",
    "server-state-whole",
    "server-replaced-is-lost",
    "servers-told-by-who-knows",
    "session-ended-for-server",
    "loop-same-step",
    "loop-reduce-anew",
    "loop-save-anew",
    "loop-hand-over",
    "loop-hand-over-next",
    "loop-common-duties",
    "loop-keep-to-present",
    "loop-meet-at-end",
    "elastic-all-epochs",
    "launcher-newcomer-interrupted",
    "launcher-free-rank",
    "launcher-left",
    "launcher-too-late",
    "store-synchronous",
    "controller-same-job",
    // Chosen from the code alone, by somebody who had not seen the simulation.
    "planted-acceptance-noted",
    "planted-newcomer-is-sure",
    "planted-newcomer-address",
    "planted-chunk-done-then-counted",
    "planted-own-message-gone",
    "planted-handed-samples-once",
    "planted-writer-is-there",
    "planted-good-checkpoint-stays",
    "planted-update-undone",
    "planted-never-to-begin",
};

const char* dropped = nullptr;

}  // namespace

std::span<const char* const> list_guards() {
  return kGuards;
}

bool drop_guard(const std::string& name) {
  const auto found = std::ranges::find(kGuards, name);
  dropped = found == std::end(kGuards) ? nullptr : *found;
  return name.empty() || dropped != nullptr;
}

bool is_dropped(const char* guard) {
  return dropped != nullptr && std::strcmp(guard, dropped) == 0;
}

}  // namespace motley::simulation
