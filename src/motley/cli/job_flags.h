// The keys of a job file as flags, for every command that takes a job.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/result.h"
#include "motley/train/job/job.h"

namespace motley::cli {

using JobFlags = std::vector<std::pair<std::string, std::string>>;  // key and value, as typed

// Adds a flag for every key; the function that is returned tells, after parsing, which were given.
std::function<JobFlags()> add_job_flags(CLI::App& command);

// The job of the file with these flags over it, checked.
Result<train::Job> read_job_with(const std::string& file, const JobFlags& flags);

}  // namespace motley::cli
