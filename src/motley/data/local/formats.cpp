#include "motley/data/local/formats.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <ranges>

#include "motley/base/random.h"
#include "motley/base/text.h"

namespace motley::data {
namespace {

std::uint32_t big_endian(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (const char byte : bytes.substr(at, 4)) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

// a * b, or nothing where that does not fit.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result;
  return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
}

// A text that is a number and nothing else.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// Notes what is wrong with a line where these are gathered; else it is the error.
Status note_malformed(MalformedLines* malformed, std::uint32_t line, Error error) {
  if (malformed == nullptr) return fail(std::move(error));
  malformed->add(line, std::move(error.message));
  return {};
}

// A cell as a user may read it in a message.
std::string excerpt(std::string_view text) {
  constexpr std::size_t kMaxShown = 40;
  std::size_t end = 0;  // between characters
  while (end < std::min(text.size(), kMaxShown)) end += std::max<std::size_t>(1, utf8_length(text.substr(end)));
  return escaped(text.substr(0, end)) + (end < text.size() ? "..." : "");
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

// Splits CSV text into records; a quoted cell may hold commas, quotes ("") and line ends.
class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  bool at_end() const { return at_ >= text_.size(); }
  std::uint32_t line() const { return line_; }  // of the record that is read next

  // The next record's cells; an empty line has a single empty one.
  Status next(std::vector<std::string>& cells) {
    cells.clear();
    record_at_ = at_;
    record_line_ = line_;
    for (;;) {
      MOTLEY_ASSIGN(std::string cell, next_cell(cells.size() + 1));
      cells.push_back(std::move(cell));
      if (at_end()) return {};
      const char separator = text_[at_++];
      if (separator == ',') continue;
      if (separator == '\r' && !at_end() && text_[at_] == '\n') ++at_;
      ++line_;
      return {};
    }
  }

  // Goes back to read on at the line of text after the one where the last record began: a quote too many makes a record
  // swallow good lines, up to the whole rest of the text.
  void skip_line() {
    at_ = std::min(text_.find_first_of("\r\n", record_at_), text_.size());
    at_ += text_.substr(at_).starts_with("\r\n") ? 2 : at_end() ? 0 : 1;
    line_ = record_line_ + 1;
  }

 private:
  bool at_separator() const { return at_end() || text_[at_] == ',' || text_[at_] == '\n' || text_[at_] == '\r'; }

  Result<std::string> next_cell(std::size_t column) {
    std::string cell;
    if (at_end() || text_[at_] != '"') {
      while (!at_separator()) cell += text_[at_++];
      return cell;
    }
    const std::uint32_t opened = line_;
    for (++at_; !at_end(); ++at_) {
      const bool is_quote = text_[at_] == '"';
      if (is_quote) ++at_;
      if (is_quote && at_separator()) return cell;
      if (is_quote && text_[at_] != '"') {
        return fail(ErrorCode::kInvalidInput,
                    "{}:{}: cell {} goes on after its closing quote in line {}; write quotes inside a quoted cell "
                    "twice",
                    name_, opened, column, line_);
      }
      line_ += text_[at_] == '\n' ? 1 : 0;
      cell += text_[at_];
    }
    return fail(ErrorCode::kInvalidInput, "{}:{}: the quote that opens cell {} is never closed", name_, opened, column);
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  std::size_t record_at_ = 0;  // where the last record began
  std::uint32_t record_line_ = 1;
};

// The first line of a table, and what each column is read as: positions in `names`, of texts in the order in which the
// caller named them.
struct CsvHeader {
  std::vector<std::string> names;
  std::vector<bool> is_number;
  std::optional<std::size_t> target;
  std::vector<std::size_t> categories;
  std::vector<std::size_t> one_hot;
};

Status check_names(const std::vector<std::string>& names, const std::string& name) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) {
      return fail(ErrorCode::kInvalidInput, "{}:1: column {} has no name; the first line must name all columns", name,
                  i + 1);
    }
    if (std::ranges::count(names, names[i]) > 1) {
      return fail(ErrorCode::kInvalidInput, "{}:1: two columns are named '{}'", name, excerpt(names[i]));
    }
  }
  return {};
}

