// Whether emulated workers are as slow as their deadlines say: this machine may be too busy to meet them, and a run
// that it is much too busy for is refused.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/cluster/emulation.h"
#include "motley/train/loop/step.h"

namespace motley::train {

class EmulationWatch {
 public:
  // `names`: a worker's, by rank. `cores`: that the ranks share. `may_refuse`: false where the emulated host works as
  // hard as this one, as where all work is to send.
  EmulationWatch(std::vector<std::string> names, int cores, bool may_refuse);

  // All ranks' reports of a step. kUnavailable where the emulation lies: every rank finds the same.
  Status check(const Step& step, std::span<const Report> reports);

  // What is to be known of a rank whose steps were late too often; empty of others.
  std::vector<std::string> notes() const;
  const std::string& name(std::size_t rank) const { return names_[rank]; }

 private:
  struct Lateness {
    std::int64_t steps = 0;  // emulated ones
    std::int64_t late = 0;
    double excess = 0;  // of the late ones over their deadlines, summed shares
  };
  void add_load(std::span<const Report> reports);

  std::vector<std::string> names_;
  int cores_;
  bool may_refuse_;
  std::vector<Lateness> lateness_;  // by rank
  // Of the steps since the last check.
  std::vector<cluster::WorkerLoad> loads_;
  std::int64_t steps_ = 0;
  double seconds_ = 0;
};

}  // namespace motley::train
