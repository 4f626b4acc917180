// Texts and arrays of tokens, which stay in their mapped files: each sample is a window of tokens, and its targets are
// the tokens that follow them.
#include <algorithm>
#include <cstring>

#include "motley/data/local/array_dataset.h"
#include "motley/data/local/file_bytes.h"
#include "motley/data/local/openers.h"

namespace motley::data {
namespace {

constexpr std::uint32_t kDefaultSequence = 64;
constexpr std::uint32_t kMaxVocabulary = 1 << 24;  // floats, which features are, hold larger tokens no longer exactly

// Tokens in a file: one stream, or rows.
struct Tokens {
  std::shared_ptr<const FileBytes> file;
  const char* begin = nullptr;
  NumberType type = NumberType::kUint8;
  std::uint64_t count = 0;
  std::uint64_t row = 0;  // tokens of a row; 0: a stream
  std::string name;

  template <class Stored>
  Stored at(std::uint64_t index) const {
    Stored token;
    std::memcpy(&token, begin + index * sizeof(Stored), sizeof(Stored));
    return token;
  }
};

class TokenDataset final : public Dataset {
 public:
  // `stride` tokens from one sample's first token to the next one's.
  TokenDataset(Tokens tokens, std::uint64_t stride, std::uint32_t sequence, std::uint32_t size,
               std::uint32_t vocabulary)
      : tokens_(std::move(tokens)), stride_(stride), shape_{sequence}, sequence_(sequence), size_(size) {
    preprocessing_.class_count = vocabulary;
  }

  std::uint32_t size() const override { return size_; }
  const std::vector<std::int64_t>& feature_shape() const override { return shape_; }
  TargetKind target_kind() const override { return TargetKind::kClass; }
  std::uint32_t class_count() const override { return preprocessing_.class_count; }
  std::uint32_t target_width() const override { return sequence_; }
  const ByteFeatures* byte_features() const override { return tokens_.type == NumberType::kUint8 ? &form_ : nullptr; }

  Status read(std::span<const std::uint32_t> samples, const ReadTarget& into) const override {
    check_room(samples, into);
    const auto part = [](auto span, std::size_t at, std::size_t width) {
      return span.empty() ? span : span.subspan(at * width, width);
    };
    for (std::size_t i = 0; i < samples.size(); ++i) {
      MOTLEY_INVARIANT(samples[i] < size_, "sample {} of a dataset of {}", samples[i], size_);
      const std::uint64_t first = samples[i] * stride_;
      MOTLEY_TRY(copy(first, part(into.features, i, sequence_)));
      MOTLEY_TRY(copy(first, part(into.bytes, i, sequence_)));
      MOTLEY_TRY(copy(first + 1, part(into.classes, i, sequence_)));
    }
    return {};
  }

  // Whether all tokens are below the vocabulary's size; of one that is not known (0), its size.
  Result<std::uint32_t> check_all() const {
    return with_number_type(tokens_.type, [&](auto type) -> Result<std::uint32_t> {
      using Stored = decltype(type);
      Stored largest = 0;
      for (std::uint64_t at = 0; at < tokens_.count; ++at) {
        const Stored token = tokens_.at<Stored>(at);
        if (!is_token(static_cast<double>(token))) return refuse(at, static_cast<double>(token));
        largest = std::max(largest, token);
      }
      return static_cast<std::uint32_t>(largest) + 1;
    });
  }
  void set_vocabulary(std::uint32_t size) { preprocessing_.class_count = size; }

 private:
  bool is_token(double value) const {
    return value >= 0 && value < (class_count() == 0 ? kMaxVocabulary : class_count());
  }
  tl::unexpected<Error> refuse(std::uint64_t at, double token) const {
    return fail(ErrorCode::kInvalidInput, "{}: token {} (counted from 0) is {}; accepted: integers from 0 to {}{}",
                tokens_.name, at, token, (class_count() == 0 ? kMaxVocabulary : class_count()) - 1,
                class_count() == 0 ? "" : "; data.vocab_size says of how many tokens, else the training data");
  }
  template <class T>
  Status copy(std::uint64_t first, std::span<T> into) const {
    return with_number_type(tokens_.type, [&](auto type) -> Status {
      for (std::size_t k = 0; k < into.size(); ++k) {
        const auto token = tokens_.at<decltype(type)>(first + k);
        if (!is_token(static_cast<double>(token))) return refuse(first + k, static_cast<double>(token));
        into[k] = static_cast<T>(token);
      }
      return {};
    });
  }

