// What a job leaves for people to read: what its commands have printed, in parts while it runs or afterwards, and the
// page of its run where it trains with Motley. A job may have put anything in their places: only files are read, and
// nothing waits for a pipe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "motley/base/result.h"
#include "motley/scheduling/service/executor.h"

namespace motley::scheduling {

std::filesystem::path output_file(const Attempt& attempt);
// report.html of the folder that --run-directory names in the attempt's command. Empty where it names none.
std::filesystem::path report_file(const Attempt& attempt);

struct OutputPart {
  std::string text;
  std::int64_t next = 0;  // where the part after it begins
};

// From this byte on, as much as an answer may have; whole lines only where there is more, and whole characters (UTF-8)
// but at the end of an output that has ended. Nothing where there is no such file yet. Errors (kIo): it cannot be read.
Result<OutputPart> read_output(const std::filesystem::path& file, std::int64_t offset, bool has_ended);

// All of the file, which must not have more bytes than that. Errors: kIo.
Result<std::string> read_whole(const std::filesystem::path& file, std::int64_t most);

// The end of the file, from the begin of a line on, at most so many bytes. Errors: kIo.
Result<std::string> read_end(const std::filesystem::path& file, std::int64_t most);

// The last few lines; empty where there are none.
std::string last_lines(const std::filesystem::path& file);

}  // namespace motley::scheduling
