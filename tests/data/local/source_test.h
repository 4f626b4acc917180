// A data set that a test writes into a folder of its own, and what comes of opening it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "motley/data/local/dataset.h"
#include "motley/data/local/loader.h"
#include "tests/temporary_folder.h"

namespace motley::data {

class SourceTest : public testing::Test {
 protected:
  std::unique_ptr<Dataset> open() const {
    auto dataset = open_dataset(source_);
    EXPECT_TRUE(dataset) << dataset.error().message;
    return dataset ? std::move(*dataset) : nullptr;
  }
  std::string refusal() const {
    const auto dataset = open_dataset(source_);
    EXPECT_FALSE(dataset);
    return dataset ? "" : dataset.error().message;
  }
  static Batch read(const Dataset& dataset, std::vector<std::uint32_t> samples) {
    Batch batch;
    batch.samples = std::move(samples);
    const Status status = read_batch(dataset, batch);
    EXPECT_TRUE(status) << status.error().message;
    return batch;
  }

  const TemporaryFolder folder_;
  DatasetSource source_;
};

}  // namespace motley::data
