#include "motley/train/job/gradient_sync_spec.h"

namespace motley::train {

using enum OptionKind;

const OptionTable<GradientSyncSpec>& GradientSyncSpec::options() {
  static const OptionTable<GradientSyncSpec> options = {
      {choice("method",
              "gradient synchronisation: ring (all-reduce, in shared memory where that is possible) or "
              "parameter-server; auto: ring, or what is measured to be faster where gradient_sync.servers are given",
              {"auto", "ring", "parameter-server", "shared-memory", "tcp-ring"}, {{"ps", "parameter-server"}}),
       &GradientSyncSpec::method},
      {choice("comm_dtype",
              "type on the wire between hosts; parameter-server only: int8, top-k (what a gradient leaves out goes "
              "with the next one), or auto: what of float32, bfloat16 and int8 pays",
              {"float32", "bfloat16", "float16", "int8", "top-k", "auto"}),
       &GradientSyncSpec::comm_dtype},
      {{"top_k", kReal, "top-k: the fraction of a gradient's values that is sent", 1e-6, 0.5},
       &GradientSyncSpec::top_k},
      {{"bucket_size", kBytes, "gradients are synchronised in buckets of about this size", 4096},
       &GradientSyncSpec::bucket_size},
      {choice("consistency",
              "parameter-server: whether workers take each step together (bsp), may be gradient_sync.staleness steps "
              "ahead of the slowest (ssp), or any number of steps (async)",
              {"bsp", "ssp", "async"}),
       &GradientSyncSpec::consistency},
      {{"staleness", kInteger,
        "ssp: steps that a worker may be ahead of the slowest, 0 is bsp; async: likewise, but 0 sets no bound", 0,
        1 << 20},
       &GradientSyncSpec::staleness},
      {{"servers", kText,
        "parameter-server, auto: servers to use, 'host:port, host:port'; empty: with parameter-server one is started "
        "on this machine for the job"},
       &GradientSyncSpec::servers},
      {{"token_file", kPath,
        "parameter-server, auto: file (mode 0600) with the servers' token; empty: that of the variable "
        "MOTLEY_TOKEN_FILE"},
       &GradientSyncSpec::token_file},
      {{"tenant", kText, "parameter-server: whom the servers' token belongs to, where they tell tenants apart"},
       &GradientSyncSpec::tenant},
      {choice("placement",
              "parameter-server: where gradients are summed: central at the first server, sharded over all, colocated "
              "beside the workers, hierarchical by rack first; auto: sharded, or with gradient_sync.racks what "
              "measured links make faster",
              {"auto", "central", "sharded", "colocated", "hierarchical"}),
       &GradientSyncSpec::placement},
      {{"racks", kIntegers, "parameter-server: for each worker which of gradient_sync.servers, from 0, is in its rack",
        0},
       &GradientSyncSpec::racks},
      {{"server_threads", kInteger,
        "parameter-server: threads of the server that is started for the job; 0: one a core, colocated: one", 0, 1024},
       &GradientSyncSpec::server_threads},
      {{"chunk_size", kBytes, "parameter-server: gradients are summed in chunks of this size", 64, 1 << 20},
       &GradientSyncSpec::chunk_size},
      {{"overlap", kBoolean,
        "synchronise finished buckets while backward still runs; copy to and from GPUs while they compute"},
       &GradientSyncSpec::overlap},
  };
  return options;
}

Status GradientSyncSpec::check() const {
  const bool is_served = method == "parameter-server";
  const bool is_together = consistency == "bsp";
  if (!is_together && !is_served) {
    return fail(ErrorCode::kInvalidInput,
                "gradient_sync.consistency: {} needs gradient_sync.method parameter-server; accepted with "
                "gradient_sync.method {}: bsp",
                consistency, method);
  }
  if (is_together && staleness > 0) {
    return fail(ErrorCode::kInvalidInput,
                "gradient_sync.staleness: {} is given, but gradient_sync.consistency is bsp; accepted: 0, or "
                "gradient_sync.consistency ssp or async",
                staleness);
  }
  if (comm_dtype != "int8" && comm_dtype != "top-k" && comm_dtype != "auto") return {};
  if (!is_served) {
    return fail(ErrorCode::kInvalidInput,
                "gradient_sync.comm_dtype: {} needs gradient_sync.method parameter-server; accepted with {}: "
                "float32 and bfloat16",
                comm_dtype, method);
  }
  if (!is_together) {
    return fail(ErrorCode::kInvalidInput,
                "gradient_sync.comm_dtype: {} needs all workers at the same step; accepted with "
                "gradient_sync.consistency {}: float32, bfloat16 and float16",
                comm_dtype, consistency);
  }
  return {};
}

}  // namespace motley::train
