#include "motley/cli/job_flags.h"

#include <memory>

#include "motley/cli/options.h"

namespace motley::cli {

std::function<JobFlags()> add_job_flags(CLI::App& command) {
  const auto& entries = train::Job::options().entries();
  auto texts = std::make_shared<std::vector<std::string>>(entries.size());
  std::vector<CLI::Option*> options;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const OptionText& option = entries[i].text;
    CLI::Option* flag = command.add_option("--" + flag_name(option.key), (*texts)[i]);
    options.push_back(describe(flag, option, entries[i].get(train::Job()))->group("Keys of the job"));
  }
  return [texts, options] {
    JobFlags flags;
    for (std::size_t i = 0; i < options.size(); ++i) {
      if (options[i]->count() > 0) {
        flags.emplace_back(train::Job::options().entries()[i].text.key, (*texts)[i]);
      }
    }
    return flags;
  };
}

Result<train::Job> read_job_with(const std::string& file, const JobFlags& flags) {
  MOTLEY_ASSIGN(train::Job job, train::read_job(file));
  MOTLEY_TRY(train::apply_flags(job, flags));
  MOTLEY_TRY(train::check_job(job));
  return job;
}

}  // namespace motley::cli
