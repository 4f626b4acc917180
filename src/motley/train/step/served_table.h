// The rows that a CTR model looks up, where parameter servers have them: pulled for each batch, ahead where the
// next batch is known already, or used again from a cache of hot ones, which an accelerator has in its own memory; and
// moved by the gradients that backward leaves at the network's input.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <vector>

#include "motley/nn/ctr_models.h"
#include "motley/ps/client/sparse_cache.h"
#include "motley/ps/client/sparse_client.h"
#include "motley/train/job/job.h"
#include "motley/train/step/device_rows.h"

namespace motley::train {

// Not thread-safe: one thread of one rank. A step: rows() for its batches, push() for its micro-batches, then
// finish_step() once, also by a rank without samples.
class ServedTable {
 public:
  // How the table stands: after this step, as that many servers wrote it; with 0 of them it is new. The cache is empty
  // always.
  struct Start {
    std::int64_t step = 0;
    int written_by = 0;
  };
  // Rows are looked up on this device. Collective over the session's ranks, which all must outlive this object.
  static Result<std::unique_ptr<ServedTable>> open(const Job& job, const nn::LookupLayout& layout, torch::Device device,
                                                   std::vector<ps::ServerAddress> servers, net::Session& session,
                                                   const Start& start, const Deadline& deadline);

  // Asks for the rows of a batch of the step after the one under way, before that is finished, unless it has asked for
  // some already, or the job says not to. With a cache they lack the gradients of the step under way. Never blocks.
  Status read_ahead(const std::vector<std::uint64_t>& ids);
  bool may_read_ahead() const { return prefetches_ && !ahead_; }
  bool caches() const { return cache_ || (on_device_ && on_device_->keeps()); }
  // The rows of a batch of the step under way: [n, layout.row_values()], float32, on the device; as they are after all
  // steps that are finished, or, out of the cache, up to embedding.max_staleness before.
  Result<torch::Tensor> rows(const std::vector<std::uint64_t>& ids, const Deadline& deadline);
  // The same as they are after all steps that are finished, past the cache and what was asked ahead.
  Result<torch::Tensor> exact_rows(const std::vector<std::uint64_t>& ids, const Deadline& deadline);

  // The gradient of the network's input for samples [first, first + n) of a batch, [n, width], on the device: of a mean
  // over `weight` samples. While the device computes it, rows that were read ahead go there.
  Status push(const std::vector<std::uint64_t>& ids, std::int64_t first, const torch::Tensor& input_gradient,
              double weight, const Deadline& deadline);
  Status finish_step(double weight, const Deadline& deadline) { return client_->finish_step(weight, deadline); }

  // Rank 0: the servers write the table as it is after the last finished step.
  Status save(const Deadline& deadline);
  int servers() const { return servers_; }

  // So far. Bytes are those on the wire; a row that a batch needs counts once for the batch.
  struct Counts {
    double waited = 0;  // seconds, for rows
    double pulled_bytes = 0, pushed_bytes = 0;
    double needed = 0;  // rows, by the batches of rows()
    double cached = 0;  // of these: used again from the cache
    double ahead = 0;   // of these: asked for before their step
  };
  Counts counts() const;

 private:
  // A batch whose rows are under way.
  struct Asked {
    std::vector<std::uint64_t> ids;
    std::int64_t wanted = 0;  // the step after which the batch would have its rows
    std::int64_t after = 0;   // and that of those that are asked for
    ps::SparseClient::Ticket ticket = 0;
    torch::Tensor rows = {};                // those that the cache has are in it
    ps::SparseCache::Missing missing = {};  // the others, with a cache
    DeviceRows::Batch batch = {};           // in place of both, on an accelerator
    bool is_sent = false;                   // to it
    std::uint64_t found = 0;                // rows that are kept
    std::uint64_t asked = 0;                // rows
  };
  ServedTable(const Job& job, const nn::LookupLayout& layout, int servers);
  std::vector<std::uint64_t> folded(const std::vector<std::uint64_t>& ids) const;
  torch::Tensor room_for(const std::vector<std::uint64_t>& ids) const;
  Result<Asked> ask(const std::vector<std::uint64_t>& ids, std::int64_t wanted, std::int64_t after);
  Status receive(Asked& asked, const Deadline& deadline);
  Status send(Asked& asked, const Deadline& deadline);
  std::optional<std::int64_t> if_kept(std::int64_t step) const {
    return on_device_->keeps() ? std::optional(step) : std::nullopt;
  }

  const nn::LookupLayout layout_;
  const int servers_;
  const bool prefetches_;
  std::unique_ptr<ps::SparseClient> client_;
  std::optional<ps::SparseCache> cache_;   // on the CPU
  std::unique_ptr<DeviceRows> on_device_;  // on an accelerator
  std::optional<Asked> ahead_;
  Counts counts_;  // but for the bytes, which the client counts
};

}  // namespace motley::train
