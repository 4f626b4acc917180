// Reads, checks and writes plan.json. A stage names its layers, so that a person can move a cut by writing another
// name; what follows from the rest (equal shares) may be left out.
#include "motley/planning/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "motley/base/os/file.h"
#include "motley/serial/options.h"

namespace motley::planning {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr std::size_t kLargestFile = 64'000'000;
constexpr std::int64_t kMostDevices = 1'000'000;
constexpr std::int64_t kMostSamples = 1'000'000'000;

constexpr std::pair<const char*, Exchange> kExchanges[] = {
    {"none", Exchange::kNone}, {"ring", Exchange::kRing}, {"parameter-server", Exchange::kParameterServer}};
constexpr std::pair<const char*, Schedule> kSchedules[] = {{"1f1b", Schedule::kOneForwardOneBackward},
                                                           {"fill-drain", Schedule::kFillDrain}};

// The first refusal ends the reading; it does not leave this file.
struct Refusal {
  std::string message;
};

// One object of the file, read key by key; `close` refuses the keys that nobody asked for.
class Fields {
 public:
  Fields(const Json& json, std::string name, std::string path)
      : json_(json), name_(std::move(name)), path_(std::move(path)) {
    if (!json_.is_object()) {
      throw Refusal{
          fmt::format("{}: {} is {}; accepted: an object", name_, path_.empty() ? "the file" : path_, excerpt(json_))};
    }
  }

  bool has(const char* key) {
    asked_.insert(key);
    return json_.contains(key);
  }

  std::string text(const char* key) {
    const Json& value = at(key, "a text");
    if (!value.is_string()) {
      refuse(key, value, "a text");
    }
    return value.get<std::string>();
  }

  double number(const char* key) {
    const char* accepted = "a number of at least 0";
    const Json& value = at(key, accepted);
    if (!value.is_number() || !(value.get<double>() >= 0) || std::isinf(value.get<double>())) {
      refuse(key, value, accepted);
    }
    return value.get<double>();
  }

  std::int64_t integer(const char* key, std::int64_t min, std::int64_t max) {
    const std::string accepted = fmt::format("a whole number from {} to {}", min, max);
    const Json& value = at(key, accepted);
    // A whole number above the largest signed one is kept unsigned.
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<std::uint64_t>() <= static_cast<std::uint64_t>(max));
    if (!fits || value.get<std::int64_t>() < min || value.get<std::int64_t>() > max) {
      refuse(key, value, accepted);
    }
    return value.get<std::int64_t>();
  }

  bool boolean(const char* key) {
    const Json& value = at(key, "true or false");
    if (!value.is_boolean()) {
      refuse(key, value, "true or false");
    }
    return value.get<bool>();
  }

  template <class T, std::size_t kCount>
  T choice(const char* key, const std::pair<const char*, T> (&choices)[kCount]) {
    std::string accepted;
    for (const auto& [text, meaning] : choices) {
      accepted += fmt::format("{}'{}'", accepted.empty() ? "" : ", ", text);
    }
    const Json& value = at(key, accepted);
    for (const auto& [text, meaning] : choices) {
      if (value == text) {
        return meaning;
      }
    }
    refuse(key, value, accepted);
  }

  const Json& list(const char* key) {
    const Json& value = at(key, "a list of one or more");
    if (!value.is_array() || value.empty()) {
      refuse(key, value, "a list of one or more");
    }
    return value;
  }

  std::vector<Fields> objects(const char* key) {
    std::vector<Fields> fields;
    for (const Json& element : list(key)) {
      fields.emplace_back(element, name_, fmt::format("{}[{}]", path_of(key), fields.size()));
    }
    return fields;
  }

  Fields object(const char* key) { return {at(key, "an object"), name_, path_of(key)}; }

  // A layer by its name, or by its index from 0.
  int layer(const char* key, const std::map<std::string, int>& layers) {
    const std::string accepted = fmt::format("a name of 'layers', or a whole number from 0 to {}", layers.size() - 1);
    const Json& value = at(key, accepted);
    if (value.is_string()) {
      if (const auto found = layers.find(value.get<std::string>()); found != layers.end()) {
        return found->second;
      }
    } else if (value.is_number_integer()) {
      return static_cast<int>(integer(key, 0, static_cast<std::int64_t>(layers.size()) - 1));
    }
    refuse(key, value, accepted);
  }

