// Servers of one process, with what their jobs present to them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "motley/net/secret.h"
#include "motley/ps/client/server_options.h"
#include "motley/ps/service/service.h"

namespace motley::ps {

inline const net::Secret& token() {
  static const net::Secret secret = net::Secret::generate();
  return secret;
}

// One server for each number of cores.
struct Servers {
  std::vector<std::unique_ptr<Service>> services;
  std::vector<ServerAddress> addresses;
  explicit Servers(const std::vector<int>& cores) {
    for (const int count : cores) {
      auto service = Service::start({.cores = count}, token());
      if (!service) {
        ADD_FAILURE() << service.error().message;
        return;
      }
      addresses.push_back({(*service)->endpoint(), token()});
      services.push_back(std::move(*service));
    }
  }
};

}  // namespace motley::ps
