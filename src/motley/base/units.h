// Quantities with units as users write them: "1 Gb/s", "64 KB", "250 ms". Decimal prefixes are powers of ten and binary
// ones (KiB, MiB) powers of two; bits and bytes are told apart by b and B.
#pragma once

#include <string>
#include <string_view>

#include "motley/base/result.h"

namespace motley {

Result<double> parse_bytes(std::string_view text);  // "64 KB" -> 64000; a bare number is bytes
Result<double> parse_bytes_per_second(
    std::string_view text);                           // "1 Gb/s", "1Gbps" -> 1.25e8; "10 GB/s" -> 1e10; needs a unit
Result<double> parse_seconds(std::string_view text);  // "250 ms", "1.5", "2 min", "1 h"

std::string format_bytes(double bytes);      // "46.8 MB"
std::string format_seconds(double seconds);  // "12.3 ms", "1 min 5 s"
std::string format_number(double value);     // "20,000", "14.2", "0.001235"

}  // namespace motley
