// Planning, simulation and scheduling for Python: what is asked comes as keywords, which are the options of the
// commands, and answers go as the texts that the commands write. Also a run's page.
#include <pybind11/stl.h>

#include <cctype>
#include <chrono>
#include <future>
#include <map>
#include <tuple>
#include <variant>

#include "motley/app/documents.h"
#include "motley/app/replay_trace.h"
#include "motley/app/simulate_plan.h"
#include "motley/app/train/find_plan.h"
#include "motley/base/os/memory.h"
#include "motley/base/os/processor_load.h"
#include "motley/base/os/signals.h"
#include "motley/bind/parts.h"
#include "motley/cluster/machine.h"
#include "motley/model/profile.h"
#include "motley/net/link_speed.h"
#include "motley/planning/plan/plan.h"
#include "motley/report/plan_view.h"
#include "motley/report/report.h"
#include "motley/report/schedule_page.h"
#include "motley/report/text_columns.h"

namespace motley::bind {
namespace {

namespace py = pybind11;

using Keywords = std::map<std::string, std::variant<std::string, std::vector<std::string>>>;
using Texts = std::map<std::string, std::string>;  // of an answer, by what they are

constexpr std::chrono::milliseconds kBetweenSignals{50};

template <class Question>
Status set_options(Question& question, const Keywords& keywords) {
  for (const auto& [key, value] : keywords) {
    MOTLEY_ASSIGN(const auto* option, Question::options().find(key));
    if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
      for (const std::string& text : *texts) MOTLEY_TRY(parse_option(option->text, text));
      option->set(question, *texts);
    } else {
      MOTLEY_ASSIGN(OptionValue parsed, parse_option(option->text, std::get<std::string>(value)));
      option->set(question, std::move(parsed));
    }
  }
  return {};
}

// The message with keywords in place of flags: "--min-throughput" as "min_throughput".
std::string name_keywords(const std::string& message) {
  std::string text;
  for (std::size_t i = 0; i < message.size();) {
    if (message.compare(i, 2, "--") != 0 || i + 2 == message.size() || std::islower(message[i + 2]) == 0) {
      text += message[i++];
      continue;
    }
    for (i += 2; i < message.size() && (std::islower(message[i]) != 0 || message[i] == '-'); ++i) {
      text += message[i] == '-' ? '_' : message[i];
    }
  }
  return text;
}

// What `work` makes in a thread of its own, without Python's lock. Ctrl-C asks it to stop, and is raised when it has.
template <class Work>
auto run_interruptibly(Work work) {
  std::stop_source stop;
  std::packaged_task<Result<Texts>()> task([&] { return work(stop.get_token()); });
  std::future<Result<Texts>> future = task.get_future();
  bool interrupted = false;
  {
    const py::gil_scoped_release released;
    std::thread thread = start_thread(std::move(task));
    while (!interrupted && future.wait_for(kBetweenSignals) != std::future_status::ready) {
      const py::gil_scoped_acquire acquired;
      interrupted = PyErr_CheckSignals() != 0;
    }
    if (interrupted) stop.request_stop();
    thread.join();
  }
  if (interrupted) throw py::error_already_set();
  Result<Texts> texts = future.get();
  if (!texts) texts.error().message = name_keywords(texts.error().message);
  return value_or_raise(std::move(texts));
}

// Calls Python from a thread of ours.
app::Tell make_tell(const py::function& function) {
  return [&function](const std::string& text) {
    const py::gil_scoped_acquire acquired;
    try {
      function(text);
    } catch (py::error_already_set& problem) {
      problem.discard_as_unraisable("motley");
    }
  };
}

Texts plan(const Keywords& keywords, const app::Documents& documents, const py::function& warn,
           const py::function& tell) {
  return run_interruptibly([&](const std::stop_token& stop) -> Result<Texts> {
    app::PlanQuestion question;
    MOTLEY_TRY(set_options(question, keywords));
    question.input.documents = documents;
    MOTLEY_ASSIGN(const app::PlanTask task, app::make_plan_task(question, make_tell(warn)));
    const auto ask = [](const planning::Planner& planner, const planning::Request& request) {
      return planner.plan(request);
    };
    const app::PlanFinder finder{.question = question, .task = task, .stop = stop, .ask = ask, .tell = make_tell(tell)};
    MOTLEY_ASSIGN(const planning::FoundPlan found, finder.find());
    return Texts{{"json", planning::to_json(found.plan)},
                 {"text", report::plan_text(found)},
                 {"page", report::plan_page(found)}};
  });
}

Texts estimate(const Keywords& keywords, const app::Documents& documents) {
  return run_interruptibly([&](const std::stop_token&) -> Result<Texts> {
    app::PlanningInput input;
    MOTLEY_TRY(set_options(input, keywords));
    input.documents = documents;
    MOTLEY_ASSIGN(const app::PlanningData data, app::planning_data(input));
    return Texts{{"json", model::to_json(data.profile)}};
  });
}

Texts simulate(const std::string& plan, const Keywords& keywords, const app::Documents& documents) {
  return run_interruptibly([&](const std::stop_token&) -> Result<Texts> {
    app::StepQuestion question;
    MOTLEY_TRY(set_options(question, keywords));
    question.plan = plan;
    question.documents = documents;
    question.keep_events = true;
    MOTLEY_ASSIGN(const app::SimulatedStep step, app::simulate_plan(question));
    return Texts{{"json", app::to_json(step)},
                 {"text", report::simulation_text(step.timeline, step.plan)},
                 {"page", report::simulation_page(step.timeline, step.plan)},
                 {"timeline", planning::to_chrome_trace(step.timeline, step.plan)}};
  });
}

Texts schedule(const std::string& trace, const Keywords& keywords, const app::Documents& documents) {
  return run_interruptibly([&](const std::stop_token& stop) -> Result<Texts> {
    app::TraceQuestion question;
    MOTLEY_TRY(set_options(question, keywords));
    question.trace = trace;
    question.topology.documents = documents;
    question.stop = stop;
    app::TraceReplay replay(question);
    MOTLEY_ASSIGN(const app::Workload workload, replay.make_workload(question.seed));
    MOTLEY_ASSIGN(const auto outcomes, replay.replay(workload, true));
    const report::ScheduleView view = {workload.name, workload.jobs,    workload.topology,
                                       outcomes,      workload.horizon, question.mtbf > 0};
    return Texts{{"json", app::to_json(workload, outcomes)},
                 {"text", report::schedule_text(view)},
                 {"page", report::schedule_page(view)},
                 {"csv", app::to_csv(workload, outcomes)}};
  });
}

// What a document of this name, or a file, has, as its file would have it. Errors: it is refused.
std::string read_plan(const std::string& plan, const app::Documents& documents) {
  return planning::to_json(
      value_or_raise(app::read_document(documents, plan, planning::parse_plan, planning::read_plan)));
}

std::string format_profile(const std::string& text) {
  return model::to_json(value_or_raise(model::parse_profile(text, "profile")));
}

std::tuple<std::string, double> describe_machine() {
  const cluster::Machine machine = cluster::detect_machine();
  return {machine.processor, machine.memory_bytes};
}

std::tuple<double, double, double> load_since(const ProcessorWatch& watch) {
  const ProcessorLoad load = watch.load().value_or(ProcessorLoad());
  return {load.load_average, load.others_fraction, load.stolen_fraction};
}

std::tuple<double, double> measure_loopback() {
  const net::LinkSpeed speed = value_or_raise([] {
    const py::gil_scoped_release released;
    return net::measure_loopback();
  }());
  return {speed.bytes_per_second, speed.latency_seconds};
}

}  // namespace

void add_planning(py::module_& module) {
  module.def("plan", &plan, py::arg("keywords"), py::arg("documents"), py::arg("warn"), py::arg("tell"));
  module.def("estimate", &estimate, py::arg("keywords"), py::arg("documents"));
  module.def("simulate", &simulate, py::arg("plan"), py::arg("keywords"), py::arg("documents"));
  module.def("schedule", &schedule, py::arg("trace"), py::arg("keywords"), py::arg("documents"));
  module.def("read_plan", &read_plan, py::arg("plan"), py::arg("documents"));
  module.def("format_profile", &format_profile, py::arg("text"));
  module.def("describe_machine", &describe_machine, py::call_guard<py::gil_scoped_release>());
  module.def("measure_loopback", &measure_loopback);
  py::class_<ProcessorWatch>(module, "ProcessorWatch")
      .def(py::init<>())
      .def("load", &load_since, py::call_guard<py::gil_scoped_release>());
  module.def("keep_freed_memory", &keep_freed_memory);
  module.def(
      "write_report", [](const std::string& run) { check(report::write_report(run)); }, py::arg("run"),
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace motley::bind
