#include "motley/scheduling/policies/program.h"

#include <algorithm>
#include <memory>

#ifdef MOTLEY_HAS_HIGHS
#include <interfaces/highs_c_api.h>
#endif

namespace motley::scheduling {

int Program::add_variable(double worth, double least, double most, bool is_whole) {
  variables_.push_back({worth, least, most, is_whole});
  return static_cast<int>(variables_.size()) - 1;
}

void Program::add_limit(const Terms& terms, double least, double most) {
  limits_.push_back({least, most});
  begins_.push_back(static_cast<int>(indices_.size()));
  for (const auto& [variable, factor] : terms) {
    indices_.push_back(variable);
    factors_.push_back(factor);
  }
}

#ifdef MOTLEY_HAS_HIGHS

bool has_program_solver() {
  return true;
}

Result<Program::Answer> Program::maximise(const Limits& limits) const {
  if (variables_.empty()) return Answer{{}, 0, 0, std::vector<double>(limits_.size())};
  const auto column = [&](double Variable::* field) {
    std::vector<double> values;
    for (const Variable& variable : variables_) values.push_back(variable.*field);
    return values;
  };
  const auto row = [&](double Limit::* field) {
    std::vector<double> values;
    for (const Limit& limit : limits_) values.push_back(limit.*field);
    return values;
  };
  std::vector<HighsInt> kinds;
  for (const Variable& variable : variables_) {
    kinds.push_back(variable.is_whole ? kHighsVarTypeInteger : kHighsVarTypeContinuous);
  }
  const bool is_mixed = std::ranges::any_of(variables_, &Variable::is_whole);
  const std::unique_ptr<void, decltype(&Highs_destroy)> highs(Highs_create(), &Highs_destroy);
  Highs_setBoolOptionValue(highs.get(), "output_flag", 0);
  Highs_setIntOptionValue(highs.get(), "threads", 1);
  Highs_setDoubleOptionValue(highs.get(), "time_limit", limits.seconds);
  Highs_setDoubleOptionValue(highs.get(), "mip_rel_gap", limits.gap);
  const auto columns = static_cast<HighsInt>(variables_.size());
  const auto rows = static_cast<HighsInt>(limits_.size());
  const auto terms = static_cast<HighsInt>(indices_.size());
  const HighsInt passed =
      Highs_passMip(highs.get(), columns, rows, terms, kHighsMatrixFormatRowwise, kHighsObjSenseMaximize, 0,
                    column(&Variable::worth).data(), column(&Variable::least).data(), column(&Variable::most).data(),
                    row(&Limit::least).data(), row(&Limit::most).data(), begins_.data(), indices_.data(),
                    factors_.data(), is_mixed ? kinds.data() : nullptr);
  if (passed == kHighsStatusError || Highs_run(highs.get()) == kHighsStatusError) {
    return fail(ErrorCode::kInternal, "HiGHS refuses a program of {} variables and {} limits", columns, rows);
  }
  const HighsInt status = Highs_getModelStatus(highs.get());
  if (status == kHighsModelStatusInfeasible || status == kHighsModelStatusUnbounded ||
      status == kHighsModelStatusUnboundedOrInfeasible) {
    return fail(ErrorCode::kInvalidInput, "a program of {} variables and {} limits has no best answer", columns, rows);
  }
  HighsInt has_answer = 0;
  Highs_getIntInfoValue(highs.get(), "primal_solution_status", &has_answer);
  if (has_answer != kHighsSolutionStatusFeasible) {
    return fail(ErrorCode::kUnavailable, "HiGHS found no answer to a program of {} variables in {:g} s", columns,
                limits.seconds);
  }
  Answer answer;
  answer.values.resize(variables_.size());
  if (!is_mixed) answer.prices.resize(limits_.size());
  Highs_getSolution(highs.get(), answer.values.data(), nullptr, nullptr, is_mixed ? nullptr : answer.prices.data());
  answer.worth = Highs_getObjectiveValue(highs.get());
  answer.bound = answer.worth;
  if (is_mixed) Highs_getDoubleInfoValue(highs.get(), "mip_dual_bound", &answer.bound);
  return answer;
}

#else

bool has_program_solver() {
  return false;
}

Result<Program::Answer> Program::maximise(const Limits&) const {
  return fail(ErrorCode::kUnavailable,
              "needs HiGHS, and this Motley was built without it: install highsbox from PyPI (tools/setup does) and "
              "build again");
}

#endif

}  // namespace motley::scheduling
