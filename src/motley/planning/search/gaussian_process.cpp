// Gaussian-process regression by Cholesky factorisation (see gaussian_process.h; Rasmussen and Williams,
// algorithm 2.1).
#include "motley/planning/search/gaussian_process.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace motley::planning {
namespace {

// Row i of a lower triangle whose rows are stored one after another.
std::size_t row(std::size_t i) {
  return i * (i + 1) / 2;
}

// In several sums at once, which do not wait for one another.
double dot(const double* a, const double* b, std::size_t size) {
  constexpr std::size_t kSums = 8;
  double sums[kSums] = {};
  std::size_t i = 0;
  for (; i + kSums <= size; i += kSums) {
    for (std::size_t k = 0; k < kSums; ++k) sums[k] += a[i + k] * b[i + k];
  }
  for (; i < size; ++i) sums[0] += a[i] * b[i];
  return std::accumulate(std::begin(sums), std::end(sums), 0.0);
}

// Solves L x = b in place.
void solve_lower(const std::vector<double>& factor, std::vector<double>& b) {
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double* const l = &factor[row(i)];
    b[i] = (b[i] - dot(l, b.data(), i)) / l[i];
  }
}

// Solves L^T x = b in place.
void solve_upper(const std::vector<double>& factor, std::vector<double>& b) {
  for (std::size_t i = b.size(); i-- > 0;) {
    const double* const l = &factor[row(i)];
    b[i] /= l[i];
    for (std::size_t j = 0; j < i; ++j) b[j] -= l[j] * b[i];
  }
}

// Replaces the lower triangle of a symmetric positive definite matrix by its Cholesky factor.
void factorise(std::vector<double>& matrix, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    double* const l = &matrix[row(i)];
    for (std::size_t j = 0; j <= i; ++j) {
      const double* const other = &matrix[row(j)];
      const double rest = l[j] - dot(l, other, j);
      l[j] = i == j ? std::sqrt(rest) : rest / other[j];
    }
  }
}

}  // namespace

GaussianProcess::GaussianProcess(std::vector<Codes> points, const std::vector<double>& values, double length,
                                 double noise)
    : points_(std::move(points)), weights_(values) {
  for (std::size_t differences = 0; differences <= points_.front().size(); ++differences) {
    covariance_at_.push_back(std::exp(-static_cast<double>(differences) / length));
  }
  for (std::size_t i = 0; i < points_.size(); ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      factor_.push_back(covariance(points_[i], points_[j]) + (i == j ? noise : 0));
    }
  }
  factorise(factor_, points_.size());
  solve_lower(factor_, weights_);
  solve_upper(factor_, weights_);
  log_likelihood_ = -0.5 * std::inner_product(values.begin(), values.end(), weights_.begin(), 0.0);
  for (std::size_t i = 0; i < points_.size(); ++i) {
    log_likelihood_ -= std::log(factor_[row(i) + i]) + 0.5 * std::log(2 * std::numbers::pi);
  }
}

double GaussianProcess::covariance(const Codes& a, const Codes& b) const {
  const int differences = std::inner_product(a.begin(), a.end(), b.begin(), 0, std::plus<>(), std::not_equal_to<>());
  return covariance_at_[static_cast<std::size_t>(differences)];
}

Posterior GaussianProcess::at(const Codes& point) const {
  std::vector<double> to_points(points_.size());
  std::transform(points_.begin(), points_.end(), to_points.begin(),
                 [&](const Codes& other) { return covariance(point, other); });
  const double mean = dot(to_points.data(), weights_.data(), to_points.size());
  solve_lower(factor_, to_points);
  const double explained = dot(to_points.data(), to_points.data(), to_points.size());
  return {mean, std::sqrt(std::max(0.0, 1 - explained))};
}

double expected_improvement(const Posterior& posterior, double best) {
  const double gain = best - posterior.mean;
  if (posterior.deviation <= 0) return std::max(0.0, gain);
  const double z = gain / posterior.deviation;
  const double density = std::exp(-0.5 * z * z) / std::sqrt(2 * std::numbers::pi);
  const double below = 0.5 * std::erfc(-z / std::numbers::sqrt2);
  return gain * below + posterior.deviation * density;
}

}  // namespace motley::planning
