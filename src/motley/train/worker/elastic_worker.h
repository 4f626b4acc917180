// The ranks of an elastic run, as one of them sees them: its session's epochs, the group of those who are there, and
// where newcomers of this run join.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "motley/collective/present_group.h"
#include "motley/net/session.h"
#include "motley/train/job/job.h"
#include "motley/train/job/run_directory.h"
#include "motley/train/launch/role.h"
#include "motley/train/loop/elastic_session.h"
#include "motley/train/loop/parts.h"
#include "motley/train/step/bucketed_gradient_sync.h"
#include "motley/train/sync/elastic_servers.h"

namespace motley::train {

class ElasticWorker final : public ElasticRanks {
 public:
  // What is built once the ranks are known.
  struct Parts {
    RankContext* context = nullptr;
    BucketedGradientSync* sync = nullptr;
    std::function<Status(std::int64_t step)> take_over;  // the run's files
  };
  // All that is referred to must outlive this object.
  ElasticWorker(const Job& job, const Role& role, const RunDirectory& run, net::Session& session,
                const net::Secret& secret)
      : job_(job), role_(role), run_(run), session_(session), secret_(secret), epochs_(session, role.is_newcomer) {}

  // As ElasticSession's functions of these names.
  Result<std::unique_ptr<collective::PresentGroup>> make_first_group() { return epochs_.make_first_group(); }
  net::Session& first() { return epochs_.first(); }
  std::vector<int> first_ranks() const { return epochs_.first_ranks(); }
  // How gradients are synchronised, as this rank has worked it out.
  void use(ps::ServerOptions options) {
    const auto& racks = job_.gradient_sync.racks;
    servers_.use(std::move(options), {racks.begin(), racks.end()}, role_.is_newcomer);
  }
  void connect(Parts parts) { parts_ = std::move(parts); }
  // The rank that writes the run's files says where newcomers join, and at the end that none can any more.
  Status invite() const;
  void close() const;
  // Who begins to write them sets aside what another run has left where the folder is this rank's alone.
  Status claim_files();

  Result<std::vector<std::vector<int>>> regroup() override;
  void renew() override { session_.renew(); }
  Status synchronise() override;
  std::string lost_servers() const override { return servers_.lost_servers(); }
  Result<std::unique_ptr<collective::Group>> make_group(const std::vector<int>& ranks) override {
    return epochs_.make_group(ranks);
  }
  Status take_over(std::int64_t step) override;
  Status stand_alone() override;
  int minimum() const override { return job_.execution.elastic_range().min; }
  double join_seconds() const override { return job_.deadline.join; }
  bool is_newcomer() const override { return !has_state_; }
  void enter() override { has_state_ = true; }
  void follow_writer(int rank) override { parts_.context->writer = rank; }

 private:
  std::filesystem::path rendezvous_file() const { return run_.folder() / "rendezvous.json"; }

  const Job& job_;
  const Role& role_;
  const RunDirectory& run_;
  net::Session& session_;
  const net::Secret& secret_;
  ElasticSession epochs_;
  ElasticServers servers_;
  Parts parts_;
  bool has_state_ = !role_.is_newcomer;
  RunLock lock_;  // of a folder that this rank has taken over from another run
};

}  // namespace motley::train
