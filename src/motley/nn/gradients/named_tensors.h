// What all code around libtorch shares: tensors with names, and the one place where libtorch's exceptions become errors
// as values.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "motley/base/result.h"

namespace motley::nn {

using Tensors = std::vector<at::Tensor>;

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};
// Wherever several tensors are named, their order is part of the value and the same on all ranks.
using NamedTensors = std::vector<NamedTensor>;

// The current exception, which libtorch threw, as an error with `code`; out of memory is always kUnavailable.
// Call within a catch block.
Error error_of_current_exception(ErrorCode code, const std::string& doing);

// Runs `body` and turns what libtorch throws into an error: catch_torch(code, "computing the loss", [&] {...}). A body
// may return a Result itself.
template <class Body>
auto catch_torch(ErrorCode code, const std::string& doing, Body&& body) {
  using Returned = decltype(body());
  using Caught = std::conditional_t<requires { body().error().code; }, Returned, Result<Returned>>;
  try {
    if constexpr (std::is_void_v<Returned>) {
      body();
      return Caught();
    } else {
      return Caught(body());
    }
  } catch (...) {
    return Caught(fail(error_of_current_exception(code, doing)));
  }
}

}  // namespace motley::nn
