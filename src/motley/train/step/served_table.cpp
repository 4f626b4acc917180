#include "motley/train/step/served_table.h"

#include <algorithm>

#include "motley/base/random.h"
#include "motley/train/job/servers.h"

namespace motley::train {
namespace {

ps::RowOptimizer make_row_optimizer(const Job& job) {
  using Kind = ps::RowOptimizer::Kind;
  return {.kind = job.embedding.optimizer == "sgd"    ? Kind::kSgd
                  : job.embedding.optimizer == "adam" ? Kind::kAdam
                                                      : Kind::kAdagrad,
          .learning_rate = static_cast<float>(job.embedding.learning_rate),
          .epsilon = static_cast<float>(job.optimizer.epsilon),
          .beta1 = static_cast<float>(job.optimizer.betas[0]),
          .beta2 = static_cast<float>(job.optimizer.betas[1])};
}

// Of the device's memory, so many rows at most: all of the table where it is known how many that are.
std::size_t device_capacity(const Job& job, const nn::LookupLayout& layout) {
  if (job.embedding.max_staleness == 0) return 0;
  const double rows = job.embedding.device_memory / (static_cast<double>(layout.dimension) * sizeof(float));
  const double most = layout.rows > 0 ? static_cast<double>(layout.rows) : ps::RowIndex::kNone / 2;
  return static_cast<std::size_t>(std::min(rows, most));
}

std::span<float> as_span(const torch::Tensor& rows) {
  return {rows.data_ptr<float>(), static_cast<std::size_t>(rows.numel())};
}

}  // namespace

ServedTable::ServedTable(const Job& job, const nn::LookupLayout& layout, int servers)
    : layout_(layout), servers_(servers), prefetches_(job.embedding.prefetch) {}

Result<std::unique_ptr<ServedTable>> ServedTable::open(const Job& job, const nn::LookupLayout& layout,
                                                       torch::Device device, std::vector<ps::ServerAddress> servers,
                                                       net::Session& session, const Start& start,
                                                       const Deadline& deadline) {
  ps::SparseTableOptions table;
  table.name = "lookup";
  table.dimension = static_cast<std::size_t>(layout.dimension);
  table.initializer = {ps::RowInitializer::Kind::kUniform, nn::kInitialRows,
                       mix({static_cast<std::uint64_t>(job.seed), 0x726f7773})};  // "rows"
  table.optimizer = make_row_optimizer(job);
  table.memory_bytes = static_cast<std::uint64_t>(job.embedding.memory);
  table.wire = parse_wire_type(job.embedding.comm_dtype);
  std::unique_ptr<ServedTable> served(new ServedTable(job, layout, static_cast<int>(servers.size())));
  const std::size_t on_device = device.is_cpu() ? 0 : device_capacity(job, layout);
  if (!device.is_cpu() && (on_device > 0 || job.embedding.cache_rows == 0)) {
    MOTLEY_ASSIGN(served->on_device_,
                  DeviceRows::create(device, table.dimension, on_device, job.embedding.max_staleness));
  } else if (job.embedding.cache_rows > 0) {
    served->cache_.emplace(table.dimension, static_cast<std::size_t>(job.embedding.cache_rows),
                           job.embedding.max_staleness);
  }
  MOTLEY_ASSIGN(
      served->client_,
      ps::SparseClient::open(
          session,
          {.servers = std::move(servers),
           .tables = {table},
           .step = start.step,
           .written_by = start.written_by,
           // Rows are written before the run's own files: one more, for a run that is stopped between the two.
           .keep_checkpoints = static_cast<int>(job.checkpoint.keep) + 1},
          deadline));
  return served;
}

std::vector<std::uint64_t> ServedTable::folded(const std::vector<std::uint64_t>& ids) const {
  std::vector<std::uint64_t> numbers;
  numbers.reserve(ids.size());
  for (const std::uint64_t id : ids) numbers.push_back(nn::folded(id, layout_));
  return numbers;
}

torch::Tensor ServedTable::room_for(const std::vector<std::uint64_t>& ids) const {
  return torch::empty({static_cast<std::int64_t>(ids.size()) / layout_.categories, layout_.row_values()});
}

// What the cache has is taken now: it may be gone, or too old for another batch, when the others come.
Result<ServedTable::Asked> ServedTable::ask(const std::vector<std::uint64_t>& ids, std::int64_t wanted,
                                            std::int64_t after) {
  Asked asked = {.ids = ids, .wanted = wanted, .after = after};
  std::vector<std::uint64_t> numbers = folded(ids);
  if (on_device_) {
    MOTLEY_ASSIGN(asked.batch, on_device_->take(numbers, if_kept(wanted)));
    asked.found = asked.batch.found;
    numbers = asked.batch.missing;
  } else {
    asked.rows = room_for(ids);
    if (cache_) {
      asked.missing = cache_->take(numbers, wanted, as_span(asked.rows));
      asked.found = asked.missing.found;
      numbers = asked.missing.ids;
    }
  }
  const std::uint64_t before = client_->traffic().pulled_rows;
  MOTLEY_ASSIGN(asked.ticket, client_->start_pull(0, numbers, after));
  asked.asked = client_->traffic().pulled_rows - before;
  return asked;
}

// The answers, on their way to the device.
Status ServedTable::send(Asked& asked, const Deadline& deadline) {
  if (asked.is_sent) return {};
  MOTLEY_ASSIGN(const torch::Tensor answers, on_device_->memory_for(asked.batch));
  const double begin = monotonic_seconds();
  MOTLEY_TRY(client_->wait(asked.ticket, as_span(answers), deadline));
  counts_.waited += monotonic_seconds() - begin;
  MOTLEY_TRY(on_device_->send(asked.batch, answers, if_kept(asked.after)));
  asked.is_sent = true;
  return {};
}

Status ServedTable::receive(Asked& asked, const Deadline& deadline) {
  if (on_device_) {
    MOTLEY_TRY(send(asked, deadline));
    MOTLEY_ASSIGN(asked.rows, on_device_->complete(asked.batch));
    asked.rows = asked.rows.view({-1, layout_.row_values()});
    return {};
  }
  std::vector<float> answers(cache_ ? asked.missing.ids.size() * static_cast<std::size_t>(layout_.dimension) : 0);
  const double begin = monotonic_seconds();
  MOTLEY_TRY(client_->wait(asked.ticket, cache_ ? std::span(answers) : as_span(asked.rows), deadline));
  counts_.waited += monotonic_seconds() - begin;
  if (cache_) cache_->put(asked.missing, answers, asked.after, as_span(asked.rows));
  return {};
}

// With a cache rows may be a step old: those of the last finished step are there already, and come while the step under
// way is computed. Else they can come only after its gradients.
Status ServedTable::read_ahead(const std::vector<std::uint64_t>& ids) {
  if (may_read_ahead()) {
    const std::int64_t finished = client_->step();
    MOTLEY_ASSIGN(ahead_, ask(ids, finished + 1, caches() ? finished : finished + 1));
  }
  return {};
}

Result<torch::Tensor> ServedTable::rows(const std::vector<std::uint64_t>& ids, const Deadline& deadline) {
  const auto use = [&](const Asked& asked) {
    counts_.needed += static_cast<double>(asked.found + asked.asked);
    counts_.cached += static_cast<double>(asked.found);
    return asked.rows;
  };
  if (auto ahead = std::exchange(ahead_, std::nullopt)) {
    MOTLEY_TRY(receive(*ahead, deadline));
    if (ahead->ids == ids && ahead->wanted == client_->step()) {  // else the shares have moved since
      counts_.ahead += static_cast<double>(ahead->asked);
      return use(*ahead);
    }
  }
  MOTLEY_ASSIGN(Asked asked, ask(ids, client_->step(), client_->step()));
  MOTLEY_TRY(receive(asked, deadline));
  return use(asked);
}

Result<torch::Tensor> ServedTable::exact_rows(const std::vector<std::uint64_t>& ids, const Deadline& deadline) {
  if (on_device_) {
    const std::vector<std::uint64_t> numbers = folded(ids);
    MOTLEY_ASSIGN(DeviceRows::Batch batch, on_device_->take(numbers, std::nullopt));
    MOTLEY_ASSIGN(const torch::Tensor answers, on_device_->memory_for(batch));
    MOTLEY_TRY(client_->pull(0, batch.missing, as_span(answers), deadline));
    MOTLEY_TRY(on_device_->send(batch, answers, std::nullopt));
    MOTLEY_ASSIGN(const torch::Tensor rows, on_device_->complete(batch));
    return rows.view({-1, layout_.row_values()});
  }
  const torch::Tensor rows = room_for(ids);
  MOTLEY_TRY(client_->pull(0, folded(ids), as_span(rows), deadline));
  return rows;
}

ServedTable::Counts ServedTable::counts() const {
  Counts counts = counts_;
  counts.pulled_bytes = static_cast<double>(client_->traffic().pulled_bytes);
  counts.pushed_bytes = static_cast<double>(client_->traffic().pushed_bytes);
  return counts;
}

Status ServedTable::push(const std::vector<std::uint64_t>& ids, std::int64_t first, const torch::Tensor& input_gradient,
                         double weight, const Deadline& deadline) {
  const auto begin = ids.begin() + first * layout_.categories;
  const std::vector<std::uint64_t> own = folded({begin, begin + input_gradient.size(0) * layout_.categories});
  const torch::Tensor all = nn::row_gradients(layout_, input_gradient);
  if (on_device_) {
    MOTLEY_ASSIGN(DeviceRows::Sums sums, on_device_->sum(own, all));
    if (ahead_ && ahead_->after <= client_->step()) MOTLEY_TRY(send(*ahead_, deadline));
    MOTLEY_TRY(sums.values.wait());
    return client_->push(0, sums.ids, as_span(sums.values.values), weight);
  }
  const torch::Tensor gradients = all.to(torch::kCPU, torch::kFloat32).contiguous();
  return client_->push(0, own, as_span(gradients), weight);
}

Status ServedTable::save(const Deadline& deadline) {
  MOTLEY_TRY(client_->start_checkpoint());
  MOTLEY_TRY(client_->wait_for_checkpoint(deadline));
  return {};
}

}  // namespace motley::train