Result<CsvHeader> read_header(CsvReader& reader, const std::string& name, const TableRoles& roles) {
  CsvHeader header;
  MOTLEY_TRY(reader.next(header.names));
  for (std::string& column : header.names) column = std::string(trimmed(column));
  const std::vector<std::string>& names = header.names;
  MOTLEY_TRY(check_names(names, name));
  std::vector<const char*> taken(names.size(), nullptr);
  const auto take = [&](const std::string& column, const char* role) -> Result<std::size_t> {
    const auto found = std::ranges::find(names, column);
    if (found == names.end()) {
      return fail(ErrorCode::kInvalidInput, "{}: has no column '{}', which {} names; its columns are {}", name, column,
                  role, fmt::join(names, ", "));
    }
    const auto at = static_cast<std::size_t>(found - names.begin());
    if (taken[at] != nullptr) {
      return fail(ErrorCode::kInvalidInput, "{}: {} and {} name column '{}'; accepted: one of them, once", name,
                  taken[at], role, column);
    }
    taken[at] = role;
    return at;
  };
  if (!roles.target.empty()) {
    MOTLEY_ASSIGN(header.target, take(roles.target, "data.target"));
  }
  for (const std::string& column : roles.dropped) MOTLEY_TRY(take(column, "data.drop_columns"));
  for (const std::string& column : roles.categories) {
    MOTLEY_ASSIGN(const std::size_t at, take(column, "data.categorical_columns"));
    header.categories.push_back(at);
  }
  for (const std::string& column : roles.one_hot) {
    MOTLEY_ASSIGN(const std::size_t at, take(column, "data.one_hot_columns"));
    header.one_hot.push_back(at);
  }
  for (const char* const role : taken) header.is_number.push_back(role == nullptr);
  return header;
}

Result<double> read_number(std::string_view cell, const std::string& column, bool may_miss, const std::string& name,
                           std::uint32_t line) {
  if (const std::optional<double> value = parse_finite(cell)) return *value;
  cell = trimmed(cell);
  if (is_missing(cell)) {
    if (may_miss) return std::numeric_limits<double>::quiet_NaN();
    return fail(ErrorCode::kInvalidInput,
                "{}:{}: column '{}' is missing ('{}'); accepted: a finite number, or data.missing: drop, mean, median "
                "or zero",
                name, line, excerpt(column), excerpt(cell));
  }
  return fail(ErrorCode::kInvalidInput,
              "{}:{}: column '{}' holds '{}'; a finite number is wanted: name the column in data.one_hot_columns, in "
              "data.categorical_columns or in data.drop_columns",
              name, line, excerpt(column), excerpt(cell));
}

// Reads one record and adds it to the table; an empty line adds none. After an error the table may have a part of the
// row. `cells` is memory to reuse.
Status read_row(CsvReader& reader, const CsvHeader& header, const std::string& name, bool may_miss,
                std::vector<std::string>& cells, Table& table) {
  const std::uint32_t line = reader.line();
  MOTLEY_TRY(reader.next(cells));
  if (cells.size() == 1 && trimmed(cells[0]).empty() && (header.names.size() > 1 || reader.at_end())) {
    return {};
  }
  if (cells.size() != header.names.size()) {
    return fail(ErrorCode::kInvalidInput, "{}:{}: {} cells; the header names {} columns", name, line, cells.size(),
                header.names.size());
  }
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (!header.is_number[i]) continue;
    MOTLEY_ASSIGN(const double value, read_number(cells[i], header.names[i], may_miss, name, line));
    table.cells.push_back(value);
  }
  for (const std::size_t column : header.categories) {
    table.ids.push_back(category_id(header.names[column], trimmed(cells[column])));
  }
  for (const std::size_t column : header.one_hot) table.one_hot.emplace_back(trimmed(cells[column]));
  if (header.target) table.targets.emplace_back(trimmed(cells[*header.target]));
  table.lines.push_back(line);
  return {};
}

// A hash of the text, going on from `state`: of each eight bytes and of the length at last.
std::uint64_t text_hash(std::uint64_t state, std::string_view text) {
  for (std::size_t begin = 0; begin < text.size(); begin += 8) {
    std::uint64_t word = 0;
    for (std::size_t i = begin; i < std::min(begin + 8, text.size()); ++i) {
      word |= std::uint64_t{static_cast<unsigned char>(text[i])} << 8 * (i - begin);
    }
    state = mix({state, word});
  }
  return mix({state, text.size()});
}

constexpr std::size_t kCriteoFields = 1 + kCriteoFeatures + kCriteoCategories;

