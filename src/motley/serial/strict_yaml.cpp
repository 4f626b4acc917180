#include "motley/serial/strict_yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ranges>
#include <set>
#include <sstream>

#include "motley/base/text.h"
#include "motley/base/units.h"
#include "motley/serial/options.h"

namespace motley::cluster {
namespace {

constexpr std::size_t kMaxBytes = 1'000'000;
constexpr int kMaxValues = 100'000;
constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxProblemsShown = 20;

// ", did you mean 'name'?" where one of the names is close to the word.
std::string suggestion(const std::string& word, const std::vector<std::string>& names) {
  const bool guessable = word.size() > 2 && word.size() <= 64;
  const std::string nearest = guessable ? nearest_key(word, names) : "";
  return nearest.empty() ? "" : fmt::format(", did you mean '{}'?", nearest);
}

// Whether anything follows the text's first document. The library's LoadAll would tell, but does not end on some texts
// that are not YAML (yaml-cpp issue 1040), and its Load ignores the rest in silence.
bool has_second_document(const std::string& text) {
  struct Ignore : YAML::EventHandler {
    using Mark = YAML::Mark;
    using Anchor = YAML::anchor_t;
    using Style = YAML::EmitterStyle::value;
    void OnDocumentStart(const Mark&) override {}
    void OnDocumentEnd() override {}
    void OnNull(const Mark&, Anchor) override {}
    void OnAlias(const Mark&, Anchor) override {}
    void OnScalar(const Mark&, const std::string&, Anchor, const std::string&) override {}
    void OnSequenceStart(const Mark&, const std::string&, Anchor, Style) override {}
    void OnSequenceEnd() override {}
    void OnMapStart(const Mark&, const std::string&, Anchor, Style) override {}
    void OnMapEnd() override {}
  } ignore;
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  return parser.HandleNextDocument(ignore) && static_cast<bool>(parser);
}

std::string shortened(const std::string& text) {
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

// What one kind of number is called, and how it is read and written.
template <class T>
struct Kind {
  std::string_view name;
  std::optional<T> (*parse)(std::string_view);
  std::string (*format)(T) = [](T value) { return fmt::format("{}", value); };

  std::string accepted(const Rule<T>& rule) const {
    const bool has_min = rule.min > std::numeric_limits<T>::lowest();
    const bool has_max = rule.max < std::numeric_limits<T>::max();
    std::string text(name);
    if (rule.above) {
      text += " above " + format(*rule.above) + (has_max ? " and at most " + format(rule.max) : "");
    } else if (has_min && has_max) {
      text += fmt::format(" from {} to {}", format(rule.min), format(rule.max));
    } else {
      text += has_min ? " of at least " + format(rule.min) : has_max ? " of at most " + format(rule.max) : "";
    }
    return text;
  }
  std::optional<T> read(std::string_view text, const Rule<T>& rule) const {
    const std::optional<T> value = parse(text);
    const bool holds = value && *value >= rule.min && *value <= rule.max && (!rule.above || *value > *rule.above);
    return holds ? value : std::nullopt;
  }
};

template <Result<double> (*parse)(std::string_view)>
std::optional<double> parse_quantity(std::string_view text) {
  const Result<double> quantity = parse(text);
  return quantity && std::isfinite(*quantity) ? std::optional<double>(*quantity) : std::nullopt;
}

constexpr Kind<std::int64_t> kInteger{"an integer", parse_number<std::int64_t>};
constexpr Kind<double> kNumber{"a number", parse_number<double>};
constexpr Kind<double> kSeconds{kAcceptedSeconds, parse_quantity<parse_seconds>, exact_seconds};
constexpr Kind<double> kBytes{kAcceptedBytes, parse_quantity<parse_bytes>, exact_bytes};
constexpr Kind<double> kRate{kAcceptedBytesPerSecond, parse_quantity<parse_bytes_per_second>, exact_bytes_per_second};

}  // namespace

struct StrictYaml::Value {
  Type type = Type::kNull;
  int line = 0;                 // from 1
  std::string key;              // of an entry in a mapping
  std::string text;             // of a scalar
  std::vector<Value> children;  // of a list or mapping

