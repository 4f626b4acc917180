// Array files for tests, made here byte by byte.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

namespace motley::data {

// A npy file as numpy writes it.
template <class T>
std::string npy(const std::string& type, const std::string& shape, const std::vector<T>& values, int version = 1,
                const std::string& order = "False") {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}", type, order, shape);
  header.resize((header.size() + 10 + 64) / 64 * 64 - 10, ' ');
  header.back() = '\n';
  std::string bytes = "\x93NUMPY";
  bytes += {static_cast<char>(version), 0};
  const std::uint32_t length = static_cast<std::uint32_t>(header.size());
  bytes.append(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return bytes;
}

}  // namespace motley::data
