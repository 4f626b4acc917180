// What --json is, for every command that prints results: one JSON document on standard output, and nothing else there.
// Lines for people then go to standard error.
#pragma once

#include <string>

#include "motley/base/result.h"
#include "motley/serial/options.h"

namespace motley::cli {

OptionText json_option();

// From its making to its end what this process and those that it starts write to standard output goes to standard
// error.
class JsonOutput {
 public:
  explicit JsonOutput(bool is_asked);
  ~JsonOutput();
  JsonOutput(const JsonOutput&) = delete;
  JsonOutput& operator=(const JsonOutput&) = delete;

  bool is_asked() const { return output_ >= 0; }
  // Where JSON is asked for, writes it to the real standard output.
  Status print(const std::string& json) const;

 private:
  int output_ = -1;  // the real standard output
};

}  // namespace motley::cli
