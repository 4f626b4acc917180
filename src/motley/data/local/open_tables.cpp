// CSV and Criteo's format: tables that are parsed into memory. What a table's training set teaches (the values that
// fill missing cells, those of one-hot columns, the labels) is taken over by its other sets.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "motley/data/local/array_dataset.h"
#include "motley/data/local/file_bytes.h"
#include "motley/data/local/openers.h"

namespace motley::data {
namespace {

constexpr std::size_t kMaxOneHotValues = 1000;  // of a column

// The bytes of a file that is parsed into memory.
Result<std::shared_ptr<const FileBytes>> open_text_file(const DatasetSource& source) {
  MOTLEY_ASSIGN(auto file, FileBytes::open(source.features, source.limit_bytes));
  if (file->view().size() > source.limit_bytes) {
    return fail(ErrorCode::kInvalidInput,
                "'{}' has {} bytes; at most {} are accepted of a table, which is parsed into memory",
                source.features.string(), file->view().size(), source.limit_bytes);
  }
  return file;
}

// What a dataset of `rows` good lines tells of the malformed ones, or an error where there are too many of them.
Result<Skipped> skipped_lines(MalformedLines malformed, std::uint64_t rows, double accepted_share) {
  const std::uint64_t lines = rows + malformed.count;
  // The share was written as a decimal: 0.29 of 100 lines are 29, where the product is a little less.
  const double accepted = std::floor(accepted_share * static_cast<double>(lines) * (1 + 1e-12));
  if (malformed.count > 0 && static_cast<double>(malformed.count) > accepted) {
    return fail(ErrorCode::kInvalidInput,
                "{}; malformed are {} of {} lines; data.max_malformed_fraction: {} accepts {}", malformed.first,
                malformed.count, lines, accepted_share, accepted);
  }
  return Skipped{malformed.count, std::move(malformed.first)};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  const double upper = *middle;
  return values.size() % 2 == 1 ? upper : (upper + *std::max_element(values.begin(), middle)) / 2;
}

// A CSV table on its way to a dataset: rows are left out first, then cells become features.
class TableReader {
 public:
  TableReader(const DatasetSource& source, Table table, MalformedLines malformed)
      : source_(source),
        name_(source.features.string()),
        table_(std::move(table)),
        malformed_(std::move(malformed)),
        keeps_(table_.rows(), true) {
    if (source.preprocessing != nullptr) contents_.preprocessing = *source.preprocessing;
  }

  Result<ArrayContents> read() {
    MOTLEY_TRY(check_columns());
    is_labelled_ = has_labels();
    leave_out_missing();
    source_.target_kind == TargetKind::kReal ? take_values() : take_classes();
    std::vector<std::size_t> rows;
    for (std::size_t row = 0; row < table_.rows(); ++row) {
      if (keeps_[row]) rows.push_back(row);
    }
    MOTLEY_ASSIGN(contents_.skipped, skipped_lines(std::move(malformed_), rows.size(), source_.malformed_share));
    if (missing_rows_ > 0) {
      contents_.notes.push_back(
          fmt::format("{}: {} of {} rows have missing cells and are left out", name_, missing_rows_, table_.rows()));
    }
    MOTLEY_ASSIGN(contents_.size, sample_count(rows.size(), name_));
    if (source_.preprocessing == nullptr) MOTLEY_TRY(learn(rows));
    take_features(rows);
    return std::move(contents_);
  }

 private:
  bool fills() const { return source_.missing != MissingCells::kError && source_.missing != MissingCells::kDrop; }
  double cell(std::size_t row, std::size_t column) const { return table_.cells[row * table_.columns.size() + column]; }
  std::string place(std::size_t row) const {
    return fmt::format("{}:{}: column '{}'", name_, table_.lines[row], source_.target_column);
  }
  void note_malformed(std::size_t row, Error error) {
    malformed_.add(table_.lines[row], std::move(error.message));
    keeps_[row] = false;
  }

  // Features are told apart by where they stand.
  Status check_columns() {
    std::vector<std::string>& columns = contents_.preprocessing.columns;
    if (source_.preprocessing == nullptr) columns = table_.columns;
    if (columns == table_.columns) return {};
    return fail(ErrorCode::kInvalidInput,
                "{}: its columns of numbers are {}; accepted: those of the training data in the same order, {}", name_,
                fmt::join(table_.columns, ", "), fmt::join(columns, ", "));
  }

  // Whether targets are labels, and not numbers: said, or seen from none of them being one.
  bool has_labels() const {
    if (source_.target_kind == TargetKind::kReal) return false;
    if (source_.preprocessing != nullptr) return !source_.preprocessing->class_names.empty();
    if (source_.labels == ClassLabels::kLabel) return true;
    const auto is_number = [](const std::string& target) { return parse_finite(target).has_value(); };
    return std::ranges::none_of(table_.targets, is_number) && !std::ranges::all_of(table_.targets, is_missing);
  }

