// How busy the machine's processors are with what is not this program's: what a measurement should say of the time in
// which it was made.
#pragma once

#include <optional>
#include <string_view>

namespace motley {

// Processor seconds since the machine started, of all its processors together.
struct ProcessorTimes {
  double all = 0;
  double busy = 0;    // with processes of this machine
  double stolen = 0;  // by other virtual machines
};
// The first line of /proc/stat, in ticks of which a second has so many; nothing where it is none.
std::optional<ProcessorTimes> parse_processor_times(std::string_view line, double ticks_per_second);

struct ProcessorLoad {
  double load_average = 0;     // processes that ran or waited to, over the minute before the watch began
  double others_fraction = 0;  // of all processor time meanwhile, which processes other than ours took
  double stolen_fraction = 0;  // likewise, which other virtual machines took
};

// Watches from its making on. Ours are this process and those that it has waited for.
class ProcessorWatch {
 public:
  ProcessorWatch();
  // Nothing where the system does not tell.
  std::optional<ProcessorLoad> load() const;

 private:
  std::optional<ProcessorTimes> begin_;
  double own_ = 0;
  double load_average_ = 0;
};

}  // namespace motley
