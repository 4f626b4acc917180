#include "motley/scheduling/service/durable_controller.h"

namespace motley::scheduling {

Result<DurableController> DurableController::make(std::unique_ptr<Store> store, ClusterTopology topology,
                                                  std::filesystem::path folder, ControllerOptions options) {
  MOTLEY_ASSIGN(std::vector<JobRecord> records, store->jobs());
  MOTLEY_ASSIGN(const std::vector<std::string> drained, store->drained_nodes());
  MOTLEY_ASSIGN(Controller controller, Controller::make(std::move(records), drained, std::move(topology),
                                                        std::move(folder), std::move(options)));
  return DurableController(std::move(store), std::move(controller));
}

Result<std::vector<int>> DurableController::submit(const std::vector<SubmittedJob>& jobs, double now) {
  MOTLEY_ASSIGN(Controller::Submission submission, controller_.check_jobs(jobs, now));
  std::vector<const JobRecord*> added;
  for (const JobRecord& record : submission.added) added.push_back(&record);
  MOTLEY_TRY(store_->save(added));
  std::vector<int> ids = submission.ids;
  controller_.add(std::move(submission));
  return ids;
}

Status DurableController::cancel(const std::string& name, double now) {
  MOTLEY_TRY(controller_.cancel(name, now));
  return save();
}

Status DurableController::drain(const std::string& node, bool is_drained) {
  MOTLEY_TRY(controller_.check_node(node));
  MOTLEY_TRY(store_->save_drained(node, is_drained));
  controller_.drain(node, is_drained);
  return {};
}

Result<Controller::Step> DurableController::step(double now, const Observation& seen) {
  MOTLEY_ASSIGN(Controller::Step step, controller_.step(now, seen));
  MOTLEY_TRY(save());
  return step;
}

Status DurableController::save() {
  MOTLEY_TRY(store_->save(controller_.unsaved()));
  controller_.saved();
  return {};
}

}  // namespace motley::scheduling
