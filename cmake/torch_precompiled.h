// The one precompiled header of the modules that include libtorch: parsing it costs most of their compile time.
#pragma once
#include <torch/torch.h>
