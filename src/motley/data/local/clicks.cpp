#include "motley/data/local/clicks.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <ostream>

#include "motley/base/os/file.h"

namespace motley::data {
namespace {

constexpr double kBestAuc = 0.80;
constexpr double kClickRate = 0.26;
constexpr std::uint64_t kFewestRows = 10;  // of a column
constexpr std::uint64_t kMaxRows = std::uint64_t{1} << 32;

// Streams of random numbers that have nothing to do with each other.
constexpr std::uint64_t kSamples = 0, kCalibration = 1, kWeights = 2, kSlopes = 3;

// How much the features matter beside the ids: about a sixth of the score's variance.
constexpr double kLargestSlope = 0.6;

// log(1 + x) / x and (exp(x) - 1) / x, also where x is so small that they would be 0 / 0: at exponents around 1.
double log_ratio(double x) {
  return std::abs(x) > 1e-8 ? std::log1p(x) / x : 1 - x / 2;
}
double exp_ratio(double x) {
  return std::abs(x) > 1e-8 ? std::expm1(x) / x : 1 + x / 2;
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// Uniform in [-1, 1).
double centred(std::uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1.0p-52 - 1;
}

// 26 sizes that grow by one ratio from kFewestRows on; the last takes what rounding leaves of the rows.
std::vector<std::uint64_t> compute_sizes(std::uint64_t rows) {
  const auto size_at = [](double ratio, std::size_t column) {
    return static_cast<double>(kFewestRows) * std::pow(ratio, static_cast<double>(column));
  };
  double low = 1, high = 4;  // 10 * 4^25 is beyond kMaxRows
  for (int i = 0; i < 60; ++i) {
    const double ratio = (low + high) / 2;
    double sum = 0;
    for (std::size_t column = 0; column < kCriteoCategories; ++column) sum += size_at(ratio, column);
    (sum <= static_cast<double>(rows) ? low : high) = ratio;
  }
  std::vector<std::uint64_t> sizes;
  std::uint64_t left = rows;
  for (std::size_t column = 0; column + 1 < kCriteoCategories; ++column) {
    sizes.push_back(static_cast<std::uint64_t>(size_at(low, column)));
    left -= sizes.back();
  }
  sizes.push_back(left);
  return sizes;
}

// The AUC that these probabilities have where labels are drawn by them, which no other order of the samples exceeds:
// the probability that a click has a larger one than a sample that is none. They come in ascending order.
double best_auc(const std::vector<double>& probabilities) {
  double ordered_pairs = 0, clicks = 0, others = 0;
  for (const double probability : probabilities) {
    ordered_pairs += probability * others;
    clicks += probability;
    others += 1 - probability;
  }
  return ordered_pairs / (clicks * others);
}

// The point in [low, high] where `is_above` becomes true.
template <class Predicate>
double bisect(double low, double high, Predicate is_above) {
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (is_above(middle) ? high : low) = middle;
  }
  return low;
}

}  // namespace

Zipf::Zipf(std::uint64_t size, double exponent) : size_(size), exponent_(exponent) {
  MOTLEY_INVARIANT(size > 0 && exponent > 0, "Zipf's distribution of {} ranks with exponent {}", size, exponent);
  begin_ = integral(1.5) - 1;
  end_ = integral(static_cast<double>(size) + 0.5);
  always_ = 2 - inverse(integral(2.5) - density(2));
}

double Zipf::density(double x) const {
  return std::exp(-exponent_ * std::log(x));
}

double Zipf::integral(double x) const {
  const double logarithm = std::log(x);
  return exp_ratio((1 - exponent_) * logarithm) * logarithm;
}

double Zipf::inverse(double area) const {
  // Rounding may take the argument below -1, where the logarithm ends.
  const double argument = std::max((1 - exponent_) * area, -1.0);
  return std::exp(log_ratio(argument) * area);
}

std::uint64_t Zipf::draw(Random& random) const {
  const double largest = static_cast<double>(size_);
  for (;;) {
    const double area = end_ + random.uniform() * (begin_ - end_);
    const double x = inverse(area);
    const double rank = std::clamp(std::floor(x + 0.5), 1.0, largest);
    if (rank - x <= always_ || area >= integral(rank + 0.5) - density(rank)) {
      return static_cast<std::uint64_t>(rank) - 1;
    }
  }
}

ClickDataset::ClickDataset(const ClickSource& source) : source_(source) {
  for (const std::uint64_t size : compute_sizes(source.rows)) {
    names_.push_back(criteo_column(columns_.size()));
    columns_.emplace_back(size, source.zipf);
  }
  for (std::size_t i = 0; i < kCriteoFeatures; ++i) {
    slopes_[i] = kLargestSlope * centred(mix({source.seed, kSlopes, i}));
  }
  calibrate();
}

// Finds the scale and the bias on samples that are in no dataset, so that training and test data have the same.
void ClickDataset::calibrate() {
  std::vector<double> scores(8192);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = score(draw(kCalibration, i));
  std::ranges::sort(scores);
  const double count = static_cast<double>(scores.size());
  const double mean = std::accumulate(scores.begin(), scores.end(), 0.0) / count;
  std::vector<double> probabilities(scores.size());
  const auto fill = [&](double scale, double bias) {
    std::ranges::transform(scores, probabilities.begin(),
                           [&](double score) { return sigmoid(bias + scale * (score - mean)); });
  };
  // By Newton's method, from the bias for the scale before.
  double bias = 0;
  const auto fit_bias = [&](double scale) {
    double step = 1;
    for (int i = 0; i < 100 && std::abs(step) > 1e-12; ++i) {
      fill(scale, bias);
      double clicks = 0;
      double slope = 0;
      for (const double probability : probabilities) {
        clicks += probability;
        slope += probability * (1 - probability);
      }
      step = std::clamp((kClickRate * count - clicks) / slope, -1.0, 1.0);
      bias += step;
    }
  };
  scale_ = bisect(0, 50, [&](double scale) {
    fit_bias(scale);
    return best_auc(probabilities) > kBestAuc;
  });
  fit_bias(scale_);
  bias_ = bias - scale_ * mean;
}

ClickDataset::Sample ClickDataset::draw(std::uint64_t stream, std::uint64_t number) const {
  Random random(mix({source_.seed, stream, number}));
  Sample sample;
  for (std::size_t i = 0; i < kCriteoFeatures; ++i) {
    // Log-normal counts, each feature's larger than those of the one before.
    sample.counts[i] = static_cast<std::int64_t>(std::exp(0.25 * static_cast<double>(i) + random.normal()));
    sample.features[i] = criteo_feature(sample.counts[i]);
  }
  for (std::size_t i = 0; i < kCriteoCategories; ++i) {
    sample.ranks[i] = columns_[i].draw(random);
    sample.ids[i] = id(i, sample.ranks[i]);
  }
  sample.luck = random.uniform();
  return sample;
}

ClickDataset::Sample ClickDataset::sample_at(std::uint32_t sample) const {
  MOTLEY_INVARIANT(sample < source_.samples, "sample {} of a dataset of {}", sample, source_.samples);
  return draw(kSamples, source_.first + sample);
}

std::uint64_t ClickDataset::id(std::size_t column, std::uint64_t rank) const {
  std::array<char, 8> text;
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = "0123456789abcdef"[rank >> 4 * (text.size() - 1 - i) & 15];
  }
  return category_id(names_[column], {text.data(), text.size()});
}

