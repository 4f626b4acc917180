// A small emulated network: namespaces on one bridge, each behind a link of a given bandwidth. Needs root and iproute2.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::bench {

class NetworkNamespaces {
 public:
  // `count` namespaces whose links carry `bytes_per_second` in each direction (htb, burst 32 KB), and `unshaped`
  // more behind them whose links are as fast as the machine. All use TCP's Reno. The error says what is missing where
  // that is not possible.
  static Result<std::unique_ptr<NetworkNamespaces>> create(int count, double bytes_per_second, int unshaped = 0);
  // One for each of these rates; 0: unshaped.
  static Result<std::unique_ptr<NetworkNamespaces>> create(const std::vector<double>& bytes_per_second);
  // Racks of as many such namespaces each, and behind them an unshaped one for each rack; all racks meet at one bridge,
  // each behind an uplink of its own.
  static Result<std::unique_ptr<NetworkNamespaces>> create_racks(int racks, int count_of_each, double bytes_per_second,
                                                                 double uplink_bytes_per_second);
  ~NetworkNamespaces();  // removes all of it
  NetworkNamespaces(const NetworkNamespaces&) = delete;
  NetworkNamespaces& operator=(const NetworkNamespaces&) = delete;

  std::vector<std::string> prefix(int index) const;  // the words before a command that run it in a namespace
  // The same as if on a host of its own: processes in different ones share no memory (they see no common processes).
  std::vector<std::string> host_prefix(int index) const;
  std::string address(int index) const;
  // Moves the calling thread, and no other, into a namespace: sockets that it makes from now on are there.
  Status enter(int index) const;

 private:
  NetworkNamespaces();
  Status add_space(const std::string& space);
  Status add_hub(const std::string& hub);
  Status add_host(int index, const std::string& hub, double bytes_per_second);  // 0: unshaped

  const std::string name_;
  std::vector<std::string> spaces_;  // to be removed
};

}  // namespace motley::bench
