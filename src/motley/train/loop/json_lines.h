// A file of JSON objects, one a line, that whoever follows the run may read while it is written.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "motley/base/result.h"

namespace motley::train {

// Flushed line by line; a killed run leaves at most one torn line.
class JsonLines {
 public:
  static Result<std::unique_ptr<JsonLines>> open(const std::filesystem::path& path);
  ~JsonLines();
  Status write(const nlohmann::ordered_json& line) { return write(line.dump()); }
  Status write(std::string line);  // without its end

 private:
  JsonLines(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::filesystem::path path_;
  int descriptor_;
};

}  // namespace motley::train
