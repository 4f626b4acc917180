// What is wrong with a text that is no JSON, in words for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace motley {

// Without the name that the library gives the exception, which its text begins with in brackets.
inline std::string explain(const nlohmann::json::exception& problem) {
  const std::string text = problem.what();
  const std::size_t end = text.find("] ");
  return text.starts_with('[') && end != std::string::npos ? text.substr(end + 2) : text;
}

}  // namespace motley