  void close() const {
    for (const auto& [key, value] : json_.items()) {
      if (!asked_.contains(key)) {
        const std::string near = nearest_key(key, {asked_.begin(), asked_.end()});
        throw Refusal{fmt::format("{}: unknown key '{}'; accepted: {}{}", name_, path_of(key), fmt::join(asked_, ", "),
                                  near.empty() ? "" : "; did you mean '" + near + "'?")};
      }
    }
  }

  [[noreturn]] void refuse(const std::string& key, const Json& value, const std::string& accepted) const {
    throw Refusal{fmt::format("{}: {} is {}; accepted: {}", name_, path_of(key), excerpt(value), accepted)};
  }

 private:
  static std::string excerpt(const Json& value) {
    const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.size() <= 60 ? text : text.substr(0, 60) + "...";
  }

  std::string path_of(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

  const Json& at(const char* key, const std::string& accepted) {
    asked_.insert(key);
    const auto found = json_.find(key);
    if (found == json_.end()) {
      throw Refusal{fmt::format("{}: {} is missing; accepted: {}", name_, path_of(key), accepted)};
    }
    return *found;
  }

  const Json& json_;
  std::string name_;
  std::string path_;
  std::set<std::string> asked_;
};

// Parses, and refuses a key that an object has twice: a parser would silently keep one of both.
Json parse_json(std::string_view text, const std::string& name) {
  std::vector<std::set<std::string>> open;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      open.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open.pop_back();
    } else if (event == Json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second) {
      throw Refusal{
          fmt::format("{}: key '{}' stands twice in one object; accepted: once", name, value.get<std::string>())};
    }
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::exception& problem) {
    throw Refusal{fmt::format("{}: it is not JSON: {}", name, problem.what())};
  }
}

Stage read_stage(Fields& fields, const std::map<std::string, int>& layers) {
  Stage stage;
  stage.first_layer = fields.layer("first_layer", layers);
  stage.last_layer = fields.layer("last_layer", layers);
  std::int64_t devices = 0;
  std::size_t shares = 0;
  for (Fields& entry : fields.objects("replicas")) {
    Replicas replicas;
    replicas.type = entry.text("type");
    replicas.count = entry.has("count") ? entry.integer("count", 1, kMostDevices) : 1;
    if (entry.has("share")) {
      replicas.share = entry.number("share");
      ++shares;
    }
    entry.close();
    devices += replicas.count;
    stage.replicas.push_back(replicas);
  }
  if (shares == 0) {
    for (Replicas& replicas : stage.replicas) {
      replicas.share = 1 / static_cast<double>(devices);
    }
  } else if (shares != stage.replicas.size()) {
    fields.refuse("replicas",
                  fmt::format("{} entries with a share, {} without", shares, stage.replicas.size() - shares),
                  "a share in all of them, or in none for equal ones");
  }
  if (fields.has("exchange")) {
    stage.exchange = fields.choice("exchange", kExchanges);
  }
  if (fields.has("recompute")) {
    stage.recompute = fields.boolean("recompute");
  }
  fields.close();
  return stage;
}