  ByteFeatures form_;  // as they are
  Tokens tokens_;
  std::uint64_t stride_;
  std::vector<std::int64_t> shape_;
  std::uint32_t sequence_;
  std::uint32_t size_;
};

// The part of the tokens that the source names.
void take_part(const DatasetSource& source, Tokens& tokens) {
  const std::uint64_t unit = std::max<std::uint64_t>(1, tokens.row), units = tokens.count / unit;
  const auto at = [&](double share) { return static_cast<std::uint64_t>(share * static_cast<double>(units)) * unit; };
  tokens.begin += at(source.text_begin) * number_size(tokens.type);
  tokens.count = at(source.text_end) - at(source.text_begin);
}

Result<std::unique_ptr<TokenDataset>> cut_windows(const DatasetSource& source, Tokens tokens,
                                                  std::uint32_t vocabulary) {
  const std::string name = tokens.name;
  const std::uint64_t whole = tokens.count;
  take_part(source, tokens);
  if (tokens.row > 0) {
    const std::uint64_t sequence = tokens.row - 1;
    if (sequence == 0 || tokens.count == 0 || (source.sequence > 0 && source.sequence != sequence)) {
      return fail(
          ErrorCode::kInvalidInput,
          "{}: {} rows of {} tokens are used here, each a sample whose last token is a target only; accepted: a "
          "row or more of two tokens or more, and data.sequence_length: {} or 0",
          name, tokens.count / tokens.row, tokens.row, sequence);
    }
    MOTLEY_ASSIGN(const std::uint32_t size, sample_count(tokens.count / tokens.row, name));
    const std::uint64_t stride = tokens.row;
    return std::make_unique<TokenDataset>(std::move(tokens), stride, static_cast<std::uint32_t>(sequence), size,
                                          vocabulary);
  }
  const std::uint32_t sequence = source.sequence > 0 ? source.sequence : kDefaultSequence;
  if (tokens.count <= sequence) {
    return fail(ErrorCode::kInvalidInput,
                "{}: {} of its {} tokens are used here; accepted: {} or more, which are one sequence of {} "
                "(data.sequence_length) and the token after it",
                name, tokens.count, whole, std::uint64_t{sequence} + 1, sequence);
  }
  MOTLEY_ASSIGN(const std::uint32_t size, sample_count((tokens.count - 1) / sequence, name));
  return std::make_unique<TokenDataset>(std::move(tokens), sequence, sequence, size, vocabulary);
}

Result<Tokens> read_npy_tokens(Tokens tokens) {
  MOTLEY_ASSIGN(const NpyArray array, parse_npy(tokens.file->view(), tokens.name));
  if (is_floating(array.type) || array.shape.empty() || array.shape.size() > 2 ||
      (array.fortran_order && array.shape.size() == 2)) {
    return fail(
        ErrorCode::kInvalidInput,
        "{}: {} of shape ({}){}; accepted as tokens: integers, as one stream (N) or as rows (N, length) in C order",
        tokens.name, is_floating(array.type) ? "real numbers" : "integers", fmt::join(array.shape, ", "),
        array.fortran_order ? " in Fortran order" : "");
  }
  tokens.begin = array.values.data();
  tokens.type = array.type;
  tokens.count = array.count();
  tokens.row = array.shape.size() == 2 ? array.shape[1] : 0;
  return tokens;
}

// A file of 16-bit or 32-bit integers and nothing else, as nanoGPT writes it.
Result<Tokens> read_raw_tokens(const DatasetSource& source, Tokens tokens) {
  const std::string_view bytes = tokens.file->view();
  if (source.features.extension() != ".bin") {
    return fail(ErrorCode::kInvalidInput,
                "{}: no npy file; accepted as tokens: .npy files, and .bin files of uint16 or uint32 and nothing else",
                tokens.name);
  }
  tokens.type = source.token_type == TokenType::kUint32 ? NumberType::kUint32 : NumberType::kUint16;
  const std::size_t width = number_size(tokens.type);
  if (bytes.size() % width != 0) {
    return fail(ErrorCode::kInvalidInput, "{}: {} bytes are no array of tokens of {} bytes each (data.token_dtype)",
                tokens.name, bytes.size(), width);
  }
  tokens.begin = bytes.data();
  tokens.count = bytes.size() / width;
  // Of 32-bit tokens every other half is 0 where they are below 65,536, and below 256 where they are below 2^24; then
  // most of the bytes before it are not 0.
  constexpr std::uint64_t kSeen = 4096;
  bool is_small = tokens.count >= 16, is_zero = is_small;
  std::uint64_t pairs = 0, large = 0;
  for (std::uint64_t at = 1; is_small && at < std::min(tokens.count, kSeen); at += 2) {
    is_small = bytes[2 * at + 1] == 0;
    is_zero = is_zero && is_small && bytes[2 * at] == 0;
    large += bytes[2 * at - 1] != 0 ? 1 : 0;
    ++pairs;
  }
  if (source.token_type == TokenType::kAuto && is_small && (is_zero || 2 * large >= pairs)) {
    return fail(
        ErrorCode::kInvalidInput,
        "{}: read as uint16, every other token is {}, as in a file of uint32; accepted: data.token_dtype: uint32, "
        "or uint16 where that is so",
        tokens.name, is_zero ? "0" : "below 256");
  }
  return tokens;
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_text(const DatasetSource& source) {
  Tokens tokens;
  tokens.name = source.features.string();
  MOTLEY_ASSIGN(tokens.file, FileBytes::open(source.features, source.limit_bytes));
  tokens.begin = tokens.file->view().data();
  tokens.count = tokens.file->view().size();
  return cut_windows(source, std::move(tokens), 256);
}

Result<std::unique_ptr<Dataset>> open_tokens(const DatasetSource& source) {
  Tokens tokens;
  tokens.name = source.features.string();
  MOTLEY_ASSIGN(tokens.file, FileBytes::open(source.features, source.limit_bytes));
  const bool has_header = is_npy(tokens.file->view());
  if (has_header && source.token_type != TokenType::kAuto) {
    return fail(ErrorCode::kInvalidInput,
                "{}: an npy file says the type of its tokens; accepted: data.token_dtype: auto", tokens.name);
  }
  MOTLEY_ASSIGN(tokens, has_header ? read_npy_tokens(std::move(tokens)) : read_raw_tokens(source, std::move(tokens)));
  const bool is_large = tokens.count * number_size(tokens.type) > source.checked_bytes;
  const std::uint32_t vocabulary =
      source.preprocessing != nullptr ? source.preprocessing->class_count : source.class_count;
  MOTLEY_ASSIGN(auto dataset, cut_windows(source, std::move(tokens), vocabulary));
  if (vocabulary > 0 && is_large) return dataset;
  MOTLEY_ASSIGN(const std::uint32_t found, dataset->check_all());
  if (vocabulary == 0) dataset->set_vocabulary(found);
  return dataset;
}

}  // namespace motley::data
