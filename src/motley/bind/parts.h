// The parts of the extension module `motley._motley`, each of which adds its classes and functions, and how errors as
// values become Python's exceptions: wrong input a ValueError, the rest a RuntimeError, with the message as it is.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "motley/base/result.h"

namespace motley::bind {

void add_backend(pybind11::module_& module);
void add_batch_split(pybind11::module_& module);
void add_commands(pybind11::module_& module);
void add_embedding_tables(pybind11::module_& module);
void add_emulated_accelerator(pybind11::module_& module);
void add_gradient_hook(pybind11::module_& module);
void add_parameter_server(pybind11::module_& module);
void add_planning(pybind11::module_& module);
void add_process_pacer(pybind11::module_& module);
void add_served_parameters(pybind11::module_& module);
void add_stage_channels(pybind11::module_& module);

[[noreturn]] inline void raise(const Error& error) {
  if (error.code == ErrorCode::kInvalidInput) throw pybind11::value_error(error.message);
  throw std::runtime_error(error.message);
}

inline void check(const Status& status) {
  if (!status) raise(status.error());
}

// The value, or the error as an exception.
template <class T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(*result);
}

}  // namespace motley::bind
