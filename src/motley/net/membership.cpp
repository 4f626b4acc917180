// What a membership says about itself.
#include "motley/net/membership.h"

#include <algorithm>

namespace motley::net {

bool Membership::on_one_host() const {
  return std::ranges::all_of(members, [this](const Member& member) { return member.host_id == members[0].host_id; });
}

}  // namespace motley::net
