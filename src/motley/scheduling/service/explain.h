// Why a job is where it is, and what would change if the cluster or its jobs were others.
#pragma once

#include <string>
#include <vector>

#include "motley/scheduling/service/controller.h"

namespace motley::scheduling {

struct Explanation {
  std::string name;
  std::string state;
  std::string blocked_by;       // of nodes, devices, resources, uplinks, handover, turn, scheduler; empty: nothing
  std::string reason;           // in a sentence
  std::string changed;          // why it was last started, resized, moved or stopped; empty: never
  std::string one_more_device;  // what one device more would change, in a sentence; empty for jobs that are over
  std::string output_file;      // of its last attempt; empty: there was none
  std::string last_output;      // its last lines, of a job whose last attempt failed; who answers reads them
  std::vector<std::string> unblocked_by;  // what would let it start, the soonest first
  double starts = -1;                     // expected, seconds from now; -1: it runs or ran, or cannot be told
  double finishes = -1;                   // likewise
  std::string assumption;                 // about how long it takes, in words; empty: it says how long
};

template <class Archive>
void fields(Archive& archive, Explanation& one) {
  archive.required("name", one.name);
  archive.required("state", one.state);
  archive.optional("blocked_by", one.blocked_by);
  archive.required("reason", one.reason);
  archive.optional("last_change", one.changed);
  archive.optional("one_more_device", one.one_more_device);
  archive.optional("output_file", one.output_file);
  archive.optional("last_output", one.last_output);
  archive.optional("unblocked_by", one.unblocked_by);
  archive.required("starts_in_seconds", one.starts);
  archive.required("finishes_in_seconds", one.finishes);
  archive.optional("assumption", one.assumption);
}

// Of the job that was asked for. Errors: kInvalidInput where there is no such job. Expected times are left out where
// forecasts are not done in the time that they have.
Result<Explanation> explain(const Controller::Snapshot& present, const std::string& name);

// Of the first jobs that are not over, at most so many, by arrival: what explain() says of each but one_more_device,
// from one forecast for all.
std::vector<Explanation> explain_all(const Controller::Snapshot& present, std::size_t most);

// How a job ended that is over, in a sentence.
std::string describe_end(const JobRecord& record, double now);

struct NewNode {
  std::string name;
  int devices = 1;
  std::string type = "";  // of its devices; empty: the cluster's first
};

template <class Archive>
void fields(Archive& archive, NewNode& node) {
  archive.required("name", node.name);
  archive.required("devices", node.devices);
  archive.optional("type", node.type);
}

// A change that is only thought of.
struct WhatIf {
  std::vector<SubmittedJob> submit;
  std::vector<std::string> cancel;
  std::vector<NewNode> add_nodes;
  std::vector<std::string> drain;
};

template <class Archive>
void fields(Archive& archive, WhatIf& change) {
  archive.optional("submit", change.submit);
  archive.optional("cancel", change.cancel);
  archive.optional("add_nodes", change.add_nodes);
  archive.optional("drain", change.drain);
}

// Seconds from now as things are, and with the change; -1: never, or not there.
struct Comparison {
  std::string name;
  double starts = -1, finishes = -1;
  double starts_then = -1, finishes_then = -1;
};

template <class Archive>
void fields(Archive& archive, Comparison& one) {
  archive.required("name", one.name);
  archive.required("starts_in_seconds", one.starts);
  archive.required("finishes_in_seconds", one.finishes);
  archive.required("would_start_in_seconds", one.starts_then);
  archive.required("would_finish_in_seconds", one.finishes_then);
}

// By job, those that would be submitted last. Errors: kInvalidInput for jobs and nodes that are not there, or that
// could not be added; kTimeout where the forecasts are not done in the time that they have.
Result<std::vector<Comparison>> what_if(const Controller::Snapshot& present, const WhatIf& change);

}  // namespace motley::scheduling