double ClickDataset::probability(std::uint32_t sample) const {
  return sigmoid(bias_ + scale_ * score(sample_at(sample)));
}

bool ClickDataset::is_click(const Sample& sample) const {
  return sample.luck < sigmoid(bias_ + scale_ * score(sample));
}

double ClickDataset::score(const Sample& sample) const {
  double score = 0;
  for (std::size_t i = 0; i < kCriteoFeatures; ++i) score += slopes_[i] * sample.features[i];
  for (const std::uint64_t id : sample.ids) score += centred(mix({source_.seed, kWeights, id}));
  return score;
}

std::vector<std::uint64_t> ClickDataset::column_sizes() const {
  std::vector<std::uint64_t> sizes;
  for (const Zipf& column : columns_) sizes.push_back(column.size());
  return sizes;
}

Status ClickDataset::read(std::span<const std::uint32_t> samples, const ReadTarget& into) const {
  check_room(samples, into);
  const std::size_t features = into.features.empty() ? 0 : kCriteoFeatures;
  const std::size_t categories = into.ids.empty() ? 0 : kCriteoCategories;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Sample sample = sample_at(samples[i]);
    std::copy_n(sample.features.data(), features, into.features.data() + i * features);
    std::copy_n(sample.ids.data(), categories, into.ids.data() + i * categories);
    if (!into.classes.empty()) into.classes[i] = is_click(sample) ? 1 : 0;
  }
  return {};
}

Result<std::unique_ptr<ClickDataset>> make_clicks(const ClickSource& source) {
  if (source.samples == 0 || source.samples == std::numeric_limits<std::uint32_t>::max()) {
    return fail(ErrorCode::kInvalidInput, "clicks: samples: {}; accepted: 1 to 2^32 - 2", source.samples);
  }
  constexpr std::uint64_t kFewest = kFewestRows * kCriteoCategories;
  if (source.rows < kFewest || source.rows > kMaxRows) {
    return fail(ErrorCode::kInvalidInput, "clicks: rows: {}; accepted: {} to {}", source.rows, kFewest, kMaxRows);
  }
  if (!(source.zipf > 0 && source.zipf <= 10)) {
    return fail(ErrorCode::kInvalidInput, "clicks: zipf: {}; accepted: an exponent above 0, at most 10", source.zipf);
  }
  return std::unique_ptr<ClickDataset>(new ClickDataset(source));
}

Status write_criteo(const ClickDataset& clicks, std::ostream& out) {
  std::string block;
  for (std::uint32_t i = 0; i < clicks.size(); ++i) {
    const ClickDataset::Sample sample = clicks.sample_at(i);
    block += clicks.is_click(sample) ? '1' : '0';
    for (const std::int64_t count : sample.counts) fmt::format_to(std::back_inserter(block), "\t{}", count);
    for (const std::uint64_t rank : sample.ranks) fmt::format_to(std::back_inserter(block), "\t{:08x}", rank);
    block += '\n';
    if (block.size() < 1 << 20 && i + 1 < clicks.size()) continue;
    if (!out.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
      return fail(ErrorCode::kIo, "the clicks could not be written after sample {}: {}", i, errno_text());
    }
    block.clear();
  }
  return {};
}

}  // namespace motley::data
