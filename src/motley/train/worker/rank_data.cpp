#include "motley/train/worker/rank_data.h"

#include <cmath>

#include "motley/base/log.h"

namespace motley::train {
namespace {

// The rank that writes asks the data server what its data is and tells all; the others need it only where they read
// samples.
Result<std::unique_ptr<data::Dataset>> open_at_server(const Job& job, data::Set set, net::Session& session,
                                                      collective::Group& group, bool writes, bool is_newcomer) {
  const net::SessionOptions& options = session.options();
  const net::Membership& membership = session.membership();
  MOTLEY_ASSIGN(data::DataServerAccess access, data_server_access(job, set));
  access.claim.identity.rank = membership.rank;
  access.claim.identity.session = membership.session;
  access.claim.identity.epoch = membership.epoch;
  access.claim.fingerprint = options.fingerprint;
  access.payload_checksum = options.payload_checksum;
  access.cancelled = [&session] { return !session.health(); };
  if (is_newcomer) return data::RemoteDataset::open(std::move(access));
  std::unique_ptr<data::RemoteDataset> dataset;
  std::string text;
  if (writes) {
    MOTLEY_ASSIGN(dataset, data::RemoteDataset::open(access));
    const std::vector<std::byte> bytes = encode(dataset->description());
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  MOTLEY_ASSIGN(text, broadcast_text(group, std::move(text), 0, Deadline::after(2 * job.deadline.join)));
  if (!dataset) {
    MOTLEY_ASSIGN(data::Description description, data::decode_description(std::as_bytes(std::span(text))));
    dataset = std::make_unique<data::RemoteDataset>(std::move(access), std::move(description));
  }
  MOTLEY_TRY(check_served_targets(job, set, dataset->description()));
  return dataset;
}

}  // namespace

Status RankData::open(net::Session& session, collective::Group& group, bool writes, bool is_newcomer) {
  const auto at_server = [&](data::Set set) { return open_at_server(job_, set, session, group, writes, is_newcomer); };
  MOTLEY_ASSIGN(train_, is_remote() ? at_server(data::Set::kTraining) : open_training_data(job_));
  if (has_test_data(job_)) {
    MOTLEY_ASSIGN(test_, is_remote() ? at_server(data::Set::kTest) : open_test_data(job_, *train_));
  }
  for (const auto* data : {train_.get(), test_.get()}) {
    if (writes && data != nullptr && data->skipped().lines > 0) {
      spdlog::warn("{} malformed lines of the {} data were skipped; the first one: {}", data->skipped().lines,
                   data == train_.get() ? "training" : "test", data->skipped().first);
    }
  }
  for (const auto* data : {train_.get(), test_.get()}) {
    if (!writes || data == nullptr) continue;
    for (const std::string& note : data->notes()) spdlog::info("{}", note);
  }
  MOTLEY_ASSIGN(augmentation_, make_augmentation(job_, *train_));
  const double steps_an_epoch =
      std::ceil(static_cast<double>(train_->size()) / static_cast<double>(job_.training.global_batch_size));
  // A decimal such as 1.1 is no double: 1.1 epochs of 100 steps are 110.
  const double steps = job_.training.epochs * steps_an_epoch * (1 - 1e-12);
  steps_ = job_.training.steps > 0 ? job_.training.steps : static_cast<std::int64_t>(std::ceil(steps));
  return {};
}

void RankData::start(const RankContext& context, bool records_all) {
  audit_.emplace(train_->size());
  if (records_all) audit_->record_all();
  // A data server is asked by one thread.
  const std::size_t threads = is_remote() ? 1 : static_cast<std::size_t>(job_.data.threads);
  reader_.emplace(context, *train_, *audit_,
                  SampleReader::Options{.prefetch = static_cast<std::size_t>(job_.data.prefetch),
                                        .remote = is_remote(),
                                        .loader = {.threads = threads, .augmentation = augmentation_}});
}

}  // namespace motley::train
