// ATen's operations on the emulated accelerator: each runs the CPU's kernel, on a stream, with tensors of the CPU that
// see the device's memory.
#pragma once

#include <ATen/core/Generator.h>

namespace motley::nn::emulated {

// Registers them for PrivateUse1, whose name is known already. Once a process.
void register_kernels();

// The generator of the CPU from which kernels draw for one of the device's.
const at::Generator& cpu_generator(const at::Generator& generator);

}  // namespace motley::nn::emulated
