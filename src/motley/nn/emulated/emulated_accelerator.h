// The emulated accelerator as a device of PyTorch's, by the name "emulated": a plug-in (PrivateUse1) with memory,
// streams, events, pinned memory, a generator and all of ATen's operations, computed by the CPU's kernels. What it
// checks is in runtime.h. For tests and demonstrations on machines without an accelerator.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/nn/emulated/options.h"
#include "motley/nn/emulated/runtime.h"

namespace motley::nn::emulated {

constexpr const char* kDeviceName = "emulated";

// Makes the device known to this process's libtorch: before the first backward pass, which starts a thread for each
// device that is known. kUnavailable where another plug-in is, or memory does not suffice. Once a process; later calls
// do nothing. From then on torch's accelerator is this one, also where the machine has others.
Status enable(const Options& options);
// With what MOTLEY_EMULATED says.
Status enable();
bool is_enabled();
// Whether the variable is there: whoever asks for any accelerator means this one, too.
bool is_asked_for();
// What the variable says; empty where it is not there.
std::string given_options();
// In words: a device that was enabled with such options, in the variable's form.
std::string describe(const std::string& options);

// Of the device that was enabled.
Runtime& runtime();
// Pins memory of the host where it is, which must be mapped shared; Runtime::unpin takes it back.
Status pin(void* memory, std::size_t bytes);
// The stream that the calling thread's operations go to.
int current_stream(int device);

}  // namespace motley::nn::emulated
