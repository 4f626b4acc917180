// A generator of data shaped like Criteo's display advertising data, of any size and never held in memory: what is
// measured on it has known truth, and files of it can be written.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "motley/base/random.h"
#include "motley/base/result.h"
#include "motley/data/local/dataset.h"
#include "motley/data/local/formats.h"

namespace motley::data {

// Ranks 0 .. size-1, drawn with probabilities proportional to (rank + 1)^-exponent, exactly but for the rounding of
// doubles. A draw takes the same time for every size: rejection-inversion (W. Hörmann, G. Derflinger,
// "Rejection-inversion to generate variates from monotone discrete distributions", ACM TOMACS 6(3), 1996). Any number
// of threads may draw.
class Zipf {
 public:
  Zipf(std::uint64_t size, double exponent);  // size > 0, exponent > 0
  std::uint64_t draw(Random& random) const;
  std::uint64_t size() const { return size_; }

 private:
  double density(double x) const;     // x^-exponent
  double integral(double x) const;    // of the density from 1 to x
  double inverse(double area) const;  // the x with this integral

  std::uint64_t size_;
  double exponent_;
  double begin_, end_;  // integrals between which a draw is uniform
  double always_;       // a draw that lies at most this far below its rank needs no test
};

struct ClickSource {
  std::uint32_t samples = 0;
  std::uint64_t seed = 1;
  std::uint64_t first = 0;         // number of the first sample: test data has the same seed and other numbers
  std::uint64_t rows = 1'000'000;  // distinct values of all 26 columns together, 260 .. 2^32
  double zipf = 1.05;              // exponent of the values' shares in each column, above 0 and at most 10
};

// Sample i, whose number is first + i, is a pure function of (seed, rows, zipf, number): 13 features (criteo_feature of
// counts), 26 ids and a class, 0 or 1. The planted truth gives a click's probability as the sigmoid of a bias, a weight
// for each id (a pure function of seed and id) and a linear function of the features, scaled so that about 0.26 of the
// samples are clicks and that the best possible AUC is about 0.80. All is the same on every machine up to the last bits
// of its mathematical library. Never changes; any number of threads may read it.
class ClickDataset final : public Dataset {
 public:
  std::uint32_t size() const override { return source_.samples; }
  const std::vector<std::int64_t>& feature_shape() const override { return shape_; }
  TargetKind target_kind() const override { return TargetKind::kClass; }
  std::uint32_t class_count() const override { return 2; }
  std::uint32_t target_width() const override { return 1; }
  std::uint32_t categories() const override { return kCriteoCategories; }
  Status read(std::span<const std::uint32_t> samples, const ReadTarget& into) const override;

  // The planted truth's probability that this sample is a click.
  double probability(std::uint32_t sample) const;

  // Distinct values of C1 .. C26; they grow by one ratio from 10 on and add up to rows. A value's text is its rank as
  // eight hexadecimal digits, so that its id is category_id("C3", "0000000a") for rank 10 of the third column.
  std::vector<std::uint64_t> column_sizes() const;

 private:
  friend Result<std::unique_ptr<ClickDataset>> make_clicks(const ClickSource& source);
  friend Status write_criteo(const ClickDataset& clicks, std::ostream& out);

  struct Sample {
    std::array<std::int64_t, kCriteoFeatures> counts;
    std::array<float, kCriteoFeatures> features;
    std::array<std::uint64_t, kCriteoCategories> ranks;
    std::array<std::uint64_t, kCriteoCategories> ids;
    double luck;  // uniform in [0, 1): a click where it is below the probability
  };
  explicit ClickDataset(const ClickSource& source);
  void calibrate();
  Sample draw(std::uint64_t stream, std::uint64_t number) const;
  Sample sample_at(std::uint32_t sample) const;
  double score(const Sample& sample) const;  // of the truth, before it is scaled and the bias is added
  bool is_click(const Sample& sample) const;
  std::uint64_t id(std::size_t column, std::uint64_t rank) const;

  ClickSource source_;
  std::vector<std::int64_t> shape_ = {static_cast<std::int64_t>(kCriteoFeatures)};
  std::vector<std::string> names_;
  std::vector<Zipf> columns_;
  std::array<double, kCriteoFeatures> slopes_;
  double scale_ = 1;
  double bias_ = 0;
};

// Errors name the field, what was given and what would be accepted. Takes part of a second.
Result<std::unique_ptr<ClickDataset>> make_clicks(const ClickSource& source);

// Writes all samples as lines that parse_criteo reads back to the same features, ids and classes.
Status write_criteo(const ClickDataset& clicks, std::ostream& out);

}  // namespace motley::data
