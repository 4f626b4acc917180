#include "motley/train/served_table.h"

#include "motley/base/random.h"

namespace motley::train {
namespace {

exchange::RowOptimizer optimizer_of(const Job& job) {
  using Kind = exchange::RowOptimizer::Kind;
  exchange::RowOptimizer optimizer;
  optimizer.kind = job.tables_optimizer == "sgd"    ? Kind::kSgd
                   : job.tables_optimizer == "adam" ? Kind::kAdam
                                                    : Kind::kAdagrad;
  optimizer.learning_rate = static_cast<float>(job.tables_learning_rate);
  optimizer.beta1 = static_cast<float>(job.betas[0]);
  optimizer.beta2 = static_cast<float>(job.betas[1]);
  optimizer.epsilon = static_cast<float>(job.epsilon);
  return optimizer;
}

}  // namespace

Result<std::unique_ptr<ServedTable>> ServedTable::open(const Job& job, const learn::LookupLayout& layout,
                                                       std::vector<exchange::ServerAddress> servers,
                                                       transport::Session& session, const Start& start,
                                                       const Deadline& deadline) {
  exchange::SparseTableOptions table;
  table.name = "lookup";
  table.dimension = static_cast<std::size_t>(layout.dimension);
  table.initializer = {exchange::RowInitializer::Kind::kUniform, learn::kInitialRows,
                       mix({static_cast<std::uint64_t>(job.seed), 0x726f7773})};  // "rows"
  table.optimizer = optimizer_of(job);
  table.memory_bytes = static_cast<std::uint64_t>(job.tables_memory_bytes);
  std::unique_ptr<ServedTable> served(new ServedTable(layout, static_cast<int>(servers.size())));
  MOTLEY_ASSIGN(
      served->client_,
      exchange::SparseClient::open(
          session,
          {.servers = std::move(servers), .tables = {table}, .step = start.step, .written_by = start.written_by},
          deadline));
  return served;
}

std::vector<std::uint64_t> ServedTable::folded(const std::vector<std::uint64_t>& ids) const {
  std::vector<std::uint64_t> numbers;
  numbers.reserve(ids.size());
  for (const std::uint64_t id : ids) numbers.push_back(learn::folded(id, layout_));
  return numbers;
}

Status ServedTable::read_ahead(const std::vector<std::uint64_t>& ids) {
  if (ahead_) return {};
  MOTLEY_ASSIGN(const auto ticket, client_->start_pull(0, folded(ids), client_->step() + 1));
  ahead_ = {ids, ticket};
  return {};
}

Result<torch::Tensor> ServedTable::wait(exchange::SparseClient::Ticket ticket, std::size_t ids,
                                        const Deadline& deadline) {
  const auto samples = static_cast<std::int64_t>(ids) / layout_.categories;
  torch::Tensor rows = torch::empty({samples, layout_.row_values()});
  const double begin = monotonic_seconds();
  MOTLEY_TRY(client_->wait(ticket, {rows.data_ptr<float>(), static_cast<std::size_t>(rows.numel())}, deadline));
  waited_ += monotonic_seconds() - begin;
  return rows;
}

Result<torch::Tensor> ServedTable::rows(const std::vector<std::uint64_t>& ids, const Deadline& deadline) {
  if (const auto ahead = std::exchange(ahead_, std::nullopt)) {
    MOTLEY_ASSIGN(const torch::Tensor rows, wait(ahead->ticket, ahead->ids.size(), deadline));
    if (ahead->ids == ids) return rows;  // else the shares have moved since
  }
  MOTLEY_ASSIGN(const auto ticket, client_->start_pull(0, folded(ids), client_->step()));
  return wait(ticket, ids.size(), deadline);
}

Status ServedTable::push(const std::vector<std::uint64_t>& ids, std::int64_t first, const torch::Tensor& input_gradient,
                         double weight) {
  const torch::Tensor gradients =
      learn::row_gradients(layout_, input_gradient).to(torch::kCPU, torch::kFloat32).contiguous();
  const auto begin = ids.begin() + first * layout_.categories;
  return client_->push(0, folded({begin, begin + gradients.size(0) * layout_.categories}),
                       {gradients.data_ptr<float>(), static_cast<std::size_t>(gradients.numel())}, weight);
}

Status ServedTable::finish_step(double weight, const Deadline& deadline) {
  return client_->finish_step(weight, deadline);
}

Status ServedTable::save(const Deadline& deadline) {
  MOTLEY_TRY(client_->start_checkpoint());
  MOTLEY_TRY(client_->wait_for_checkpoint(deadline));
  return {};
}

}  // namespace motley::train
