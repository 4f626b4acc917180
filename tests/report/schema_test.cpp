// docs/schema is what the descriptions of our files say. MOTLEY_WRITE_SCHEMAS=1 report_test --gtest_filter=Schemas.*
// writes it anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include "motley/base/os/file.h"
#include "motley/model/profile.h"
#include "motley/planning/plan/plan.h"
#include "motley/train/records/metrics.h"
#include "motley/train/records/run_file.h"

namespace motley {
namespace {

TEST(Schemas, AreCurrent) {
  for (const auto& [name, schema] : {std::pair("metrics", train::metrics_schema()),
                                     {"plan", planning::plan_schema()},
                                     {"profile", model::profile_schema()},
                                     {"run", train::run_schema()}}) {
    const std::string file = fmt::format(MOTLEY_SOURCE_FOLDER "/docs/schema/{}.schema.json", name);
    if (std::getenv("MOTLEY_WRITE_SCHEMAS") != nullptr) {
      ASSERT_TRUE(write_file(file, schema));
    }
    EXPECT_EQ(*read_file(file), schema) << "MOTLEY_WRITE_SCHEMAS=1 report_test --gtest_filter=Schemas.* writes "
                                        << file;
  }
}

}  // namespace
}  // namespace motley
