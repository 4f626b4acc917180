#include "motley/serial/strict_yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "motley/base/os/file.h"
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

template <class T>
std::optional<T> parse_integer(std::string_view text) {
  T number{};
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || rest != text.data() + text.size()) {
    return std::nullopt;
  }
  return number;
}

std::optional<double> parse_number(std::string_view text) {
  const auto number = parse_integer<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

template <Result<double> (*parse)(std::string_view)>
std::optional<double> parse_quantity(std::string_view text) {
  const Result<double> quantity = parse(text);
  return quantity && std::isfinite(*quantity) ? std::optional<double>(*quantity) : std::nullopt;
}

std::string plain(double value) {
  return fmt::format("{}", value);
}
std::string plain_integer(std::int64_t value) {
  return fmt::format("{}", value);
}

bool allowed(double value, const NumberRule& rule) {
  return value >= rule.min && value <= rule.max && (!rule.above || value > *rule.above);
}
bool allowed(std::int64_t value, const IntegerRule& rule) {
  return value >= rule.min && value <= rule.max;
}

template <class T>
std::string range_text(bool has_min, T min, bool has_max, T max, std::string (*format)(T)) {
  if (has_min && has_max) {
    return fmt::format(" from {} to {}", format(min), format(max));
  }
  return has_min ? " of at least " + format(min) : has_max ? " of at most " + format(max) : "";
}
std::string range(const NumberRule& rule, std::string (*format)(double)) {
  if (rule.above) {
    return " above " + format(*rule.above) + (std::isfinite(rule.max) ? " and at most " + format(rule.max) : "");
  }
  return range_text(std::isfinite(rule.min), rule.min, std::isfinite(rule.max), rule.max, format);
}
std::string range(const IntegerRule& rule, std::string (*format)(std::int64_t)) {
  using Limits = std::numeric_limits<std::int64_t>;
  return range_text(rule.min != Limits::min(), rule.min, rule.max != Limits::max(), rule.max, format);
}

std::string size_text(const ListRule& rule) {
  return fmt::format("from {} to {} of them", rule.min_size, rule.max_size);
}

std::string shortened(const std::string& text) {
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

}  // namespace

struct StrictYaml::Value {
  enum class Type { kNull, kScalar, kList, kMapping };
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
    switch (type) {
      case Type::kNull:
        return "empty";
      case Type::kScalar:
        return "a plain value";
      case Type::kList:
        return "a list";
      case Type::kMapping:
        return "a mapping";
    }
    return "";
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
  void collect(const Value& value, const std::string& path, std::vector<YamlLeaf>& leaves);
  // Adds a problem for every key below `value` that was never asked for.
  void check_known(const Value& value, const std::string& path, std::multimap<int, std::string>& found) const;
};

// What one kind of plain value is called, and how it is read and written.
template <class T>
struct StrictYaml::Kind {
  std::string accepted;
  std::optional<T> (*parse)(std::string_view);
  std::string (*format)(T);
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
      value.type = Value::Type::kScalar;
      value.text = node.Scalar();
      return {};
    case YAML::NodeType::Sequence:
      value.type = Value::Type::kList;
      for (const YAML::Node& element : node) {
        MOTLEY_TRY(fill(element, depth + 1, count, value.children.emplace_back()));
      }
      return {};
    case YAML::NodeType::Map:
      break;
  }
  value.type = Value::Type::kMapping;
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

void StrictYaml::Document::collect(const Value& value, const std::string& path, std::vector<YamlLeaf>& leaves) {
  for (const Value& child : value.children) {
    const std::string child_path = path.empty() ? child.key : path + "." + child.key;
    const bool plain_list =
        child.type == Value::Type::kList &&
        std::ranges::all_of(child.children, [](const Value& element) { return element.type == Value::Type::kScalar; });
    if (child.type == Value::Type::kScalar) {
      leaves.push_back({child_path, child.text, where(&child)});
    } else if (plain_list) {
      std::vector<std::string> texts;
      std::ranges::transform(child.children, std::back_inserter(texts), &Value::text);
      leaves.push_back({child_path, fmt::format("[{}]", fmt::join(texts, ", ")), where(&child)});
    } else if (child.type == Value::Type::kMapping) {
      collect(child, child_path, leaves);
    } else if (child.type == Value::Type::kList) {
      continue;
    }
    known[path].insert(child.key);
  }
}

void StrictYaml::Document::check_known(const Value& value, const std::string& path,
                                       std::multimap<int, std::string>& found) const {
  if (broken.contains(path)) {
    return;
  }
  if (value.type == Value::Type::kList) {
    for (std::size_t i = 0; i < value.children.size(); ++i) {
      check_known(value.children[i], fmt::format("{}[{}]", path, i), found);
    }
  }
  if (value.type != Value::Type::kMapping) {
    return;
  }
  const auto asked = known.find(path);
  std::vector<std::string> names;
  if (asked != known.end()) {
    names.assign(asked->second.begin(), asked->second.end());
  }
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

Result<StrictYaml> StrictYaml::open(const std::filesystem::path& file) {
  MOTLEY_ASSIGN(const std::string content, read_file(file, kMaxBytes));
  return parse(content, file.string());
}

Result<StrictYaml> StrictYaml::parse(std::string_view text, const std::string& name) {
  if (text.size() > kMaxBytes) {
    return fail(ErrorCode::kInvalidInput, "{}: {} bytes; accepted: up to {}", name, text.size(), kMaxBytes);
  }
  auto document = std::make_shared<Document>();
  document->name = name;
  MOTLEY_TRY(document->fill(std::string(text)));
  const Value* root = &document->root;
  if (root->type != Value::Type::kMapping && root->type != Value::Type::kNull) {
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
    if (value != nullptr && value->type != Value::Type::kMapping && value->type != Value::Type::kNull) {
      note(value, path, fmt::format("is {}; accepted: a mapping", value->type_name()));
      document_->broken.insert(path);
      value = nullptr;
    }
    const std::size_t dot = std::min(key.find('.'), key.size());
    const std::string name(key.substr(0, dot));
    key.remove_prefix(std::min(dot + 1, key.size()));
    document_->known[path].insert(name);
    value = value == nullptr ? nullptr : value->child(name);
    path += path.empty() ? name : "." + name;
  }
  return value == nullptr || value->type == Value::Type::kNull ? nullptr : value;
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

std::optional<std::string> StrictYaml::scalar(std::string_view key, bool required, const std::string& accepted) const {
  const Value* value = find(key);
  const std::string path = key_path(key);
  if (value == nullptr) {
    if (required) {
      note(value_, path, "is missing; accepted: " + accepted);
    }
    return std::nullopt;
  }
  if (value->type != Value::Type::kScalar) {
    note(value, path, fmt::format("is {}; accepted: {}", value->type_name(), accepted));
    document_->broken.insert(path);
    return std::nullopt;
  }
  return value->text;
}

std::vector<const StrictYaml::Value*> StrictYaml::elements(std::string_view key, const ListRule& rule,
                                                           const std::string& accepted) const {
  const Value* value = find(key);
  const std::string path = key_path(key);
  if (value == nullptr) {
    if (rule.min_size > 0) {
      note(value_, path, fmt::format("is missing; accepted: a list of {}, {}", accepted, size_text(rule)));
    }
    return {};
  }
  if (value->type != Value::Type::kList) {
    note(value, path, fmt::format("is {}; accepted: a list of {}, {}", value->type_name(), accepted, size_text(rule)));
    document_->broken.insert(path);
    return {};
  }
  if (value->children.size() < rule.min_size || value->children.size() > rule.max_size) {
    note(value, path, fmt::format("has {} elements; accepted: {}", value->children.size(), size_text(rule)));
    document_->broken.insert(path);
    return {};
  }
  std::vector<const Value*> found;
  found.reserve(value->children.size());
  for (const Value& child : value->children) {
    found.push_back(&child);
  }
  return found;
}

template <class Rule, class T>
T StrictYaml::read(std::string_view key, const Rule& rule, const Kind<T>& kind) const {
  const std::string accepted = kind.accepted + range(rule, kind.format);
  const std::optional<std::string> text = scalar(key, !rule.fallback, accepted);
  if (text) {
    const std::optional<T> value = kind.parse(*text);
    if (value && allowed(*value, rule)) {
      return *value;
    }
    refuse(key, fmt::format("is '{}'; accepted: {}", shortened(*text), accepted));
  }
  return rule.fallback.value_or(T{});
}

template <class Rule, class T>
std::vector<T> StrictYaml::read_list(std::string_view key, const Rule& rule, const ListRule& list,
                                     const Kind<T>& kind) const {
  const std::string accepted = kind.accepted + range(rule, kind.format);
  std::vector<T> values;
  for (const Value* element : elements(key, list, accepted)) {
    const std::optional<T> value = element->type == Value::Type::kScalar ? kind.parse(element->text) : std::nullopt;
    if (value && allowed(*value, rule)) {
      values.push_back(*value);
      continue;
    }
    const std::string path = fmt::format("{}[{}]", key_path(key), values.size());
    note(
        element, path,
        fmt::format("is {}; accepted: {}",
                    element->type == Value::Type::kScalar ? "'" + shortened(element->text) + "'" : element->type_name(),
                    accepted));
    document_->broken.insert(path);
    values.push_back(T{});
  }
  return values;
}

bool StrictYaml::has(std::string_view key) const {
  return find(key) != nullptr;
}

bool StrictYaml::is_section(std::string_view key) const {
  const Value* value = find(key);
  return value != nullptr && value->type == Value::Type::kMapping;
}

std::string StrictYaml::text(std::string_view key, const std::optional<std::string>& fallback) const {
  const std::optional<std::string> text = scalar(key, !fallback, "a text");
  if (text && text->empty()) {
    refuse(key, "is ''; accepted: a text that is not empty");
  }
  return text.value_or(fallback.value_or(""));
}

bool StrictYaml::boolean(std::string_view key, std::optional<bool> fallback) const {
  std::optional<std::string> name;
  if (fallback) {
    name = *fallback ? "true" : "false";
  }
  return choice(key, {"true", "false"}, name) == "true";
}

double StrictYaml::number(std::string_view key, const NumberRule& rule) const {
  return read(key, rule, Kind<double>{"a number", parse_number, plain});
}

std::int64_t StrictYaml::integer(std::string_view key, const IntegerRule& rule) const {
  return read(key, rule, Kind<std::int64_t>{"an integer", parse_integer<std::int64_t>, plain_integer});
}

double StrictYaml::seconds(std::string_view key, const NumberRule& rule) const {
  return read(key, rule, Kind<double>{std::string(kAcceptedSeconds), parse_quantity<parse_seconds>, exact_seconds});
}

double StrictYaml::bytes(std::string_view key, const NumberRule& rule) const {
  return read(key, rule, Kind<double>{std::string(kAcceptedBytes), parse_quantity<parse_bytes>, exact_bytes});
}

double StrictYaml::bytes_per_second(std::string_view key, const NumberRule& rule) const {
  return read(key, rule,
              Kind<double>{std::string(kAcceptedBytesPerSecond), parse_quantity<parse_bytes_per_second>,
                           exact_bytes_per_second});
}

std::string StrictYaml::choice(std::string_view key, const std::vector<std::string>& names,
                               const std::optional<std::string>& fallback) const {
  const std::string accepted = fmt::format("{}", fmt::join(names, ", "));
  const std::optional<std::string> name = scalar(key, !fallback, accepted);
  if (name && std::ranges::find(names, *name) == names.end()) {
    refuse(key, fmt::format("is '{}'{}; accepted: {}", shortened(*name), suggestion(*name, names), accepted));
    return fallback.value_or("");
  }
  return name.value_or(fallback.value_or(""));
}

std::vector<double> StrictYaml::numbers(std::string_view key, const NumberRule& rule, const ListRule& list) const {
  return read_list(key, rule, list, Kind<double>{"a number", parse_number, plain});
}

std::vector<std::int64_t> StrictYaml::integers(std::string_view key, const IntegerRule& rule,
                                               const ListRule& list) const {
  return read_list(key, rule, list, Kind<std::int64_t>{"an integer", parse_integer<std::int64_t>, plain_integer});
}

std::vector<std::string> StrictYaml::texts(std::string_view key, const ListRule& list) const {
  std::vector<std::string> texts;
  for (const Value* element : elements(key, list, "a text")) {
    if (element->type != Value::Type::kScalar || element->text.empty()) {
      note(element, fmt::format("{}[{}]", key_path(key), texts.size()),
           fmt::format("is {}; accepted: a text that is not empty", element->type_name()));
    }
    texts.push_back(element->text);
  }
  return texts;
}

std::vector<StrictYaml> StrictYaml::list(std::string_view key, const ListRule& rule) const {
  std::vector<StrictYaml> sections;
  for (const Value* element : elements(key, rule, "mappings")) {
    const std::string path = fmt::format("{}[{}]", key_path(key), sections.size());
    const bool is_mapping = element->type == Value::Type::kMapping;
    if (!is_mapping) {
      note(element, path, fmt::format("is {}; accepted: a mapping", element->type_name()));
      document_->broken.insert(path);
    }
    sections.push_back(StrictYaml(document_, path, is_mapping ? element : nullptr));
  }
  return sections;
}

StrictYaml StrictYaml::section(std::string_view key) const {
  const Value* value = find(key);
  const std::string path = key_path(key);
  if (value != nullptr && value->type != Value::Type::kMapping) {
    note(value, path, fmt::format("is {}; accepted: a mapping", value->type_name()));
    document_->broken.insert(path);
    value = nullptr;
  }
  return StrictYaml(document_, path, value);
}

std::vector<YamlLeaf> StrictYaml::leaves() const {
  std::vector<YamlLeaf> leaves;
  if (value_ != nullptr) {
    document_->collect(*value_, path_, leaves);
  }
  return leaves;
}

void StrictYaml::refuse(std::string_view key, const std::string& sentence) const {
  const Value* value = key.empty() ? nullptr : find(key);
  note(value == nullptr ? value_ : value, key_path(key), sentence);
}

Status StrictYaml::finish() const {
  std::multimap<int, std::string> problems = document_->problems;
  document_->check_known(document_->root, "", problems);
  if (problems.empty()) {
    return {};
  }
  if (problems.size() == 1) {
    return fail(ErrorCode::kInvalidInput, "{}", problems.begin()->second);
  }
  std::string message = fmt::format("{}: {} problems", document_->name, problems.size());
  std::size_t shown = 0;
  for (const auto& [line, problem] : problems) {
    if (++shown > kMaxProblemsShown) {
      message += fmt::format("\n  and {} more", problems.size() - kMaxProblemsShown);
      break;
    }
    message += "\n  " + problem;
  }
  return fail(ErrorCode::kInvalidInput, "{}", message);
}

}  // namespace motley::cluster
