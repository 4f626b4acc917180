// Quantities with units as users write them: "10Gbps", "64 KB", "90s". Decimal prefixes are powers of ten and binary
// ones (KiB, MiB) powers of two; bits and bytes are told apart by b and B. A number without a unit is refused, but for
// 0.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "motley/base/result.h"

namespace motley {

// What is accepted, for messages.
inline constexpr std::string_view kAcceptedBytes = "a size such as '64KB', '512MiB' or '1.5GB'";
inline constexpr std::string_view kAcceptedBytesPerSecond = "a rate such as '10Gbps' (bits) or '1.5GB/s' (bytes)";
inline constexpr std::string_view kAcceptedSeconds = "a duration such as '250ms', '90s' or '2h'";

Result<double> parse_bytes(std::string_view text);             // "64 KB" -> 64000
Result<double> parse_bytes_per_second(std::string_view text);  // "1 Gb/s", "1Gbps" -> 1.25e8; "10 GB/s" -> 1e10
Result<double> parse_seconds(std::string_view text);           // "250 ms", "2min", "1h"

// Text that is read back as the same value: "1500MB", "10Gbps", "90s"; "0" for 0.
std::string exact_bytes(double bytes);
std::string exact_bytes_per_second(double bytes_per_second);
std::string exact_seconds(double seconds);

// For people to read, rounded.
std::string format_bytes(double bytes);                       // "46.8 MB"
std::string format_seconds(double seconds);                   // "12.3 ms", "1 min 5 s"
std::string format_number(double value);                      // "20,000", "14.2", "0.001235"
std::string format_percent(double fraction, int digits = 1);  // "12.3 %"
// "1 worker", "2 workers"; `ending` is that of the noun for more than one.
std::string format_count(std::int64_t count, std::string_view noun, std::string_view ending = "s");
std::string format_ranks(std::span<const int> ranks);  // "rank 3", "ranks 1, 2"

}  // namespace motley
