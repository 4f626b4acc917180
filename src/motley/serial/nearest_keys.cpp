#include "motley/serial/nearest_keys.h"

#include <algorithm>

#include "motley/serial/options.h"

namespace motley {
namespace {

constexpr const char* kBetweenWords = "._-";
constexpr std::size_t kMaxGuessed = 64;  // letters; longer keys are no mistyped ones
constexpr std::size_t kFewLetters = 5;   // of fewer only one may differ
constexpr std::size_t kMinPrefix = 3;    // letters of a word that is cut short

// The letters to insert, remove, replace or swap with their neighbour (optimal string alignment).
std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::vector<std::size_t>> cost(from.size() + 1, std::vector<std::size_t>(to.size() + 1));
  for (std::size_t i = 0; i <= from.size(); ++i) {
    for (std::size_t j = 0; j <= to.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const bool is_same = from[i - 1] == to[j - 1];
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (is_same ? 0 : 1)});
      const bool is_swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (is_swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost.back().back();
}

// Up to which distance a key is taken for a mistyped one.
std::size_t max_distance(std::string_view key) {
  if (key.size() < 3 || key.size() > kMaxGuessed) return 0;
  return key.size() < kFewLetters ? 1 : std::max<std::size_t>(2, key.size() / 3);
}

// The distance to the nearest words in a row of a key of several; one more than it is, so that whole keys win.
std::size_t distance_to_words(std::string_view key, std::string_view of) {
  std::size_t nearest = kMaxGuessed;
  if (of.find_first_of(kBetweenWords) == std::string_view::npos) return nearest;
  for (std::size_t begin = 0; begin < of.size();) {
    for (std::size_t end = begin; end < of.size();) {
      end = std::min(of.find_first_of(kBetweenWords, end + 1), of.size());
      nearest = std::min(nearest, 1 + edit_distance(key, of.substr(begin, end - begin)));
    }
    const std::size_t next = of.find_first_of(kBetweenWords, begin);
    begin = next == std::string_view::npos ? of.size() : next + 1;
  }
  return nearest;
}

// Of each word in its order: where it begins.
std::vector<std::size_t> list_word_begins(std::string_view key) {
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < key.size(); ++i) {
    const bool is_between = std::string_view(kBetweenWords).find(key[i]) != std::string_view::npos;
    if (!is_between && (i == 0 || std::string_view(kBetweenWords).find(key[i - 1]) != std::string_view::npos)) {
      begins.push_back(i);
    }
  }
  return begins;
}

// "mem" of "memory", "lr" of "optimizer.learning_rate".
bool is_short_for(std::string_view key, std::string_view name) {
  if (key.size() < 2 || key.size() >= name.size()) return false;
  std::string initials;
  for (const std::size_t begin : list_word_begins(name)) {
    initials += name[begin];
    if (key.size() >= kMinPrefix && name.substr(begin).starts_with(key)) return true;
  }
  return initials.ends_with(key);
}

std::string_view last_part(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

}  // namespace

std::string nearest_key(std::string_view key, const std::vector<std::string>& keys) {
  std::string nearest;
  std::size_t nearest_distance = max_distance(key) + 1;
  for (const std::string& candidate : keys) {
    const std::size_t whole = edit_distance(key, candidate);
    const std::size_t words = key.size() > 3 ? distance_to_words(key, candidate) : kMaxGuessed;
    const std::size_t distance = std::min(whole, words);
    if (distance >= nearest_distance) continue;
    nearest_distance = distance;
    nearest = candidate;
  }
  if (!nearest.empty() || key.size() > kMaxGuessed) return nearest;
  const auto found = std::ranges::find_if(keys, [&](const std::string& name) { return is_short_for(key, name); });
  return found == keys.end() ? "" : *found;
}

std::vector<std::string> nearest_keys(std::string_view key, const std::vector<std::string>& keys) {
  const std::string nearest = nearest_key(key, keys);
  if (nearest.empty()) return {};
  std::vector<std::string> all = {nearest};
  const bool has_group = key.find('.') != std::string_view::npos || nearest.find('.') == std::string::npos;
  for (const std::string& other : keys) {
    if (!has_group && other != nearest && last_part(other) == last_part(nearest)) all.push_back(other);
  }
  return all;
}

}  // namespace motley
