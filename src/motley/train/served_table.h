// The rows that a click network looks up, where parameter servers have them: pulled for each batch, ahead where the
// next batch is known already, and moved by the gradients that backward leaves at the network's input.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "motley/exchange/sparse_client.h"
#include "motley/learn/click_networks.h"
#include "motley/train/job.h"

namespace motley::train {

// Not thread-safe: one thread of one rank. A step: rows() for its batch, push() for its micro-batches, then
// finish_step() once, also by a rank without samples.
class ServedTable {
 public:
  // How the table stands: after this step, as that many servers wrote it; with 0 of them it is new.
  struct Start {
    std::int64_t step = 0;
    int written_by = 0;
  };
  // Collective over the session's ranks, which all must outlive this object.
  static Result<std::unique_ptr<ServedTable>> open(const Job& job, const learn::LookupLayout& layout,
                                                   std::vector<exchange::ServerAddress> servers,
                                                   transport::Session& session, const Start& start,
                                                   const Deadline& deadline);

  // Asks for the rows of a batch of the step after the one under way, before that is finished, unless it has asked for
  // some already. Never blocks.
  Status read_ahead(const std::vector<std::uint64_t>& ids);
  bool has_asked_ahead() const { return ahead_.has_value(); }
  // The rows of a batch after all steps that are finished: [n, layout.row_values()], float32, on the CPU.
  Result<torch::Tensor> rows(const std::vector<std::uint64_t>& ids, const Deadline& deadline);

  // The gradient of the network's input for samples [first, first + n) of a batch, [n, width]: of a mean over `weight`
  // samples.
  Status push(const std::vector<std::uint64_t>& ids, std::int64_t first, const torch::Tensor& input_gradient,
              double weight);
  Status finish_step(double weight, const Deadline& deadline);

  // Rank 0: the servers write the table as it is after the last finished step.
  Status save(const Deadline& deadline);
  int servers() const { return servers_; }
  double waited() const { return waited_; }  // seconds, for rows, so far

 private:
  ServedTable(const learn::LookupLayout& layout, int servers) : layout_(layout), servers_(servers) {}
  std::vector<std::uint64_t> folded(const std::vector<std::uint64_t>& ids) const;
  Result<torch::Tensor> wait(exchange::SparseClient::Ticket ticket, std::size_t ids, const Deadline& deadline);

  const learn::LookupLayout layout_;
  const int servers_;
  std::unique_ptr<exchange::SparseClient> client_;
  struct Ahead {
    std::vector<std::uint64_t> ids;
    exchange::SparseClient::Ticket ticket;
  };
  std::optional<Ahead> ahead_;
  double waited_ = 0;
};

}  // namespace motley::train
