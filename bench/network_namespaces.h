// A small emulated network: namespaces on one bridge, each behind a link of a given bandwidth. Needs root and iproute2.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::bench {

class NetworkNamespaces {
 public:
  // `count` namespaces whose links carry `bytes_per_second` in each direction (tc tbf, burst 64 KB), and `unshaped`
  // more behind them whose links are as fast as the machine. The error says what is missing where that is not possible.
  static Result<std::unique_ptr<NetworkNamespaces>> create(int count, double bytes_per_second, int unshaped = 0);
  ~NetworkNamespaces();  // removes all of it
  NetworkNamespaces(const NetworkNamespaces&) = delete;
  NetworkNamespaces& operator=(const NetworkNamespaces&) = delete;

  std::vector<std::string> prefix(int index) const;  // the words before a command that run it in a namespace
  // The same as if on a host of its own: processes in different ones share no memory (they see no common processes).
  std::vector<std::string> host_prefix(int index) const;
  std::string address(int index) const;

 private:
  NetworkNamespaces(std::string name, int count) : name_(std::move(name)), count_(count) {}
  std::string name_;
  int count_;
};

}  // namespace motley::bench
