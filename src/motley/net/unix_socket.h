// Sockets that are a file, for whoever may open it on this machine.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "motley/base/clock.h"
#include "motley/base/os/descriptor.h"
#include "motley/base/result.h"

namespace motley::net {

// A listening socket that is this file until remove_socket, of mode 0600, or, with a `group`, 0660 and that group's.
// The socket of a process that has ended is replaced. Errors: kUnavailable, naming the process, where one listens;
// kInvalidInput where the path is too long or is something else than a socket.
Result<Descriptor> listen_at_path(const std::string& path, std::optional<gid_t> group = {});
// For who listens there, before the listener is closed.
void remove_socket(const std::string& path);
// Waits at most until the deadline where many wait before it.
Result<Descriptor> connect_to_path(const std::string& path, const Deadline& deadline);

// Whose process is at the other end; -1, which is nobody, where that is not known.
uid_t peer_user(const Descriptor& socket);

}  // namespace motley::net
