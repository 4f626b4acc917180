// What a server counts, and its text for Prometheus (exposition format 0.0.4).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "motley/ps/dense/dense_metrics.h"
#include "motley/ps/embedding/sparse_job.h"
#include "motley/ps/tenants/tenants.h"

namespace motley::ps {

// Of a whole server. The counts belong to the service's thread.
class Metrics {
 public:
  // `sparse` is called for each text, from the thread that asks for it. Whatever is referred to must outlive this.
  Metrics(int cores, std::size_t quota_bytes, const Tenants& tenants, const MemoryQuota& memory,
          std::function<std::vector<SparseJobMetrics>()> sparse);

  void add(std::shared_ptr<const JobMetrics> job);
  void remove(const JobMetrics* job);
  std::string text() const;  // from any thread

  std::vector<ThreadMetrics> cores;
  Count refused_in_handshake;
  Count refused_after_it;
  Count jobs_left;
  Count jobs_failed;

 private:
  const std::size_t quota_bytes_;
  const Tenants& tenants_;
  const MemoryQuota& memory_;
  const std::function<std::vector<SparseJobMetrics>()> sparse_;
  mutable std::mutex mutex_;  // guards the list
  std::vector<std::shared_ptr<const JobMetrics>> jobs_;
};

}  // namespace motley::ps
