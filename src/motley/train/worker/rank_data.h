// The data of a job as one of its ranks has it: opened on this machine or at a data server, read ahead, and counted
// once a step has used it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "motley/collective/gradient_reducer.h"
#include "motley/data/local/dataset.h"
#include "motley/net/session.h"
#include "motley/train/job/job.h"
#include "motley/train/job/job_data.h"
#include "motley/train/loop/samples.h"

namespace motley::train {

class RankData {
 public:
  explicit RankData(const Job& job) : job_(job) {}

  // Collective, but for a rank that has joined, which asks a data server itself. `writes`: this rank tells the others
  // what the server has, and warns of malformed lines.
  Status open(net::Session& session, collective::Group& group, bool writes, bool is_newcomer);
  // Once, before the reader and the audit are used. `records_all`: this rank counts all ranks' samples.
  void start(const RankContext& context, bool records_all);

  const data::Dataset& train() const { return *train_; }
  const data::Dataset* test() const { return test_.get(); }  // null where there is none
  std::int64_t steps() const { return steps_; }              // of the whole job
  SampleAudit& audit() { return *audit_; }
  SampleReader& reader() { return *reader_; }

 private:
  bool is_remote() const { return !job_.data.server.empty(); }

  const Job& job_;
  std::unique_ptr<data::Dataset> train_;
  std::unique_ptr<data::Dataset> test_;
  std::int64_t steps_ = 0;
  data::Augmentation augmentation_;
  std::optional<SampleAudit> audit_;
  std::optional<SampleReader> reader_;
};

}  // namespace motley::train
