// What a job's commands have printed, in parts, as its owner reads it while it runs or afterwards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "motley/base/result.h"

namespace motley::scheduling {

struct OutputPart {
  std::string text;
  std::int64_t next = 0;  // where the part after it begins
};

// From this byte on, as much as an answer may have; whole lines only where there is more. Nothing where there is no
// such file yet. Errors (kIo): it cannot be read.
Result<OutputPart> read_output(const std::filesystem::path& file, std::int64_t offset);

// The last few lines; empty where there are none.
std::string last_lines(const std::filesystem::path& file);

}  // namespace motley::scheduling
