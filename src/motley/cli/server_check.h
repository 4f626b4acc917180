// motley check --server and --racks: the flags, and what is printed.
#pragma once

#include <CLI/CLI.hpp>

#include "motley/app/server_check.h"

namespace motley::cli {

struct ServerCheckArguments {
  app::ServerCheck check;
  bool server = false;
  bool json = false;

  static const OptionTable<ServerCheckArguments>& options();
  bool wanted() const { return server || check.racks > 0; }
};

void add_server_check(CLI::App& command, ServerCheckArguments& arguments);  // its flags
Status run_server_check(const ServerCheckArguments& arguments);

}  // namespace motley::cli