Plan read(std::string_view text, const std::string& name) {
  const Json json = parse_json(text, name);
  Fields fields(json, name, "");
  fields.integer("version", kVersion, kVersion);
  Plan plan;
  plan.model = fields.text("model");
  std::map<std::string, int> layers;
  for (const Json& layer : fields.list("layers")) {
    if (!layer.is_string() || !layers.emplace(layer.get<std::string>(), static_cast<int>(layers.size())).second) {
      fields.refuse(fmt::format("layers[{}]", layers.size()), layer, "a name that no other layer has");
    }
    plan.layers.push_back(layer.get<std::string>());
  }
  plan.batch = fields.integer("batch", 1, kMostSamples);
  if (fields.has("micro_batches")) {
    plan.micro_batches = fields.integer("micro_batches", 1, plan.batch);
  }
  if (fields.has("schedule")) {
    plan.schedule = fields.choice("schedule", kSchedules);
  }
  for (Fields& stage : fields.objects("stages")) {
    plan.stages.push_back(read_stage(stage, layers));
  }
  const auto optional_text = [&](const char* key) { return fields.has(key) ? fields.text(key) : std::string(); };
  plan.cost_model = optional_text("cost_model");
  plan.method = optional_text("method");
  plan.objective = optional_text("objective");
  if (fields.has("predicted")) {
    Fields predicted = fields.object("predicted");
    plan.predicted.step_seconds = predicted.number("step_seconds");
    plan.predicted.throughput = predicted.number("throughput");
    plan.predicted.price_per_hour = predicted.number("price_per_hour");
    plan.predicted.money = predicted.number("money");
    predicted.close();
  }
  if (fields.has("measured")) {
    Fields measured = fields.object("measured");
    plan.measured = {.step_seconds = measured.number("step_seconds"),
                     .steps = measured.integer("steps", 1, kMostSamples)};
    measured.close();
  }
  if (fields.has("bound")) {
    plan.bound = fields.number("bound");
  }
  fields.close();
  return plan;
}

template <class T, std::size_t kCount>
const char* text_of(T value, const std::pair<const char*, T> (&choices)[kCount]) {
  return std::ranges::find(choices, value, &std::pair<const char*, T>::second)->first;
}

}  // namespace

const char* to_string(Exchange exchange) {
  return text_of(exchange, kExchanges);
}

const char* to_string(Schedule schedule) {
  return text_of(schedule, kSchedules);
}

Result<Plan> read_plan(const std::filesystem::path& file) {
  MOTLEY_ASSIGN(const std::string text, read_file(file, kLargestFile));
  return parse_plan(text, file.string());
}

Result<Plan> parse_plan(std::string_view text, const std::string& name) {
  try {
    Plan plan = read(text, name);
    MOTLEY_TRY(validate(plan, name));
    return plan;
  } catch (const Refusal& refusal) {
    return fail(ErrorCode::kInvalidInput, "{}", refusal.message);
  }
}