  // An empty text, which is no label, or what stands for a number that is not there.
  bool misses_target(std::size_t row) const {
    return table_.targets[row].empty() || (!is_labelled_ && is_missing(table_.targets[row]));
  }

  void leave_out_missing() {
    for (std::size_t row = 0; row < table_.rows(); ++row) {
      bool is_whole = !misses_target(row);
      if (source_.missing != MissingCells::kDrop) {
        if (is_whole) continue;
        note_malformed(row, {ErrorCode::kInvalidInput,
                             fmt::format("{} is missing ('{}'); accepted: a target, or data.missing: drop", place(row),
                                         table_.targets[row])});
        continue;
      }
      for (std::size_t column = 0; column < table_.columns.size(); ++column) {
        is_whole = is_whole && !std::isnan(cell(row, column));
      }
      keeps_[row] = is_whole;
      missing_rows_ += is_whole ? 0 : 1;
    }
  }

  void take_values() {
    for (std::size_t row = 0; row < table_.rows(); ++row) {
      if (!keeps_[row]) continue;
      if (const auto value = parse_finite(table_.targets[row])) {
        contents_.values.push_back(static_cast<float>(*value));
      } else {
        note_malformed(row, {ErrorCode::kInvalidInput,
                             fmt::format("{} holds '{}'; a finite number is wanted", place(row), table_.targets[row])});
      }
    }
  }

  void take_classes() {
    std::vector<std::string>& names = contents_.preprocessing.class_names;
    if (is_labelled_ && source_.preprocessing == nullptr) {
      for (std::size_t row = 0; row < table_.rows(); ++row) {
        if (keeps_[row]) names.push_back(table_.targets[row]);
      }
      names = order_labels(std::move(names));
      contents_.notes.push_back(fmt::format("{}: column '{}' holds {} labels, classes from 0 on in this order: {}",
                                            name_, source_.target_column, names.size(), list_first(names)));
    }
    const LabelClasses classes(names);
    for (std::size_t row = 0; row < table_.rows(); ++row) {
      if (!keeps_[row]) continue;
      const std::string& target = table_.targets[row];
      auto value = is_labelled_ ? classes.find(target, place(row)) : read_integer_class(target, place(row));
      if (value) {
        contents_.classes.push_back(*value);
      } else {
        note_malformed(row, std::move(value).error());
      }
    }
  }

  Result<std::int64_t> read_integer_class(const std::string& target, const std::string& where) const {
    if (const auto value = parse_finite(target)) return read_class(*value, source_, where);
    return fail(ErrorCode::kInvalidInput,
                "{} holds '{}', while other rows hold numbers; accepted: integers from 0, or data.target_kind: label, "
                "with which any text is a label",
                where, target);
  }

  // Of the training set: what its other sets take over.
  Status learn(const std::vector<std::size_t>& rows) {
    Preprocessing& learnt = contents_.preprocessing;
    for (std::size_t column = 0; fills() && column < table_.columns.size(); ++column) {
      std::vector<double> values;
      for (const std::size_t row : rows) {
        if (!std::isnan(cell(row, column))) values.push_back(cell(row, column));
      }
      if (values.empty() && !rows.empty()) {
        return fail(ErrorCode::kInvalidInput, "{}: column '{}' is missing in every row; accepted: data.drop_columns",
                    name_, table_.columns[column]);
      }
      learnt.has_indicator.push_back(source_.missing_indicator && values.size() < rows.size());
      learnt.fills.push_back(source_.missing == MissingCells::kZero || values.empty() ? 0
                             : source_.missing == MissingCells::kMedian
                                 ? median(std::move(values))
                                 : std::accumulate(values.begin(), values.end(), 0.0) /
                                       static_cast<double>(values.size()));
    }
    for (std::size_t column = 0; column < source_.one_hot.size(); ++column) {
      std::vector<std::string> values;
      for (const std::size_t row : rows) values.push_back(table_.one_hot[row * source_.one_hot.size() + column]);
      learnt.one_hot_values.push_back(order_labels(std::move(values)));
      if (const std::size_t count = learnt.one_hot_values.back().size(); count > kMaxOneHotValues) {
        return fail(ErrorCode::kInvalidInput,
                    "{}: column '{}' of data.one_hot_columns has {} different values; accepted: {}, or, with a network "
                    "that has embeddings, data.categorical_columns",
                    name_, source_.one_hot[column], count, kMaxOneHotValues);
      }
    }
    return {};
  }

