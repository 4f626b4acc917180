// Keyed proofs and random bytes, from OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "motley/net/session.h"

namespace motley::net {

inline constexpr std::size_t kProofBytes = 32;
using Proof = std::array<std::byte, kProofBytes>;

// HMAC-SHA256 under the secret of the parts one after another. The caller makes the concatenation unambiguous.
Proof prove(const Secret& secret, std::initializer_list<std::span<const std::byte>> parts);
// Compares in a time that does not depend on where they differ.
bool same_proof(std::span<const std::byte> a, std::span<const std::byte> b);

// The content of a regular file that nobody but this user can read (mode 0600 or stricter) and that is ours.
Result<std::string> read_private_file(const std::filesystem::path& path, std::size_t limit);

// From the operating system's generator; stops the process in the case that it has none.
void fill_random(std::span<std::byte> bytes);

}  // namespace motley::net
