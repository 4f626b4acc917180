// The table of all policies.
#include "motley/scheduling/policies/policies.h"

#include <algorithm>

#include "motley/scheduling/policies/program.h"

namespace motley::scheduling {
namespace {

struct Known {
  const char* name;
  MakePolicy* make;
  bool is_online = true;
  bool needs_programs = false;
  bool is_live = true;
  bool knows_types = true;
};
constexpr Known kKnown[] = {
    {"fifo", make_fifo},
    {"fifo-backfill", make_fifo_backfill},
    {"smallest-first", make_smallest_first},
    {"las", make_las},
    {"las-seconds", make_las_seconds},
    {"srtf", make_srtf, true, false, false},
    {"srsf", make_srsf, true, false, false},
    {"drf", make_drf},
    {"optimus", make_optimus},
    {"elastic-srsf", make_elastic_srsf},
    {"afs", make_afs},
    {"gadget-exact", make_gadget_exact},
    {"gittins", make_gittins, true, false, false},
    {"themis", make_themis},
    {"elasticflow", make_elasticflow},
    {"gavel", make_gavel, true, true},
    {"sia", make_sia, true, true},
    {"gadget", make_gadget, false, true, true, false},
    {"sjf-bco", make_sjf_bco, false, false, false, false},
    {"list-scheduling", make_list_scheduling, false, false, false, false},
    {"random-devices", make_random_devices, false, false, false, false},
};

// Of those that can run here and are so.
std::vector<std::string> list_names(bool Known::* is_so) {
  std::vector<std::string> names;
  for (const Known& known : kKnown) {
    if (known.*is_so && (!known.needs_programs || has_program_solver())) names.emplace_back(known.name);
  }
  return names;
}

}  // namespace

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const Known& known : kKnown) names.emplace_back(known.name);
  return names;
}

std::vector<std::string> online_policy_names() {
  return list_names(&Known::is_online);
}

std::vector<std::string> live_policy_names() {
  return list_names(&Known::is_live);
}

bool knows_types(const std::string& policy) {
  return std::ranges::any_of(kKnown, [&](const Known& known) { return policy == known.name && known.knows_types; });
}

Result<std::unique_ptr<Policy>> make_policy(const std::string& name, const PolicyOptions& options) {
  for (const Known& known : kKnown) {
    if (name != known.name) continue;
    if (known.needs_programs && !has_program_solver()) {
      return fail(Program().maximise().error().within("--policy " + name));
    }
    return known.make(options);
  }
  return fail(ErrorCode::kInvalidInput, "--policy: there is no '{}'; accepted: {}", name,
              fmt::join(policy_names(), ", "));
}

}  // namespace motley::scheduling
