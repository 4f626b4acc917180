#include "motley/ps/embedding/table_writers.h"

#include <latch>

namespace motley::ps {

void TableWriters::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void TableWriters::write(std::span<const std::unique_ptr<SparseTable>> tables,
                         std::vector<std::filesystem::path> folders, std::int64_t step, Done done) {
  join();
  reports_.assign(tables.size(), CheckpointReport());
  unfinished_ = tables.size();
  auto moments = std::make_shared<std::latch>(static_cast<std::ptrdiff_t>(tables.size()));
  for (std::size_t table = 0; table < tables.size(); ++table) {
    threads_.emplace_back([this, &one = *tables[table], table, folder = folders[table], step, moments, done] {
      bool passed = false;
      CheckpointOptions options;
      options.at_moment = [&] {
        passed = true;
        moments->count_down();
      };
      reports_[table] = one.checkpoint(folder, step, options);
      if (!passed) moments->count_down();
      if (--unfinished_ > 0) return;
      SparseSaved total;
      for (const Result<CheckpointReport>& report : reports_) {
        if (!report) return done(fail(report.error()));
        total.rows += report->rows;
        total.bytes += report->bytes;
      }
      done(total);
    });
  }
  moments->wait();
}

}  // namespace motley::ps
