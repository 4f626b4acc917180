// Certificates for tests, made by the openssl program.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "motley/net/certificates.h"
#include "tests/temporary_folder.h"

namespace motley::net {

class TestCertificates {
 public:
  // By `ca`, which is made with the first of them. `more`: validity and usage, as tests/make-certificate takes them.
  CertificateFiles make(const std::string& name, const std::string& alternative_names, const std::string& ca = "ca",
                        const std::string& more = "") const {
    const std::string command = fmt::format("'{}' '{}' '{}' '{}' '{}' {}", MAKE_CERTIFICATE, folder_.path.string(), ca,
                                            name, alternative_names, more);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return {path(name + ".pem"), path(name + ".key"), path(ca + ".pem")};
  }
  std::shared_ptr<const Certificates> read(const CertificateFiles& files,
                                           CertificateUse use = CertificateUse::kPeer) const {
    auto certificates = Certificates::read(files, tls_flags(), use);
    EXPECT_TRUE(certificates) << certificates.error().message;
    return certificates.value_or(nullptr);
  }
  std::string path(const std::string& file) const { return (folder_.path / file).string(); }

 private:
  TemporaryFolder folder_;
};

}  // namespace motley::net