  // Numbers, one-hot columns and indicators of missing cells, in this order.
  void take_features(const std::vector<std::size_t>& rows) {
    const Preprocessing& learnt = contents_.preprocessing;
    const std::size_t columns = table_.columns.size(), categories = source_.categories.size();
    std::size_t width = columns + static_cast<std::size_t>(std::ranges::count(learnt.has_indicator, true));
    for (const auto& values : learnt.one_hot_values) width += values.size();
    std::vector<LabelClasses> one_hot(learnt.one_hot_values.begin(), learnt.one_hot_values.end());
    std::vector<float> features;
    features.reserve(rows.size() * width);
    std::vector<std::size_t> filled(columns, 0);
    std::uint64_t unknown = 0;  // values of one-hot columns
    for (const std::size_t row : rows) {
      for (std::size_t column = 0; column < columns; ++column) {
        const double value = cell(row, column);
        filled[column] += std::isnan(value) ? 1 : 0;
        features.push_back(static_cast<float>(std::isnan(value) ? learnt.fills[column] : value));
      }
      for (std::size_t column = 0; column < one_hot.size(); ++column) {
        const auto hot = one_hot[column].find(table_.one_hot[row * one_hot.size() + column]);
        features.resize(features.size() + learnt.one_hot_values[column].size(), 0);
        if (hot) features[features.size() - learnt.one_hot_values[column].size() + static_cast<std::size_t>(*hot)] = 1;
        unknown += hot ? 0 : 1;
      }
      for (std::size_t column = 0; column < learnt.has_indicator.size(); ++column) {
        if (learnt.has_indicator[column]) features.push_back(std::isnan(cell(row, column)) ? 1.0F : 0.0F);
      }
      const auto ids = table_.ids.begin() + static_cast<std::ptrdiff_t>(row * categories);
      contents_.ids.insert(contents_.ids.end(), ids, ids + static_cast<std::ptrdiff_t>(categories));
    }
    note_filled(filled, unknown);
    contents_.kind = source_.target_kind;
    contents_.shape = {static_cast<std::int64_t>(width)};
    contents_.categories = static_cast<std::uint32_t>(categories);
    contents_.features = own_numbers(std::move(features), width, name_);
  }

  void note_filled(const std::vector<std::size_t>& filled, std::uint64_t unknown) {
    std::vector<std::string> columns;
    for (std::size_t column = 0; column < filled.size(); ++column) {
      if (filled[column] > 0) {
        columns.push_back(fmt::format("{} of '{}' by {:.6g}", filled[column], table_.columns[column],
                                      contents_.preprocessing.fills[column]));
      }
    }
    if (!columns.empty()) {
      contents_.notes.push_back(fmt::format("{}: missing cells are filled: {}", name_, fmt::join(columns, ", ")));
    }
    if (unknown > 0) {
      contents_.notes.push_back(
          fmt::format("{}: {} cells of one-hot columns have values that the training data lacks; their features are 0",
                      name_, unknown));
    }
  }

  const DatasetSource& source_;
  const std::string name_;
  const Table table_;
  MalformedLines malformed_;
  std::vector<bool> keeps_;  // by row
  bool is_labelled_ = false;
  std::uint64_t missing_rows_ = 0;
  ArrayContents contents_;
};

}  // namespace

Result<std::unique_ptr<Dataset>> read_table(std::string_view text, const DatasetSource& source) {
  MalformedLines malformed;
  const TableRoles roles{.target = source.target_column,
                         .dropped = source.drop_columns,
                         .categories = source.categories,
                         .one_hot = source.one_hot,
                         .may_miss = source.missing != MissingCells::kError};
  MOTLEY_ASSIGN(Table table, parse_csv(text, source.features.string(), roles, &malformed));
  MOTLEY_ASSIGN(ArrayContents contents, TableReader(source, std::move(table), std::move(malformed)).read());
  return make_array_dataset(std::move(contents), source);
}

Result<std::unique_ptr<Dataset>> open_csv(const DatasetSource& source) {
  MOTLEY_ASSIGN(const auto file, open_text_file(source));
  return read_table(file->view(), source);
}

Result<std::unique_ptr<Dataset>> open_criteo(const DatasetSource& source) {
  const std::string name = source.features.string();
  if (source.target_kind != TargetKind::kClass) {
    return fail(ErrorCode::kInvalidInput, "{}: Criteo's labels are classes; real targets are accepted from CSV and npy",
                name);
  }
  MOTLEY_ASSIGN(const auto file, open_text_file(source));
  MalformedLines malformed;
  MOTLEY_ASSIGN(CriteoLines lines, parse_criteo(file->view(), name, &malformed));
  ArrayContents contents;
  contents.shape = {static_cast<std::int64_t>(kCriteoFeatures)};
  contents.categories = kCriteoCategories;
  MOTLEY_ASSIGN(contents.skipped, skipped_lines(std::move(malformed), lines.rows(), source.malformed_share));
  MOTLEY_ASSIGN(contents.size, sample_count(lines.rows(), name));
  contents.features = own_numbers(std::move(lines.features), kCriteoFeatures, name);
  contents.ids = std::move(lines.ids);
  contents.classes = std::move(lines.classes);
  DatasetSource two_classes = source;
  if (two_classes.class_count == 0) two_classes.class_count = 2;
  return make_array_dataset(std::move(contents), two_classes);
}

}  // namespace motley::data