// Adds one line to the rest; after an error they may have a part of it. `columns` are the names of the categories.
Status read_criteo_line(std::string_view line, const std::string& name, std::uint32_t number,
                        const std::vector<std::string>& columns, CriteoLines& lines) {
  const auto fields = static_cast<std::size_t>(std::count(line.begin(), line.end(), '\t')) + 1;
  if (fields != kCriteoFields) {
    return fail(ErrorCode::kInvalidInput,
                "{}:{}: {} fields; accepted: {}, separated by tabs, which are a label, {} numbers and {} categories",
                name, number, fields, kCriteoFields, kCriteoFeatures, kCriteoCategories);
  }
  const auto next_field = [&line] {
    const std::string_view field = line.substr(0, line.find('\t'));
    line.remove_prefix(std::min(field.size() + 1, line.size()));
    return field;
  };
  const std::string_view label = next_field();
  if (label != "0" && label != "1") {
    return fail(ErrorCode::kInvalidInput, "{}:{}: label '{}'; accepted: 0 and 1", name, number, excerpt(label));
  }
  for (std::size_t i = 0; i < kCriteoFeatures; ++i) {
    const std::string_view field = next_field();
    const auto value = field.empty() ? 0 : parse_number<std::int64_t>(field);
    if (!value) {
      return fail(ErrorCode::kInvalidInput, "{}:{}: number {} of {} is '{}'; accepted: an integer, or nothing", name,
                  number, i + 1, kCriteoFeatures, excerpt(field));
    }
    lines.features.push_back(criteo_feature(*value));
  }
  for (const std::string& column : columns) {
    const std::string_view field = next_field();
    if (field.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      return fail(ErrorCode::kInvalidInput, "{}:{}: category {} is '{}'; accepted: hexadecimal digits, or nothing",
                  name, number, column, excerpt(field));
    }
    lines.ids.push_back(category_id(column, field));
  }
  lines.classes.push_back(label == "1" ? 1 : 0);
  return {};
}

// The value of a key in a npy header, which is a Python dictionary written by numpy: the text after "'key':".
Result<std::string_view> npy_field(std::string_view header, std::string_view key, const std::string& name) {
  const std::size_t at = header.find(fmt::format("'{}':", key));
  if (at == std::string_view::npos) {
    return fail(ErrorCode::kCorrupt, "{}: its npy header has no '{}': {}", name, key, excerpt(header));
  }
  return trimmed(header.substr(at + key.size() + 3));
}

}  // namespace

Result<IdxArray> parse_idx(std::string_view bytes, const std::string& name) {
  if (bytes.size() < 4 || bytes[0] != 0 || bytes[1] != 0) {
    return fail(
        ErrorCode::kCorrupt,
        "{}: no IDX file: at offset 0, two zero bytes, a type and a number of dimensions are expected; found {} "
        "bytes{}",
        name, bytes.size(), bytes.size() < 4 ? "" : fmt::format(" that start with {:08x}", big_endian(bytes, 0)));
  }
  const int type = static_cast<unsigned char>(bytes[2]);
  const std::size_t dimensions = static_cast<unsigned char>(bytes[3]);
  if (type != 0x08) {
    return fail(ErrorCode::kInvalidInput, "{}: IDX type {:#04x} at offset 2; only unsigned bytes (0x08) are accepted",
                name, type);
  }
  if (dimensions < 1 || dimensions > 8) {
    return fail(ErrorCode::kCorrupt, "{}: {} IDX dimensions at offset 3; 1 to 8 are accepted", name, dimensions);
  }
  const std::size_t header = 4 + 4 * dimensions;
  if (bytes.size() < header) {
    return fail(ErrorCode::kCorrupt, "{}: ends at offset {} inside its header of {} bytes", name, bytes.size(), header);
  }
  IdxArray array;
  std::optional<std::uint64_t> count = 1;
  for (std::size_t i = 0; i < dimensions && count; ++i) {
    array.sizes.push_back(big_endian(bytes, 4 + 4 * i));
    count = product(*count, array.sizes.back());
  }
  if (!count || *count != bytes.size() - header) {
    return fail(ErrorCode::kCorrupt, "{}: {} values after offset {}; its sizes {} promise {}", name,
                bytes.size() - header, header, fmt::join(array.sizes, "x"),
                count ? std::to_string(*count) : "too many");
  }
  array.values = bytes.substr(header);
  return array;
}

bool is_gzip(std::string_view bytes) {
  return bytes.starts_with("\x1f\x8b\x08");  // with the only method there is
}

