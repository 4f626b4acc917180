// Writes scalars for TensorBoard without protobuf: event files are TFRecords (length and payload, each with a masked
// CRC-32C) of Event messages, of which scalars need only a few fields.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "motley/base/clock.h"
#include "motley/base/result.h"

namespace motley::train {

// One event file, for one thread. Records are gathered in memory and written when flushed, when 64 KB are reached, and
// at the end. A resumed run opens a new file in the same folder; TensorBoard reads the files one after the other.
class TensorBoardWriter {
 public:
  // Makes the folder where it is missing. `wall_time` is seconds since 1970, for the file's name and its first record.
  static Result<TensorBoardWriter> open(const std::filesystem::path& folder, double wall_time);

  TensorBoardWriter(TensorBoardWriter&&) = default;
  ~TensorBoardWriter();

  // One point of the curve `tag`, such as "train/loss". The value is stored as a 32-bit float.
  Status scalar(std::string_view tag, std::int64_t step, double value, double wall_time = wall_seconds());

  // Hands what was gathered to the operating system. Errors name the file.
  Status flush();

 private:
  TensorBoardWriter(std::filesystem::path path, std::FILE* file)
      : path_(std::move(path)), file_(file, [](std::FILE* open) { std::fclose(open); }) {}
  void append(const std::string& event);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, void (*)(std::FILE*)> file_;
  std::string gathered_;
};

}  // namespace motley::train
