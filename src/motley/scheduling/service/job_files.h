// What a job leaves for people to read: the output of its latest attempt, and the page of its run where it trains with
// Motley.
#pragma once

#include <filesystem>
#include <string>

#include "motley/base/result.h"
#include "motley/scheduling/service/executor.h"

namespace motley::scheduling {

std::filesystem::path output_file(const Attempt& attempt);
// report.html of the folder that --run-directory names in the attempt's command. Empty where it names none.
std::filesystem::path report_file(const Attempt& attempt);

// The end of the file, from the begin of a line on, at most so many bytes. Errors: kIo.
Result<std::string> read_end(const std::filesystem::path& file, std::size_t most);

}  // namespace motley::scheduling
