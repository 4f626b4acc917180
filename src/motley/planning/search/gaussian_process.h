// Gaussian-process regression over strings of codes, and the expected improvement by which Bayesian optimisation
// chooses where to look next.
#pragma once

#include <vector>

namespace motley::planning {

using Codes = std::vector<int>;

struct Posterior {
  double mean = 0;
  double deviation = 0;
};

// Prior: mean 0, variance 1, covariance exp(-d / length) for strings that differ in d places (a product of one kernel a
// place, so that the covariance is positive definite). `noise` is the variance of the observations.
class GaussianProcess {
 public:
  // At least one point, no two alike unless noise > 0.
  GaussianProcess(std::vector<Codes> points, const std::vector<double>& values, double length, double noise);

  Posterior at(const Codes& point) const;
  double log_likelihood() const { return log_likelihood_; }  // of the values, given length and noise

 private:
  double covariance(const Codes& a, const Codes& b) const;

  std::vector<Codes> points_;
  std::vector<double> covariance_at_;  // of so many differences
  std::vector<double> factor_;  // lower Cholesky factor of the points' covariance, rows one after another: 1, 2, 3, ...
  std::vector<double> weights_;  // the covariance's inverse times the values
  double log_likelihood_ = 0;
};

// The mean of max(best - value, 0) for a value of that distribution.
double expected_improvement(const Posterior& posterior, double best);

}  // namespace motley::planning
