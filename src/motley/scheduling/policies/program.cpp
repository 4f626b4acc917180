#include "motley/scheduling/policies/program.h"

#include <algorithm>
#include <memory>

#ifdef MOTLEY_HAS_HIGHS
#include <interfaces/highs_c_api.h>
#endif

namespace motley::scheduling {

int Program::add_variable(double objective, double lower, double upper, bool is_integer) {
  objective_.push_back(objective);
  lower_.push_back(lower);
  upper_.push_back(upper);
  kinds_.push_back(is_integer ? 1 : 0);
  return static_cast<int>(kinds_.size()) - 1;
}

void Program::add_limit(const Terms& terms, double lower, double upper) {
  limit_lower_.push_back(lower);
  limit_upper_.push_back(upper);
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
  static_assert(kHighsVarTypeContinuous == 0 && kHighsVarTypeInteger == 1);
  if (kinds_.empty()) return Answer{{}, 0, 0, std::vector<double>(begins_.size())};
  const bool is_mixed = std::ranges::count(kinds_, 1) > 0;
  const std::unique_ptr<void, decltype(&Highs_destroy)> highs(Highs_create(), &Highs_destroy);
  Highs_setBoolOptionValue(highs.get(), "output_flag", 0);
  Highs_setIntOptionValue(highs.get(), "threads", 1);
  Highs_setDoubleOptionValue(highs.get(), "time_limit", limits.seconds);
  Highs_setDoubleOptionValue(highs.get(), "mip_rel_gap", limits.gap);
  const auto columns = static_cast<HighsInt>(kinds_.size());
  const auto rows = static_cast<HighsInt>(begins_.size());
  const auto terms = static_cast<HighsInt>(indices_.size());
  const HighsInt passed =
      Highs_passMip(highs.get(), columns, rows, terms, kHighsMatrixFormatRowwise, kHighsObjSenseMaximize, 0,
                    objective_.data(), lower_.data(), upper_.data(), limit_lower_.data(), limit_upper_.data(),
                    begins_.data(), indices_.data(), factors_.data(), is_mixed ? kinds_.data() : nullptr);
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
  answer.values.resize(kinds_.size());
  if (!is_mixed) answer.prices.resize(begins_.size());
  Highs_getSolution(highs.get(), answer.values.data(), nullptr, nullptr, is_mixed ? nullptr : answer.prices.data());
  answer.objective = Highs_getObjectiveValue(highs.get());
  answer.bound = answer.objective;
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
