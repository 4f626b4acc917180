// A controller whose records are in a store before anybody acts on them, so that one made anew from the store goes on
// where another was killed: a job that was acknowledged is there, and no attempt is started twice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "motley/scheduling/service/controller.h"
#include "motley/scheduling/service/store.h"

namespace motley::scheduling {

class DurableController {
 public:
  // Takes up what the store has. Errors: those of the store and of Controller::make.
  static Result<DurableController> make(std::unique_ptr<Store> store, ClusterTopology topology,
                                        std::filesystem::path folder, ControllerOptions options);

  // As the controller's; what they have changed is durable when they return.
  Result<std::vector<int>> submit(const std::vector<SubmittedJob>& jobs, double now);
  Status cancel(const std::string& name, double now);
  Status drain(const std::string& node, bool is_drained);
  Result<Controller::Step> step(double now, const Observation& seen);

  const Controller& controller() const { return controller_; }

 private:
  DurableController(std::unique_ptr<Store> store, Controller controller)
      : store_(std::move(store)), controller_(std::move(controller)) {}
  Status save();

  std::unique_ptr<Store> store_;
  Controller controller_;
};

}  // namespace motley::scheduling
