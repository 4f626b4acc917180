// What keys of several specs say together.
#include "motley/base/os/file.h"
#include "motley/model/model_names.h"
#include "motley/train/job/job.h"

namespace motley::train {
namespace {

// Where workers are at different steps, nothing may need the gradient or the step of all of them.
Status check_asynchronous(const Job& job) {
  const std::string& consistency = job.gradient_sync.consistency;
  if (consistency == "bsp") return {};
  if (job.max_grad_norm > 0) {
    return fail(ErrorCode::kInvalidInput,
                "max_grad_norm: {} needs the gradient of all workers; accepted with gradient_sync.consistency: {}: 0, "
                "as the server applies each worker's gradient by itself",
                job.max_grad_norm, consistency);
  }
  if (job.batch_split.mode == "work-queue") {
    return fail(ErrorCode::kInvalidInput,
                "batch_split.mode: work-queue needs all workers at the same step; accepted with "
                "gradient_sync.consistency: {}: dynamic, equal, fixed or replay",
                consistency);
  }
  return {};
}

Status check_synthetic(const Job& job) {
  if (!is_synthetic(job)) return {};
  const auto needs = [](const std::string& text) {
    return fail(ErrorCode::kInvalidInput, "{} with model.name synthetic", text);
  };
  if (job.model.path.empty()) return needs("model.path: empty; accepted: the profile to take it from,");
  if (job.execution.plan.empty()) return needs("plan: none; accepted: a plan file or auto");
  if (job.model.dtype != "float32") return needs(fmt::format("model.dtype: {}; accepted: float32", job.model.dtype));
  return {};
}

// Whether the network reads what the data has: tokens, categories, or neither.
Status check_inputs_of_model(const Job& job) {
  const std::string& model = job.model.name;
  const std::string& data = job.data.name;
  if (model == "transformer" && data != "text") {
    return fail(ErrorCode::kInvalidInput,
                "model.name: transformer reads tokens; accepted with it: data.name text, not {}", data);
  }
  if (model == "torchscript") return {};
  if (data == "text" && model != "transformer") {
    return fail(ErrorCode::kInvalidInput,
                "model.name: {} reads no tokens; accepted with data.name text: transformer, torchscript", model);
  }
  const bool needs_categories = model::is_ctr_model(model);
  const bool has_categories = data == "criteo" || data == "clicks" || !job.data.categorical_columns.empty();
  if (needs_categories && !has_categories) {
    return fail(ErrorCode::kInvalidInput,
                "data.name: {} has no categories for {} to look up; accepted: csv with data.categorical_columns, "
                "criteo, clicks",
                data, model);
  }
  if (has_categories && !needs_categories) {
    return fail(ErrorCode::kInvalidInput,
                "model.name: {} looks no categories up; accepted with this data: ctrdnn, 2emb, matchnet, nce", model);
  }
  return {};
}

Status check_served_embeddings(const Job& job) {
  const auto needs = [](const std::string& key, const std::string& given, const std::string& accepted) {
    return fail(ErrorCode::kInvalidInput, "{}: {}; accepted with embedding.placement server: {}", key, given, accepted);
  };
  if (job.gradient_sync.consistency != "bsp") {
    return needs("gradient_sync.consistency", job.gradient_sync.consistency, "bsp");
  }
  if (job.max_grad_norm > 0) {
    return needs("max_grad_norm", fmt::format("{}", job.max_grad_norm), "0, as servers update the embeddings");
  }
  if (job.gradient_sync.placement == "colocated" || !job.gradient_sync.racks.empty()) {
    return needs("gradient_sync.placement", job.gradient_sync.placement,
                 "servers that are not beside workers, without racks");
  }
  const EmbeddingSpec& embedding = job.embedding;
  if (embedding.max_staleness > 0 && embedding.cache_rows == 0) {
    return fail(ErrorCode::kInvalidInput,
                "embedding.max_staleness: {} is given, but embedding.cache_rows is 0; accepted: 0, or "
                "embedding.cache_rows that workers keep so long",
                embedding.max_staleness);
  }
  if (embedding.cache_rows > 0 && embedding.max_staleness == 0) {
    return fail(ErrorCode::kInvalidInput,
                "embedding.cache_rows: {} is given, but embedding.max_staleness is 0, so that no step would use them "
                "again; accepted: 0, or embedding.max_staleness of 1 or more",
                embedding.cache_rows);
  }
  return {};
}

Status check_replicated_embeddings(const EmbeddingSpec& embedding) {
  const auto needs = [](const std::string& key, const std::string& accepted) {
    return fail(ErrorCode::kInvalidInput,
                "{}: accepted with embedding.placement replicated: {}, as a worker has all rows in memory", key,
                accepted);
  };
  if (embedding.memory > 0) return needs("embedding.memory", "0");
  if (embedding.comm_dtype != "float32") return needs("embedding.comm_dtype", "float32");
  if (embedding.cache_rows > 0 || embedding.max_staleness > 0) return needs("embedding.cache_rows", "0");
  return {};
}

}  // namespace

Status check_job(const Job& job) {
  for (const auto& [key, name] :
       {std::pair{"name", &job.name}, std::pair{"gradient_sync.tenant", &job.gradient_sync.tenant}}) {
    if (const Status plain = check_folder_name(*name); !plain) return fail(plain.error().within(key));
  }
  MOTLEY_TRY(job.optimizer.check());
  MOTLEY_TRY(job.gradient_sync.check());
  MOTLEY_TRY(check_asynchronous(job));
  MOTLEY_TRY(job.model.check());
  MOTLEY_TRY(check_synthetic(job));
  MOTLEY_TRY(job.batch_split.check());
  MOTLEY_TRY(job.execution.check());
  if (job.batch_split.mode == "fixed" && job.batch_split.fixed.empty() && job.execution.plan.empty()) {
    return fail(ErrorCode::kInvalidInput,
                "batch_split.fixed: batch_split.mode fixed needs the samples of each worker, such as [64, 128]");
  }
  MOTLEY_TRY(job.training.check());
  MOTLEY_TRY(check_inputs_of_model(job));
  MOTLEY_TRY(job.data.check());
  if (!model::is_ctr_model(job.model.name)) return {};
  return has_served_table(job) ? check_served_embeddings(job) : check_replicated_embeddings(job.embedding);
}

bool is_synthetic(const Job& job) {
  return job.model.name == model::kSyntheticModel;
}

bool has_served_table(const Job& job) {
  return model::is_ctr_model(job.model.name) && job.embedding.placement == "server";
}

}  // namespace motley::train
