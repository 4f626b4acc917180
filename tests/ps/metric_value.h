// A number from a server's page of metrics.
#pragma once

#include <fmt/format.h>

#include <sstream>
#include <string>

#include "motley/ps/service.h"

namespace motley::ps {

// Of the sample with this name and these labels, such as R"(jobs_ended_total{how="left"})"; -1 where there is none.
inline double value_of(const Service& service, const std::string& sample) {
  const std::string name = fmt::format("motley_server_{} ", sample);
  std::istringstream lines(service.metrics().text());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name)) return std::stod(line.substr(name.size()));
  }
  return -1;
}

}  // namespace motley::ps