std::string to_json(const Plan& plan) {
  const auto layer = [&](int index) { return plan.layers.at(static_cast<std::size_t>(index)); };
  Json stages = Json::array();
  for (const Stage& stage : plan.stages) {
    std::int64_t devices = 0;
    for (const Replicas& replicas : stage.replicas) {
      devices += replicas.count;
    }
    const bool equal = std::ranges::all_of(
        stage.replicas, [&](const Replicas& each) { return each.share == 1 / static_cast<double>(devices); });
    Json entries = Json::array();
    for (const Replicas& replicas : stage.replicas) {
      Json entry = {{"type", replicas.type}, {"count", replicas.count}};
      if (!equal) {
        entry["share"] = replicas.share;
      }
      entries.push_back(entry);
    }
    stages.push_back({{"first_layer", layer(stage.first_layer)},
                      {"last_layer", layer(stage.last_layer)},
                      {"replicas", entries},
                      {"exchange", to_string(stage.exchange)},
                      {"recompute", stage.recompute}});
  }
  Json json = {{"version", kVersion},
               {"model", plan.model},
               {"layers", plan.layers},
               {"batch", plan.batch},
               {"micro_batches", plan.micro_batches},
               {"schedule", to_string(plan.schedule)},
               {"stages", stages},
               {"cost_model", plan.cost_model},
               {"method", plan.method},
               {"objective", plan.objective},
               {"predicted",
                {{"step_seconds", plan.predicted.step_seconds},
                 {"throughput", plan.predicted.throughput},
                 {"price_per_hour", plan.predicted.price_per_hour},
                 {"money", plan.predicted.money}}}};
  if (plan.measured) {
    json["measured"] = {{"step_seconds", plan.measured->step_seconds}, {"steps", plan.measured->steps}};
  }
  if (plan.bound) {
    json["bound"] = *plan.bound;
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status validate(const Plan& plan, const std::string& name) {
  const auto refuse = [&](const std::string& field, const auto& value, const std::string& accepted) {
    return fail(ErrorCode::kInvalidInput, "{}: {} is {}; accepted: {}", name, field, value, accepted);
  };
  if (plan.batch < 1 || plan.batch > kMostSamples) {
    return refuse("batch", plan.batch, fmt::format("a whole number from 1 to {}", kMostSamples));
  }
  if (plan.micro_batches < 1 || plan.micro_batches > plan.batch) {
    return refuse("micro_batches", plan.micro_batches, fmt::format("1 to the batch of {}", plan.batch));
  }
  const int layers = static_cast<int>(plan.layers.size());
  std::set<std::string> names;
  for (int layer = 0; layer < layers; ++layer) {
    const std::string& text = plan.layers[static_cast<std::size_t>(layer)];
    if (!names.insert(text).second) {
      return refuse(fmt::format("layers[{}]", layer), "'" + text + "'", "a name that no other layer has");
    }
  }
  const auto describe_layer = [&](int layer) {
    return layer >= 0 && layer < layers ? fmt::format("{} ('{}')", layer, plan.layers[static_cast<std::size_t>(layer)])
                                        : std::to_string(layer);
  };

  int next = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    const std::string path = fmt::format("stages[{}].", s);
    if (stage.first_layer != next || next >= layers) {
      return refuse(path + "first_layer", describe_layer(stage.first_layer),
                    next < layers ? describe_layer(next) + ", the first layer that no stage before it has"
                                  : "no further stage, as the stages before it have all layers");
    }
    if (stage.last_layer < next || stage.last_layer >= layers) {
      return refuse(path + "last_layer", describe_layer(stage.last_layer),
                    fmt::format("{} to {}", describe_layer(next), describe_layer(layers - 1)));
    }
    next = stage.last_layer + 1;

    std::int64_t devices = 0;
    double shares = 0;
    for (std::size_t r = 0; r < stage.replicas.size(); ++r) {
      const Replicas& replicas = stage.replicas[r];
      const std::string entry = fmt::format("{}replicas[{}].", path, r);
      if (replicas.type.empty()) {
        return refuse(entry + "type", "''", "the name of a device type");
      }
      if (replicas.count < 1 || replicas.count > kMostDevices) {
        return refuse(entry + "count", replicas.count, fmt::format("a whole number from 1 to {}", kMostDevices));
      }
      if (!(replicas.share > 0 && replicas.share <= 1)) {
        return refuse(entry + "share", replicas.share, "a number above 0, up to 1");
      }
      devices += replicas.count;
      shares += static_cast<double>(replicas.count) * replicas.share;
    }
    if (devices == 0) {
      return refuse(path + "replicas", "empty", "one or more device types");
    }
    if (std::abs(shares - 1) > 1e-6) {
      return refuse(path + "replicas", fmt::format("of shares whose sum (count times share) is {}", shares),
                    "a sum of 1");
    }
    if (devices > 1 && stage.exchange == Exchange::kNone) {
      return refuse(path + "exchange", "'none'",
                    fmt::format("'ring' or 'parameter-server', as the stage has {} devices", devices));
    }
  }
  if (next != layers || layers == 0) {
    return refuse("stages", next == 0 ? "empty" : fmt::format("done after layer {}", describe_layer(next - 1)),
                  layers == 0 ? "a plan of one or more layers"
                              : fmt::format("stages up to layer {}", describe_layer(layers - 1)));
  }

  for (const auto& [field, value] : {std::pair{"predicted.step_seconds", plan.predicted.step_seconds},
                                     {"predicted.throughput", plan.predicted.throughput},
                                     {"predicted.price_per_hour", plan.predicted.price_per_hour},
                                     {"predicted.money", plan.predicted.money},
                                     {"measured.step_seconds", plan.measured.value_or(Measured{}).step_seconds},
                                     {"bound", plan.bound.value_or(0)}}) {
    if (!(value >= 0) || std::isinf(value)) {
      return refuse(field, value, "a number of at least 0");
    }
  }
  return {};
}

}  // namespace motley::planning