Result<std::string> gunzip(std::string_view bytes, const std::string& name, std::size_t limit) {
  z_stream stream{};
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) {
    return fail(ErrorCode::kInternal, "{}: zlib does not start", name);
  }
  std::string unpacked;
  std::array<char, 1 << 16> block;
  std::size_t fed = 0;
  int code = Z_OK;
  while (code == Z_OK) {
    if (stream.avail_in == 0) {
      const std::size_t piece = std::min<std::size_t>(bytes.size() - fed, 1U << 30);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + fed));
      stream.avail_in = static_cast<uInt>(piece);
      fed += piece;
    }
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = block.size();
    code = inflate(&stream, Z_NO_FLUSH);
    const std::size_t got = block.size() - stream.avail_out;
    if (unpacked.size() + got > limit) {
      inflateEnd(&stream);
      return fail(ErrorCode::kInvalidInput, "{}: unpacks to more than the {} bytes that are accepted", name, limit);
    }
    unpacked.append(block.data(), got);
    const bool has_member = stream.avail_in > 0 || fed < bytes.size();
    if (code == Z_STREAM_END && has_member) {
      code = inflateReset(&stream);  // gzip files may be strung together
    }
  }
  const std::size_t stopped = fed - stream.avail_in;
  inflateEnd(&stream);
  if (code != Z_STREAM_END) {
    return fail(ErrorCode::kCorrupt, "{}: gzip data is {} at offset {} of {}", name,
                stopped == bytes.size() ? "cut short" : "damaged", stopped, bytes.size());
  }
  return unpacked;
}

void MalformedLines::add(std::uint32_t line, std::string message) {
  if (count == 0 || line < first_line) {
    first_line = line;
    first = std::move(message);
  }
  ++count;
}

std::uint64_t category_id(std::string_view column, std::string_view value) {
  return text_hash(text_hash(0, column), value);
}

std::optional<double> parse_finite(std::string_view text) {
  text = trimmed(text);
  text.remove_prefix(text.starts_with('+') && !text.starts_with("+-") ? 1 : 0);
  const std::optional<double> value = parse_number<double>(text);
  return value && std::isfinite(static_cast<float>(*value)) ? value : std::nullopt;
}

