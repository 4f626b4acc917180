// motley check: what this machine has, what works, what is missing and how to get it.
#include <cstdio>

#include "motley/cli/commands.h"
#include "motley/cluster/machine.h"

namespace motley::cli {

void add_check(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("check", "What this machine has, what works, what is missing and how to get it");
  command->footer("Example:\n  motley check --as-cluster > cluster.yaml");
  auto as_cluster = std::make_shared<bool>(false);
  command->add_flag("--as-cluster", *as_cluster, "Print this machine as a cluster file");
  command->callback([&action, as_cluster] {
    action = [as_cluster]() -> Status {
      const cluster::Machine machine = cluster::detect_machine();
      if (*as_cluster) {
        std::printf("%s", cluster::to_yaml(cluster::default_cluster(machine)).c_str());
        return {};
      }
      const auto items = cluster::check_machine(machine, MOTLEY_TORCH_VERSION);
      std::printf("%s", cluster::to_text(items).c_str());
      for (const cluster::CheckItem& item : items) {
        if (item.needed && !item.works) {
          return fail(ErrorCode::kUnavailable, "{} does not work here: {}", item.name, item.advice);
        }
      }
      return {};
    };
  });
}

}  // namespace motley::cli
