// The cores of this process.
#pragma once

#include "motley/base/result.h"
#include "motley/cluster/cluster.h"

namespace motley::train {

int available_cores();
// Binds this process to the cores that the cluster file gives the worker; to none where it gives none.
Status pin_to_cores(const cluster::Worker& worker);

}  // namespace motley::train
