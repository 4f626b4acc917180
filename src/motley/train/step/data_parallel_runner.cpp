#include "motley/train/step/data_parallel_runner.h"

namespace motley::train {

Status DataParallelRunner::run(const Step& step, Report& report) {
  const std::vector<std::uint32_t> samples = plan_.samples(step, rank_);
  if (samples.empty()) {
    return sync_.start(step, 0);
  }
  MOTLEY_ASSIGN(data::Batch batch, reader_.read(step, samples, report));
  reader_.read_ahead(plan_, step);
  MOTLEY_TRY(computation_.run(step, batch, static_cast<double>(samples.size()), true, report));
  reader_.recycle(std::move(batch));
  return {};
}

}  // namespace motley::train
