// Rows of a benchmark that ran in part take the places of the older ones.
#include "motley/serial/bench_row.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace motley {
namespace {

BenchRow row(const char* name, const char* metric, double value) {
  BenchRow row;
  row.name = name;
  row.metric = metric;
  row.value = value;
  return row;
}

TEST(BenchRow, NewRowsReplaceTheirOwnAndKeepOthersInPlace) {
  const std::string before = to_json({row("a", "seconds", 1), row("b", "seconds", 2), row("b", "share", 3)});
  const auto after = replace_rows(before, {row("c", "seconds", 6), row("b", "seconds", 5)});
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_EQ(*after,
            to_json({row("a", "seconds", 1), row("b", "seconds", 5), row("b", "share", 3), row("c", "seconds", 6)}));
}

TEST(BenchRow, WhatAreNoRowsIsRefused) {
  for (const char* text : {"", "{}", "[1]", R"([{"case": "a"}])"}) {
    EXPECT_FALSE(replace_rows(text, {row("a", "seconds", 1)})) << text;
  }
}

}  // namespace
}  // namespace motley
