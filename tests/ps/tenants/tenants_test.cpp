// The file of tenants: what it gives, and what is refused with which words.
#include "motley/ps/tenants/tenants.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "motley/base/os/file.h"

namespace motley::ps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TenantsFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("motley-tenants-{}", ::getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const std::filesystem::path path = folder_ / name;
    EXPECT_TRUE(write_file(path, text));
    ::chmod(path.c_str(), mode);
    return path;
  }

  std::filesystem::path folder_;
};

TEST_F(TenantsFile, GivesEachItsTokenQuotaAndWeight) {
  write("vision.token", "the token of vision\n");
  const auto path = write("tenants.yaml",
                          "tenants:\n"
                          "  - {name: vision, token_file: vision.token, quota: 16 GB, share: 2}\n"
                          "  - {name: speech, token: 000102030405060708090a0b0c0d0e0f, max_jobs: 4}\n");
  const auto tenants = Tenants::read(path, {.connections = 9, .jobs = 8, .threads = 7, .probes = 6});
  ASSERT_TRUE(tenants) << tenants.error().message;
  EXPECT_EQ(tenants->find("vision").token.bytes(), "the token of vision");
  EXPECT_EQ(tenants->find("speech").token.hex(), "000102030405060708090a0b0c0d0e0f");
  EXPECT_EQ(tenants->find("vision").quota_bytes, 16'000'000'000u);
  EXPECT_EQ(tenants->find("vision").share, 2);
  EXPECT_EQ(tenants->find("speech").quota_bytes, 0u);
  EXPECT_EQ(tenants->find("speech").share, 1);
  EXPECT_EQ(tenants->find("vision").caps.jobs, 8);
  EXPECT_EQ(tenants->find("speech").caps.jobs, 4);
  EXPECT_EQ(tenants->find("speech").caps.connections, 9);
  const std::string unknown = tenants->find("nobody").token.bytes();
  EXPECT_EQ(unknown.size(), 32u);  // one that nobody knows, the same at each asking
  EXPECT_EQ(unknown, tenants->find("nobody").token.bytes());
  EXPECT_NE(unknown, Tenants::read(path)->find("nobody").token.bytes());
}

TEST_F(TenantsFile, OneTokenIsForAll) {
  const Tenants tenants(*net::Secret::from_text("one token for them all", "token"));
  EXPECT_EQ(tenants.find("anybody").token.bytes(), "one token for them all");
  EXPECT_TRUE(tenants.named().empty());
}

TEST_F(TenantsFile, IsRefusedWithTheReason) {
  const auto refusal = [&](const std::string& text, mode_t mode = 0600) {
    const auto tenants = Tenants::read(write("tenants.yaml", text, mode));
    return tenants ? std::string("accepted") : tenants.error().message;
  };
  const std::string one = "tenants:\n  - {name: a, token: 000102030405060708090a0b0c0d0e0f";
  EXPECT_THAT(refusal(one + "}\n", 0640), HasSubstr("chmod 0600"));
  EXPECT_THAT(refusal(one + ", quotas: 1}\n"), HasSubstr("quota"));
  EXPECT_THAT(refusal(one + ", share: 0}\n"), HasSubstr("share"));
  EXPECT_THAT(refusal(one + ", token_file: x}\n"), HasSubstr("either"));
  EXPECT_THAT(refusal(one + ", max_threads: 0}\n"), HasSubstr("max_threads"));
  for (const char* name : {"a/b", "..", "''", "'a\\b'", "\"a\\nb\""}) {
    EXPECT_THAT(refusal(fmt::format("tenants:\n  - {{name: {}, token: 000102030405060708090a0b0c0d0e0f}}\n", name)),
                AllOf(HasSubstr("tenants[0].name"), HasSubstr("is not the name of a folder; accepted: up to 200")))
        << name;
  }
  EXPECT_THAT(refusal(one + "}\n  - {name: a, token: 100102030405060708090a0b0c0d0e0f}\n"), HasSubstr("already"));
  EXPECT_THAT(refusal(one + "}\n  - {name: b, token: 000102030405060708090a0b0c0d0e0f}\n"),
              AllOf(HasSubstr("token of tenant 'a'"), Not(HasSubstr("0001"))));
  EXPECT_THAT(refusal("tenants:\n  - {name: a, token: tooshort}\n"),
              AllOf(HasSubstr("16"), HasSubstr("tenants.yaml:2"), Not(HasSubstr("tooshort"))));
  EXPECT_THAT(refusal("tenants:\n  - {name: a, token_file: nowhere}\n"), HasSubstr("nowhere"));
  EXPECT_THAT(refusal("tenants: []\n"), HasSubstr("tenants"));
}

}  // namespace
}  // namespace motley::ps
