// What workers and a data server say to each other, and how samples stand in a frame: parsed, each feature and class as
// narrow as it is exact, so that a worker has the same numbers as from the files.
//
//   worker                                     node
//     open     which data, described how   ->
//                                          <-  opened   what a sample is; or failed, and why
//     read     parts, samples              ->            any number of them under way
//                                          <-  samples   in the order of the requests
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/data/local/dataset.h"

namespace motley::data {

inline constexpr std::uint32_t kDataConnection = 0x4000;  // purpose

enum DataFrame : std::uint16_t {
  kDataOpen = 0x401,  // worker: Open
  kDataOpened,        // node: a piece of a Description; tag: bytes of it that follow in further frames
  kDataRead,          // worker: Read; tag: number of the request
  kDataSamples,       // node: the samples; tag: number of the request
  kDataFailed,        // node: an error, after which it says no more
};

enum class Set : std::uint8_t { kTraining, kTest };
const char* to_string(Set set);

struct Open {
  Set set = Set::kTraining;
  std::string keys;  // lines "key: value" that say which data is meant; both sides' must be equal
};
inline constexpr std::size_t kMaxKeysBytes = 32 << 10;

// What a dataset says of itself.
struct Description {
  std::uint32_t size = 0;
  std::vector<std::int64_t> feature_shape;
  data::TargetKind target_kind = data::TargetKind::kClass;
  std::uint32_t class_count = 0;
  std::uint32_t target_width = 1;
  std::uint32_t categories = 0;
  std::optional<data::ByteFeatures> bytes;  // where features are bytes on the wire; else they are normalised floats
  std::vector<std::string> class_names;     // Preprocessing::class_names
  data::Skipped skipped;
  std::uint64_t contents = 0;  // a hash of samples spread over the set: another number, other data
  // The first sample with a real target that is not from 0 to 1.
  std::optional<std::uint32_t> improbable_target = {};

  std::size_t feature_count() const;
  bool operator==(const Description&) const;
};
inline constexpr std::size_t kMaxDescriptionBytes = std::size_t{1} << 30;
inline constexpr std::size_t kDescriptionPieceBytes = 512 << 10;

// Reads all real targets, and up to 65,536 samples and 256 MiB for the hash.
Result<Description> describe(const data::Dataset& dataset);

struct Read {
  data::Parts parts;
  std::vector<std::uint32_t> samples;
};

// Bytes of a sample's parts in a frame.
std::size_t sample_bytes(const Description& description, data::Parts parts);
// Samples that one request may have, so that its answer is of 4 MiB at most, or one sample.
std::size_t samples_in_answer(const Description& description, data::Parts parts);

std::vector<std::byte> encode(const Open& open);
std::vector<std::byte> encode(const Description& description);
std::vector<std::byte> encode_read(data::Parts parts, std::span<const std::uint32_t> samples);
std::vector<std::byte> encode(const Error& error);
// kCorrupt for bytes that are no such message, or claim what no dataset has.
Result<Open> decode_open(std::span<const std::byte> bytes);
Result<Description> decode_description(std::span<const std::byte> bytes);
Result<Read> decode_read(std::span<const std::byte> bytes, const Description& description);
Result<Error> decode_failed(std::span<const std::byte> bytes);

// The samples of a request as they stand in a frame: all ids, all features, all targets.
Result<std::vector<std::byte>> pack(const data::Dataset& dataset, const Description& description, const Read& read);
// `bytes` are of `count` samples with these parts. What `into` has no room for is left out.
Status unpack(std::span<const std::byte> bytes, const Description& description, data::Parts parts, std::size_t count,
              const data::ReadTarget& into);

}  // namespace motley::data
