// motley check: what this machine has, what works, what is missing and how to get it.
#include <cstdio>

#include "motley/app/machine_check.h"
#include "motley/cli/commands.h"
#include "motley/cli/server_check.h"

namespace motley::cli {

void add_check(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("check", "What this machine has, what works, what is missing and how to get it");
  command->footer(
      "Examples:\n"
      "  motley check --as-cluster > cluster.yaml\n"
      "  motley check --server --model resnet50 --link-bandwidth 100Gbps\n"
      "  motley check --racks 8 --workers-per-rack 16 --worker-bandwidth 10Gbps --rack-server-bandwidth 100Gbps \\\n"
      "      --uplink-bandwidth 40Gbps");
  auto as_cluster = std::make_shared<bool>(false);
  command->add_flag("--as-cluster", *as_cluster, "Print this machine as a cluster file");
  auto server = std::make_shared<ServerCheckArguments>();
  add_server_check(*command, *server);
  command->callback([&action, as_cluster, server] {
    action = [as_cluster, server]() -> Status {
      if (server->wanted()) {
        return run_server_check(*server);
      }
      if (*as_cluster) {
        std::printf("%s", app::describe_this_machine().c_str());
        return {};
      }
      const app::MachineCheck check = app::check_this_machine(MOTLEY_TORCH_VERSION);
      std::printf("%s", check.text.c_str());
      return check.works;
    };
  });
}

}  // namespace motley::cli
