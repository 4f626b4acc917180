#include "motley/train/job/job.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <sstream>

#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/base/text.h"
#include "motley/net/handshake.h"
#include "motley/train/job/renamed_keys.h"

namespace motley::train {
namespace {

constexpr const char* kAcceptedFile =
    "text in UTF-8 with a 'key: value' a line, such as examples/fashion-mnist/job.yaml";

// The first line, from 1, that is not text; 0: none. YAML would take some bytes for another encoding.
int find_binary_line(const std::string& text) {
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::erase_if(line, [](char c) { return c == '\t' || c == '\r'; });
    if (!is_plain(line)) return number;
  }
  return 0;
}

// Makes the key's value absolute where the key holds a path: relative ones are taken from the job file's folder, and
// those of flags from the current one.
void resolve_path(Job& job, const std::string& key, const std::filesystem::path& folder) {
  const auto entry = Job::options().find(key);
  if (!entry || (*entry)->text.kind != OptionKind::kPath) return;
  const auto value = std::get<std::string>((*entry)->get(job));
  if (value.empty() || (key == "plan" && value == kAutoPlan)) return;
  (*entry)->set(job, (folder / value).lexically_normal().string());
}

// Flattens nested maps to dotted keys; every scalar keeps its text and its line.
struct Scalar {
  std::string text;  // of a sequence "[1, 2]"
  int line;
  bool is_list = false;
};

constexpr int kMaxLevels = 8;
constexpr std::size_t kMaxFlatBytes = 4 << 20;

struct FlatFile {
  const std::string& name;
  std::map<std::string, Scalar> scalars = {};
  std::size_t bytes = 0;  // of all keys and values, with what aliases stand for
};

bool has_numbers(const OptionText& option) {
  return option.kind == OptionKind::kIntegers || option.kind == OptionKind::kReals;
}

Status set_key(Job& job, const std::string& key, const Scalar& scalar) {
  if (const auto entry = Job::options().find(key); entry && scalar.is_list) {
    const OptionText& option = (*entry)->text;
    if (!has_numbers(option) && option.kind != OptionKind::kNames) {
      return fail(ErrorCode::kInvalidInput, "{}: a list is not accepted here; accepted: {}", key, option.accepted());
    }
  }
  return Job::options().set(job, key, scalar.text);
}

// Counts the bytes of a key or value, and refuses what has no end, such as an alias that contains itself.
Status count_bytes(std::size_t bytes, int level, int line, const std::string& prefix, FlatFile& file) {
  file.bytes += 1 + bytes;
  if (level <= kMaxLevels && file.bytes <= kMaxFlatBytes) return {};
  return fail(ErrorCode::kInvalidInput,
              "{}:{}: {:.80}: too deep or too long, with what aliases stand for; accepted: up to {} levels, and {} MiB "
              "of keys and values",
              file.name, line, prefix, kMaxLevels, kMaxFlatBytes >> 20);
}

Status flatten(const YAML::Node& node, const std::string& prefix, int level, FlatFile& file) {
  const int line = node.Mark().line + 1;
  MOTLEY_TRY(count_bytes(prefix.size(), level, line, prefix, file));
  if (node.IsMap()) {
    for (const auto& item : node) {
      const std::string key = item.first.as<std::string>();
      MOTLEY_TRY(flatten(item.second, prefix.empty() ? key : prefix + "." + key, level + 1, file));
    }
    return {};
  }
  Scalar scalar{"", line};
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) {
      if (!item.IsScalar()) {
        return fail(ErrorCode::kInvalidInput,
                    "{}:{}: {}: a list of numbers or of names is accepted here, not nested values", file.name, line,
                    prefix);
      }
      MOTLEY_TRY(count_bytes(item.Scalar().size(), level, line, prefix, file));
      scalar.text += (scalar.text.empty() ? "" : ", ") + item.Scalar();
    }
    scalar.text = "[" + scalar.text + "]";
    scalar.is_list = true;
  } else if (node.IsScalar()) {
    MOTLEY_TRY(count_bytes(node.Scalar().size(), level, line, prefix, file));
    scalar.text = node.Scalar();
  }
  if (!file.scalars.emplace(prefix, scalar).second) {
    return fail(ErrorCode::kInvalidInput, "{}:{}: {} is given twice", file.name, line, prefix);
  }
  return {};
}

// The text as YAML reads it back; of a text that only looks like a list, no list.
std::string quoted(const OptionText& option, const std::string& text) {
  const bool plain = !text.empty() && text.find_first_of(":#{}[],&*!|>'\"%@`\n") == std::string::npos &&
                     text.front() != ' ' && text.back() != ' ' && text.front() != '-' && text.front() != '?';
  if (plain || has_numbers(option)) return text;
  std::string escaped = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped + "\"";
}

}  // namespace