bool is_missing(std::string_view cell) {
  constexpr std::string_view kWords[] = {"", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?"};
  return std::ranges::find(kWords, trimmed(cell)) != std::end(kWords);
}

Result<Table> parse_csv(std::string_view text, const std::string& name, const TableRoles& roles,
                        MalformedLines* malformed) {
  if (text.starts_with("\xef\xbb\xbf")) {
    text.remove_prefix(3);  // the mark that spreadsheets put before UTF-8
  }
  CsvReader reader(text, name);
  MOTLEY_ASSIGN(const CsvHeader header, read_header(reader, name, roles));
  Table table;
  for (std::size_t i = 0; i < header.names.size(); ++i) {
    if (header.is_number[i]) table.columns.push_back(header.names[i]);
  }
  std::vector<std::string> cells;
  while (!reader.at_end()) {
    const std::uint32_t line = reader.line();
    Status read = read_row(reader, header, name, roles.may_miss, cells, table);
    if (read) continue;
    MOTLEY_TRY(note_malformed(malformed, line, std::move(read).error()));
    table.cells.resize(table.rows() * table.columns.size());  // what of the row was read before is taken back
    reader.skip_line();
  }
  return table;
}

float criteo_feature(std::int64_t number) {
  return static_cast<float>(std::log1p(static_cast<double>(std::max<std::int64_t>(number, 0))));
}

std::string criteo_column(std::size_t index) {
  return fmt::format("C{}", index + 1);
}

Result<CriteoLines> parse_criteo(std::string_view text, const std::string& name, MalformedLines* malformed) {
  std::vector<std::string> columns;
  for (std::size_t i = 0; i < kCriteoCategories; ++i) {
    columns.push_back(criteo_column(i));
  }
  CriteoLines lines;
  for (std::uint32_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    line.remove_suffix(line.ends_with('\r') ? 1 : 0);
    if (line.empty()) continue;
    Status read = read_criteo_line(line, name, number, columns, lines);
    if (read) continue;
    MOTLEY_TRY(note_malformed(malformed, number, std::move(read).error()));
    lines.features.resize(lines.rows() * kCriteoFeatures);
    lines.ids.resize(lines.rows() * kCriteoCategories);
  }
  return lines;
}

std::uint64_t NpyArray::count() const {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

double NpyArray::at(std::uint64_t index) const {
  return with_number_type(type, [&]<class T>(T value) {
    std::memcpy(&value, values.data() + index * sizeof(T), sizeof(T));
    return static_cast<double>(value);
  });
}

std::size_t number_size(NumberType type) {
  return with_number_type(type, [](auto value) { return sizeof value; });
}

bool is_floating(NumberType type) {
  return type == NumberType::kFloat32 || type == NumberType::kFloat64;
}

bool is_npy(std::string_view bytes) {
  return bytes.starts_with("\x93NUMPY");
}

Result<NpyArray> parse_npy(std::string_view bytes, const std::string& name) {
  if (bytes.size() < 12 || !is_npy(bytes)) {
    return fail(ErrorCode::kCorrupt, "{}: no npy file: at offset 0, '\\x93NUMPY' and a version are expected", name);
  }
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version != 1 && version != 2) {
    return fail(ErrorCode::kInvalidInput, "{}: npy version {} at offset 6; 1 and 2 are accepted", name, version);
  }
  const auto byte = [&](std::size_t at) { return static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[at])); };
  const std::uint64_t length =
      byte(8) | byte(9) << 8 | (version == 2 ? byte(10) << 16 | byte(11) << 24 : std::uint64_t{0});
  const std::size_t begin = version == 1 ? 10 : 12;
  if (length > bytes.size() - begin) {
    return fail(ErrorCode::kCorrupt, "{}: ends at offset {} inside its npy header of {} bytes", name, bytes.size(),
                length);
  }
  const std::string_view header = bytes.substr(begin, length);
  NpyArray array;
  MOTLEY_ASSIGN(std::string_view type, npy_field(header, "descr", name));
  type = type.starts_with('\'') ? type.substr(1, type.find('\'', 1) - 1) : type.substr(0, type.find(','));
  using enum NumberType;
  constexpr std::pair<std::string_view, NumberType> kTypes[] = {
      {"<f4", kFloat32}, {"<f8", kFloat64}, {"|b1", kUint8},  {"|i1", kInt8},  {"|u1", kUint8}, {"<i2", kInt16},
      {"<u2", kUint16},  {"<i4", kInt32},   {"<u4", kUint32}, {"<i8", kInt64}, {"<u8", kUint64}};
  const auto known = std::ranges::find(kTypes, type, &std::pair<std::string_view, NumberType>::first);
  if (known == std::end(kTypes)) {
    return fail(ErrorCode::kInvalidInput,
                "{}: npy values of type '{}'; accepted: {}, which astype('float32') converts to", name, excerpt(type),
                fmt::join(std::views::keys(kTypes), ", "));
  }
  array.type = known->second;
  MOTLEY_ASSIGN(const std::string_view order, npy_field(header, "fortran_order", name));
  array.fortran_order = order.starts_with("True");
  if (!array.fortran_order && !order.starts_with("False")) {
    return fail(ErrorCode::kCorrupt, "{}: npy fortran_order is '{}'; accepted: False, True", name,
                excerpt(order.substr(0, order.find(','))));
  }
  MOTLEY_ASSIGN(std::string_view shape, npy_field(header, "shape", name));
  const std::size_t close = shape.find(')');
  if (!shape.starts_with('(') || close == std::string_view::npos) {
    return fail(ErrorCode::kCorrupt, "{}: npy shape '{}' is no tuple", name, excerpt(shape));
  }
  shape = shape.substr(1, close - 1);
  std::optional<std::uint64_t> size = number_size(array.type);
  while (!trimmed(shape).empty()) {
    const std::string_view text = trimmed(shape.substr(0, shape.find(',')));
    shape.remove_prefix(std::min(shape.find(','), shape.size() - 1) + 1);
    const auto extent = parse_number<std::uint64_t>(text);
    if (!extent || array.shape.size() == 8) {
      return fail(ErrorCode::kCorrupt, "{}: npy shape has '{}'; up to 8 integers are accepted", name, excerpt(text));
    }
    array.shape.push_back(*extent);
    size = size ? product(*size, *extent) : size;
  }
  array.values = bytes.substr(begin + length);
  if (!size || *size != array.values.size()) {
    return fail(ErrorCode::kCorrupt, "{}: {} bytes of values after offset {}; its shape {} of {} promises {}", name,
                array.values.size(), begin + length, fmt::join(array.shape, "x"), type,
                size ? std::to_string(*size) : "too many");
  }
  return array;
}

}  // namespace motley::data
