// The extension module `motley._motley`: what the Python package has of the C++ library.
#include "motley/bind/parts.h"

PYBIND11_MODULE(_motley, module) {
  module.doc() = "Motley's C++ library, for the package motley.";
  module.attr("version") = MOTLEY_VERSION;
  module.attr("torch_version") = MOTLEY_TORCH_VERSION;
  motley::bind::add_backend(module);
  motley::bind::add_batch_split(module);
  motley::bind::add_commands(module);
  motley::bind::add_gradient_hook(module);
  motley::bind::add_parameter_server(module);  // whose classes the parts below take
  motley::bind::add_embedding_tables(module);
  motley::bind::add_emulated_accelerator(module);
  motley::bind::add_planning(module);
  motley::bind::add_process_pacer(module);
  motley::bind::add_served_parameters(module);
  motley::bind::add_stage_channels(module);
}
