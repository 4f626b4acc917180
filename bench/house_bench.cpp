#include "bench/house_bench.h"

#include "bench/child_process.h"
#include "bench/temporary_folder.h"
#include "motley/base/os/file.h"

namespace motley::bench {

Result<std::vector<BenchRow>> house_bench(const BenchOptions& options) {
  MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
  const std::string file = folder.path() / "rows.json";
  MOTLEY_ASSIGN(const auto process, ChildProcess::start({options.source_folder / "tools/house", "--json", file}));
  MOTLEY_TRY(process->finish(Deadline::after(120)));
  MOTLEY_ASSIGN(const std::string text, read_file(file));
  return read_rows(text);
}

}  // namespace motley::bench
