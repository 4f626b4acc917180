// Where a parameter server listens, and the token that lets a job in.
#pragma once

#include "motley/net/secret.h"
#include "motley/net/socket.h"

namespace motley::ps {

struct ServerAddress {
  net::Endpoint endpoint;
  net::Secret token;
};

}  // namespace motley::ps
