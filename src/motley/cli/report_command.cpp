// motley report: the page for a run.
#include <cstdio>

#include "motley/cli/commands.h"
#include "motley/report/report.h"

namespace motley::cli {

void add_report(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("report", "Write the page for a run (made automatically at its end)");
  command->footer("Example:\n  motley report runs/demo");
  auto folder = std::make_shared<std::string>();
  command->add_option("RUN", *folder, "Folder of the run")->required();
  command->callback([&action, folder] {
    action = [folder]() -> Status {
      MOTLEY_TRY(report::write_report(*folder));
      std::printf("%s/report.html\n", folder->c_str());
      return {};
    };
  });
}

}  // namespace motley::cli
