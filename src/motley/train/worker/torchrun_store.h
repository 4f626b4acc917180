// torchrun's store (c10d::TCPStore), where its ranks tell each other how to meet.
#pragma once

#include "motley/train/launch/role.h"

namespace motley::train {

Result<std::unique_ptr<KeyValueStore>> open_torchrun_store(const StoreAddress& address);

}  // namespace motley::train
