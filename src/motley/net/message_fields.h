// Structs as the bytes of messages and back, by their descriptions (base/fields.h); keys are only for people, who
// read them when a message is refused. In the order of the description, little-endian: an integer or float as wide as
// its type, a bool or an enum one byte, a text its length (16 bits) and bytes, a vector its size (32 bits) and
// elements, a std::optional a byte that says whether it is there, and the value, a std::array of bytes those. Of a text
// `max` is the most bytes, 255 where none is given; a longer one is cut off where it is written.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "motley/base/fields.h"
#include "motley/base/result.h"

namespace motley::net {

// Little-endian numbers and texts.
class ByteWriter {
 public:
  template <std::unsigned_integral T>
  void put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  void put_bytes(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  // A 16-bit length and the bytes; text beyond `limit` is cut off.
  void put_text(std::string_view text, std::size_t limit) {
    text = text.substr(0, limit);
    put(static_cast<std::uint16_t>(text.size()));
    put_bytes(std::as_bytes(std::span(text.data(), text.size())));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Never reads past its end, and allocates no more than the bytes that are really there, whatever lengths they claim.
// After the first field that is not there, ok() is false and every value is zero or empty.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <std::unsigned_integral T>
  T get() {
    std::uint64_t value = 0;
    const auto bytes = get_bytes(sizeof(T));
    for (std::size_t i = 0; i < bytes.size(); ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    return static_cast<T>(value);
  }
  std::span<const std::byte> get_bytes(std::size_t count) {
    if (!ok_ || count > rest_.size()) {
      ok_ = false;
      return {};
    }
    const auto bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return bytes;
  }
  std::string get_text(std::size_t limit) {
    const std::size_t length = get<std::uint16_t>();
    ok_ = ok_ && length <= limit;
    const auto bytes = get_bytes(length);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  bool ok() const { return ok_; }
  // Every byte was read and nothing was missing.
  bool complete() const { return ok_ && rest_.empty(); }
  std::size_t remaining() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

// A number as the unsigned integer that stands for it.
template <class T>
auto message_bits(T value) {
  if constexpr (std::is_enum_v<T> || std::is_same_v<T, bool>) {
    return static_cast<std::uint8_t>(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<std::uint64_t>(value);
  } else if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<std::uint32_t>(value);
  } else {
    return static_cast<std::make_unsigned_t<T>>(value);
  }
}

inline std::size_t text_limit(const About& about) {
  return std::isfinite(about.numbers.max) ? static_cast<std::size_t>(about.numbers.max) : 255;
}

class MessageWriter {
 public:
  template <class T>
  void required(const char*, T& value, About about = {}) {
    if constexpr (std::is_same_v<T, std::string>) {
      bytes_.put_text(value, text_limit(about));
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      bytes_.put(message_bits(value));
    } else if constexpr (requires { value.has_value(); }) {
      bytes_.put(static_cast<std::uint8_t>(value.has_value()));
      if (value) required("", *value, about.numbers);
    } else if constexpr (requires { std::tuple_size<T>::value; }) {
      bytes_.put_bytes(value);
    } else if constexpr (requires { value.begin(); }) {
      bytes_.put(static_cast<std::uint32_t>(value.size()));
      for (auto& element : value) required("", element, about.numbers);
    } else {
      fields(*this, value);
    }
  }
  std::vector<std::byte> take() { return bytes_.take(); }

 private:
  ByteWriter bytes_;
};

class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // After the first field that is not there or not accepted, the rest is not looked at.
  template <class T>
  void required(const char* key, T& value, About about = {}) {
    if (!problem_.empty()) return;
    const NumberIs& accepted = about.numbers;
    if constexpr (std::is_same_v<T, std::string>) {
      value = bytes_.get_text(text_limit(about));
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      const auto bits = bytes_.get<decltype(message_bits(value))>();
      if constexpr (std::is_floating_point_v<T>) {
        value = std::bit_cast<T>(bits);
      } else {
        value = static_cast<T>(bits);
      }
      const double number = std::is_enum_v<T> || std::is_same_v<T, bool> ? bits : static_cast<double>(value);
      const double max = std::is_same_v<T, bool> ? 1 : accepted.max;
      if (!(number >= accepted.min && number <= max) || (accepted.is_min_excluded && number == accepted.min) ||
          std::isinf(number)) {
        problem_ = fmt::format("{} is {}; accepted is {}{} to {}", key, number,
                               accepted.is_min_excluded ? "above " : "", accepted.min, max);
      }
    } else if constexpr (requires { value.has_value(); }) {
      bool is_there = false;
      required(key, is_there);
      if (is_there) required(key, value.emplace(), accepted);
    } else if constexpr (requires { std::tuple_size<T>::value; }) {
      std::ranges::copy(bytes_.get_bytes(value.size()), value.begin());
    } else if constexpr (requires { value.begin(); }) {
      std::uint32_t size = 0;
      required(key, size);
      for (std::uint32_t i = 0; i < size && problem_.empty(); ++i) required(key, value.emplace_back(), accepted);
    } else {
      fields(*this, value);
    }
    if (!bytes_.ok() && problem_.empty()) problem_ = fmt::format("it ends within {}", key);
  }

  // What is wrong: of a field, or that there are bytes after the last; empty: nothing is.
  std::string problem() const {
    return problem_.empty() && bytes_.remaining() > 0 ? fmt::format("{} bytes follow its end", bytes_.remaining())
                                                      : problem_;
  }

 private:
  ByteReader bytes_;
  std::string problem_;
};

// The code of an error, in two bytes.
template <class Archive>
void error_code(Archive& archive, ErrorCode& code) {
  auto number = static_cast<std::uint16_t>(code);
  archive.required("code", number, NumberIs::between(0, static_cast<double>(ErrorCode::kInternal)));
  code = static_cast<ErrorCode>(number);
}

template <class T>
std::vector<std::byte> encode_message(T message) {
  MessageWriter writer;
  writer.required("", message);
  return writer.take();
}

// Errors: kCorrupt for bytes that are no such message. Nothing is allocated for what is not there.
template <class T>
Result<T> decode_message(std::span<const std::byte> bytes, const char* what, About about = {}) {
  T message{};
  MessageReader reader(bytes);
  reader.required(what, message, about);
  if (const std::string problem = reader.problem(); !problem.empty()) {
    return fail(ErrorCode::kCorrupt, "a malformed {} message of {} bytes: {}", what, bytes.size(), problem);
  }
  return message;
}

}  // namespace motley::net