  const Value* child(std::string_view name) const {
    const auto found = std::ranges::find(children, name, &Value::key);
    return type == Type::kMapping && found != children.end() ? &*found : nullptr;
  }
  const char* type_name() const {
    static constexpr const char* kNames[] = {"empty", "a plain value", "a list", "a mapping"};
    return kNames[static_cast<std::size_t>(type)];
  }
};

struct StrictYaml::Document {
  std::string name;
  Value root;
  std::map<std::string, std::set<std::string>> known;  // keys that were asked for, by the path of their mapping
  std::set<std::string> broken;                        // paths of values of a wrong kind: nothing more is said of them
  std::multimap<int, std::string> problems;            // by line

  // Fills `value` from the library's node, and refuses what would be ambiguous or without end (an alias of itself).
  Status fill(const YAML::Node& node, int depth, int& count, Value& value) const;
  Status fill(const std::string& text);
  std::string where(const Value* value) const {
    return value != nullptr && value->line > 0 ? fmt::format("{}:{}", name, value->line) : name;
  }
  // Adds a problem for every key below `value` that was never asked for.
  void check_known(const Value& value, const std::string& path, std::multimap<int, std::string>& found) const;
};

Status StrictYaml::Document::fill(const YAML::Node& node, int depth, int& count, Value& value) const {
  value.line = node.Mark().line + 1;
  if (depth > kMaxDepth || ++count > kMaxValues) {
    return fail(ErrorCode::kInvalidInput, "{}: too deep or too long; accepted: up to {} levels and {} values",
                where(&value), kMaxDepth, kMaxValues);
  }
  switch (node.Type()) {
    case YAML::NodeType::Undefined:
    case YAML::NodeType::Null:
      return {};
    case YAML::NodeType::Scalar:
      value.type = Type::kScalar;
      value.text = node.Scalar();
      return {};
    case YAML::NodeType::Sequence:
      value.type = Type::kList;
      for (const YAML::Node& element : node) MOTLEY_TRY(fill(element, depth + 1, count, value.children.emplace_back()));
      return {};
    case YAML::NodeType::Map:
      break;
  }
  value.type = Type::kMapping;
  std::set<std::string> seen;
  for (const auto& entry : node) {
    Value& child = value.children.emplace_back();
    if (!entry.first.IsScalar()) {
      return fail(ErrorCode::kInvalidInput, "{}: a key is a list or mapping; accepted: a plain name", where(&value));
    }
    MOTLEY_TRY(fill(entry.second, depth + 1, count, child));
    child.key = entry.first.Scalar();
    child.line = entry.first.Mark().line + 1;
    if (!seen.insert(child.key).second) {
      return fail(ErrorCode::kInvalidInput, "{}: the key '{}' is there twice", where(&child), shortened(child.key));
    }
  }
  return {};
}

Status StrictYaml::Document::fill(const std::string& text) {
  try {
    if (has_second_document(text)) {
      return fail(ErrorCode::kInvalidInput, "{}: goes on after the end of its first YAML document; accepted: one",
                  name);
    }
    int count = 0;
    return fill(YAML::Load(text), 0, count, root);
  } catch (const YAML::Exception& problem) {
    root.line = problem.mark.line + 1;
    return fail(ErrorCode::kInvalidInput, "{}: not YAML: {}", where(&root), problem.msg);
  }
}

void StrictYaml::Document::check_known(const Value& value, const std::string& path,
                                       std::multimap<int, std::string>& found) const {
  if (broken.contains(path)) return;
  if (value.type == Type::kList) {
    for (std::size_t i = 0; i < value.children.size(); ++i) {
      check_known(value.children[i], fmt::format("{}[{}]", path, i), found);
    }
  }
  if (value.type != Type::kMapping) return;
  std::vector<std::string> names;
  if (const auto asked = known.find(path); asked != known.end())
    names.assign(asked->second.begin(), asked->second.end());
  for (const Value& child : value.children) {
    const std::string child_path = path.empty() ? child.key : path + "." + child.key;
    if (std::ranges::find(names, child.key) != names.end()) {
      check_known(child, child_path, found);
      continue;
    }
    found.emplace(child.line, fmt::format("{}: {} is an unknown key{}; accepted here: {}", where(&child),
                                          shortened(child_path), suggestion(child.key, names),
                                          names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
  }
}

Result<StrictYaml> StrictYaml::parse(std::string_view text, const std::string& name) {
  if (text.size() > kMaxBytes) {
    return fail(ErrorCode::kInvalidInput, "{}: {} bytes; accepted: up to {}", name, text.size(), kMaxBytes);
  }
  auto document = std::make_shared<Document>();
  document->name = name;
  MOTLEY_TRY(document->fill(std::string(text)));
  const Value* root = &document->root;
  if (root->type != Type::kMapping && root->type != Type::kNull) {
    return fail(ErrorCode::kInvalidInput, "{}: {} at the top; accepted: 'key: value' lines", document->where(root),
                root->type_name());
  }
  return StrictYaml(std::move(document), "", root);
}

std::string StrictYaml::key_path(std::string_view key) const {
  return path_.empty() || key.empty() ? path_ + std::string(key) : path_ + "." + std::string(key);
}

const StrictYaml::Value* StrictYaml::find(std::string_view key) const {
  const Value* value = value_;
  std::string path = path_;
  while (!key.empty()) {
    if (value != nullptr && value->type != Type::kMapping && value->type != Type::kNull) {
      note_broken(*value, path, fmt::format("is {}; accepted: a mapping", value->type_name()));
      value = nullptr;
    }
    const std::size_t dot = std::min(key.find('.'), key.size());
    const std::string name(key.substr(0, dot));
    key.remove_prefix(std::min(dot + 1, key.size()));
    document_->known[path].insert(name);
    value = value == nullptr ? nullptr : value->child(name);
    path += path.empty() ? name : "." + name;
  }
  return value == nullptr || value->type == Type::kNull ? nullptr : value;
}

void StrictYaml::note(const Value* near, const std::string& path, const std::string& sentence) const {
  for (const std::string& broken : document_->broken) {
    if (path.starts_with(broken) &&
        (path.size() == broken.size() || path[broken.size()] == '.' || path[broken.size()] == '[')) {
      return;
    }
  }
  document_->problems.emplace(near == nullptr ? 0 : near->line, fmt::format("{}: {}{}{}", document_->where(near), path,
                                                                            path.empty() ? "" : " ", sentence));
}

void StrictYaml::note_broken(const Value& value, const std::string& path, const std::string& sentence) const {
  note(&value, path, sentence);
  document_->broken.insert(path);
}

const StrictYaml::Value* StrictYaml::find(std::string_view key, Type type, bool required,
                                          const std::string& accepted) const {
  const Value* value = find(key);
  if (value == nullptr && required) note(value_, key_path(key), "is missing; accepted: " + accepted);
  if (value == nullptr || value->type == type) return value;
  note_broken(*value, key_path(key), fmt::format("is {}; accepted: {}", value->type_name(), accepted));
  return nullptr;
}

const std::vector<StrictYaml::Value>& StrictYaml::elements(std::string_view key, const ListRule& rule,
                                                           const std::string& accepted) const {
  static const std::vector<Value> none;
  const std::string sizes = fmt::format("from {} to {} of them", rule.min_size, rule.max_size);
  const Value* value = find(key, Type::kList, rule.min_size > 0, fmt::format("a list of {}, {}", accepted, sizes));
  if (value == nullptr) return none;
  const std::size_t size = value->children.size();
  if (size >= rule.min_size && size <= rule.max_size) return value->children;
  note_broken(*value, key_path(key), fmt::format("has {} elements; accepted: {}", size, sizes));
  return none;
}

template <class T, class Kind>
T StrictYaml::read(std::string_view key, const Rule<T>& rule, const Kind& kind) const {
  const std::string accepted = kind.accepted(rule);
  if (const Value* scalar = find(key, Type::kScalar, !rule.fallback, accepted)) {
    if (const std::optional<T> value = kind.read(scalar->text, rule)) return *value;
    refuse(key, fmt::format("is '{}'; accepted: {}", shortened(scalar->text), accepted));
  }
  return rule.fallback.value_or(T{});
}

bool StrictYaml::has(std::string_view key) const {
  return find(key) != nullptr;
}

bool StrictYaml::is_section(std::string_view key) const {
  const Value* value = find(key);
  return value != nullptr && value->type == Type::kMapping;
}

std::string StrictYaml::text(std::string_view key, const std::optional<std::string>& fallback) const {
  const Value* scalar = find(key, Type::kScalar, !fallback, "a text");
  if (scalar == nullptr) return fallback.value_or("");
  if (scalar->text.empty()) refuse(key, "is ''; accepted: a text that is not empty");
  return scalar->text;
}

bool StrictYaml::boolean(std::string_view key, std::optional<bool> fallback) const {
  std::optional<std::string> name;
  if (fallback) name = *fallback ? "true" : "false";
  return choice(key, {"true", "false"}, name) == "true";
}

double StrictYaml::number(std::string_view key, const NumberRule& rule) const {
  return read(key, rule, kNumber);
}

std::int64_t StrictYaml::integer(std::string_view key, const IntegerRule& rule) const {
  return read(key, rule, kInteger);
}

double StrictYaml::seconds(std::string_view key, const NumberRule& rule) const {
  return read(key, rule, kSeconds);
}

double StrictYaml::bytes(std::string_view key, const NumberRule& rule) const {
  return read(key, rule, kBytes);
}

double StrictYaml::bytes_per_second(std::string_view key, const NumberRule& rule) const {
  return read(key, rule, kRate);
}

std::string StrictYaml::choice(std::string_view key, const std::vector<std::string>& names,
                               const std::optional<std::string>& fallback) const {
  const std::string accepted = fmt::format("{}", fmt::join(names, ", "));
  const Value* scalar = find(key, Type::kScalar, !fallback, accepted);
  if (scalar == nullptr) return fallback.value_or("");
  if (std::ranges::find(names, scalar->text) != names.end()) return scalar->text;
  refuse(key,
         fmt::format("is '{}'{}; accepted: {}", shortened(scalar->text), suggestion(scalar->text, names), accepted));
  return fallback.value_or("");
}

std::vector<std::int64_t> StrictYaml::integers(std::string_view key, const IntegerRule& rule,
                                               const ListRule& list) const {
  const std::string accepted = kInteger.accepted(rule);
  std::vector<std::int64_t> values;
  for (const Value& element : elements(key, list, accepted)) {
    const bool is_scalar = element.type == Type::kScalar;
    const std::optional<std::int64_t> value = is_scalar ? kInteger.read(element.text, rule) : std::nullopt;
    if (!value) {
      note_broken(element, fmt::format("{}[{}]", key_path(key), values.size()),
                  fmt::format("is {}; accepted: {}",
                              is_scalar ? "'" + shortened(element.text) + "'" : element.type_name(), accepted));
    }
    values.push_back(value.value_or(0));
  }
  return values;
}

std::vector<StrictYaml> StrictYaml::list(std::string_view key, const ListRule& rule) const {
  std::vector<StrictYaml> sections;
  for (const Value& element : elements(key, rule, "mappings")) {
    const std::string path = fmt::format("{}[{}]", key_path(key), sections.size());
    const bool is_mapping = element.type == Type::kMapping;
    if (!is_mapping) note_broken(element, path, fmt::format("is {}; accepted: a mapping", element.type_name()));
    sections.push_back(StrictYaml(document_, path, is_mapping ? &element : nullptr));
  }
  return sections;
}

StrictYaml StrictYaml::section(std::string_view key) const {
  const Value* value = find(key, Type::kMapping, false, "a mapping");
  return StrictYaml(document_, key_path(key), value);
}

void StrictYaml::refuse(std::string_view key, const std::string& sentence) const {
  const Value* value = key.empty() ? nullptr : find(key);
  note(value == nullptr ? value_ : value, key_path(key), sentence);
}

Status StrictYaml::finish() const {
  std::multimap<int, std::string> problems = document_->problems;
  document_->check_known(document_->root, "", problems);
  if (problems.empty()) return {};
  if (problems.size() == 1) return fail(ErrorCode::kInvalidInput, "{}", problems.begin()->second);
  std::string message = fmt::format("{}: {} problems", document_->name, problems.size());
  for (const auto& [line, problem] : problems | std::views::take(kMaxProblemsShown)) message += "\n  " + problem;
  if (problems.size() > kMaxProblemsShown) {
    message += fmt::format("\n  and {} more", problems.size() - kMaxProblemsShown);
  }
  return fail(ErrorCode::kInvalidInput, "{}", message);
}

}  // namespace motley::cluster