Result<Job> read_job(const std::filesystem::path& path) {
  MOTLEY_ASSIGN(const std::string text, read_file(path, 1 << 20));
  const std::string file = path.string();
  FlatFile flat{file};
  try {
    if (const int line = find_binary_line(text); line > 0) {
      return fail(ErrorCode::kInvalidInput, "{}:{}: control characters or bytes that are not UTF-8; accepted: {}", file,
                  line, kAcceptedFile);
    }
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) {
      return fail(ErrorCode::kInvalidInput, "{}: {}; accepted: {}", file,
                  root.IsNull() ? "the file is empty" : "the file has no keys", kAcceptedFile);
    }
    MOTLEY_TRY(flatten(root, "", 0, flat));
  } catch (const YAML::Exception& problem) {
    return fail(ErrorCode::kInvalidInput, "{}:{}: not valid YAML: {}", file, problem.mark.line + 1, problem.msg);
  }
  std::map<std::string, Scalar>& scalars = flat.scalars;
  scalars.erase("");
  std::vector<RenamedKey> renamed;
  std::ranges::copy_if(kRenamedKeys, std::back_inserter(renamed),
                       [&](const RenamedKey& key) { return scalars.contains(std::string(key.before)); });
  if (!renamed.empty()) {
    return fail(ErrorCode::kInvalidInput, "{}: a job file of version {}; accepted: version {}, in which {}", file,
                kJobVersion - 1, kJobVersion, to_string(renamed));
  }
  Job job;
  for (const auto& [key, scalar] : scalars) {
    if (Status set = set_key(job, key, scalar); !set) {
      return fail(set.error().within(fmt::format("{}:{}", file, scalar.line)));
    }
  }
  for (const auto& [key, scalar] : scalars) {
    resolve_path(job, key, std::filesystem::absolute(path).parent_path());
  }
  return job;
}

Status apply_flags(Job& job, const std::vector<std::pair<std::string, std::string>>& flags) {
  for (const auto& [key, text] : flags) {
    if (Status set = Job::options().set(job, key, text); !set) {
      const std::string& message = set.error().message;  // begins with the key where that is known
      if (!message.starts_with(key + ":")) return set;
      return fail(set.error().code, "--{}{}", flag_name(key), message.substr(key.size()));
    }
    resolve_path(job, key, std::filesystem::current_path());
  }
  return {};
}

std::string format_job(const Job& job) {
  std::string text = "# The effective job: every key with the value that was used.\n";
  std::string section;
  for (const auto& entry : Job::options().entries()) {
    std::string key = entry.text.key;
    const std::size_t dot = key.find('.');
    const std::string own_section = dot == std::string::npos ? "" : key.substr(0, dot);
    if (own_section != section && !own_section.empty()) text += own_section + ":\n";
    section = own_section;
    if (!section.empty()) key = "  " + key.substr(dot + 1);
    text += fmt::format("{}: {}\n", key, quoted(entry.text, Job::options().get(job, entry)));
  }
  return text;
}

Result<ExecutionSpec::Range> ExecutionSpec::parse_elastic(const std::string& text) {
  Range range;
  const char* const end = text.data() + text.size();
  const auto [colon, wrong_min] = std::from_chars(text.data(), end, range.min);
  const bool has_max = wrong_min == std::errc() && colon != end && *colon == ':';
  const auto [rest, wrong_max] = has_max ? std::from_chars(colon + 1, end, range.max) : std::from_chars_result{end, {}};
  if (!has_max || wrong_max != std::errc() || rest != end || range.min < 1 || range.max < range.min ||
      range.max > 1024) {
    return fail(ErrorCode::kInvalidInput, "elastic: '{}'; accepted: MIN:MAX, such as '2:4', of 1 to 1024 workers",
                text);
  }
  return range;
}

std::string changed_keys(const Job& before, const Job& now, const std::vector<std::string>& prefixes) {
  std::string text;
  for (const auto& entry : Job::options().entries()) {
    const std::string was = Job::options().get(before, entry);
    const std::string is = Job::options().get(now, entry);
    const bool asked = std::any_of(prefixes.begin(), prefixes.end(),
                                   [&](const std::string& prefix) { return entry.text.key.starts_with(prefix); });
    if (asked && was != is) {
      text += fmt::format("{}{} is {}, was {}", text.empty() ? "" : "; ", entry.text.key, quoted(entry.text, is),
                          quoted(entry.text, was));
    }
  }
  return text;
}

std::string fingerprint(const Job& job, std::string_view plan) {
  constexpr std::size_t kLongValue = 64;
  std::vector<std::string> settings;
  std::string all;
  const auto add = [&](const std::string& key, const std::string& value) {
    all += key + "=" + value + "\n";
    settings.push_back(key + "=" +
                       (value.size() <= kLongValue && is_plain(value)
                            ? value
                            : fmt::format("a text with the checksum {:08x}", crc32c(value))));
  };
  const Job defaults;
  for (const auto& entry : Job::options().entries()) {
    if (entry.text.kind == OptionKind::kPath) continue;  // may differ between hosts
    const std::string value = Job::options().get(job, entry);
    if (value != Job::options().get(defaults, entry)) add(entry.text.key, value);
  }
  if (!plan.empty()) add("contents of the plan", fmt::format("a text with the checksum {:08x}", crc32c(plan)));
  std::string text = fmt::format("{}", fmt::join(settings, "; "));
  if (text.size() <= net::kMaxFingerprintBytes) return text;
  return fmt::format("{:016x}", mix({crc32c(all), crc32c("motley" + all), all.size()}));
}

Result<net::Encryption> read_encryption(const Job& job) {
  return net::read_encryption(job.network.encryption, "network.encryption", job.network.tls, net::tls_keys());
}

}  // namespace motley::train
