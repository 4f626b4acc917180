// Errors as values. Functions that can fail in ways a user can cause return Result<T> (or Status for no value);
// exceptions stay inside a function or come from libraries and are caught at the edge of a module.
#pragma once

#include <fmt/format.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace motley {

// What went wrong, coarse enough to choose an exit code and a reaction.
enum class ErrorCode {
  kInvalidInput,  // a file, flag or value that the user gave; exit code 2
  kUnavailable,   // something needed is missing here (a device, a library, a permission)
  kTimeout,       // a deadline passed; the message names whom was waited for
  kPeerLost,      // another rank ended or its connection broke
  kServerLost,    // a parameter server ended or a connection to it broke
  kRefused,       // a peer was turned away: wrong secret, stale epoch, mismatching version or configuration
  kCorrupt,       // bytes that fail their checksum or format
  kIo,            // the operating system refused: disk full, permission, and so on
  kOutOfMemory,   // a device has less memory than was asked for
  kDiverged,      // the numbers are no longer finite
  kInterrupted,   // the user asked to stop; exit code 130
  kLeft,          // this process was asked to leave a job that goes on without it; exit code 143
  kForbidden,     // it is not for whoever asks
  kTooMany,       // a cap is reached
  kInternal,      // everything else
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // one or more sentences for the user: names file, field, value and what would be accepted
  int rank = -1;        // the rank that the error is about (whom was waited for, who was lost), -1 where there is none

  // The same error with words put before its message, to say what was being done.
  Error within(const std::string& context) const { return {code, context + ": " + message, rank}; }
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

// fail(ErrorCode::kIo, "cannot read '{}'", path) converts to any Result.
template <class... Args>
tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...), -1});
}
inline tl::unexpected<Error> fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}

const char* to_string(ErrorCode code);

}  // namespace motley

// MOTLEY_TRY(expression): returns the expression's error from the enclosing function, if it has one.
#define MOTLEY_TRY(expression)                                 \
  do {                                                         \
    if (auto motley_result = (expression); !motley_result) {   \
      return ::motley::fail(std::move(motley_result).error()); \
    }                                                          \
  } while (false)

#define MOTLEY_CONCAT_INNER(a, b) a##b
#define MOTLEY_CONCAT(a, b) MOTLEY_CONCAT_INNER(a, b)
#define MOTLEY_ASSIGN_INNER(temporary, target, expression) \
  auto temporary = (expression);                           \
  if (!temporary) {                                        \
    return ::motley::fail(std::move(temporary).error());   \
  }                                                        \
  target = std::move(*temporary)

// MOTLEY_ASSIGN(auto value, expression): the expression's value, or returns its error from the enclosing function.
#define MOTLEY_ASSIGN(target, expression) \
  MOTLEY_ASSIGN_INNER(MOTLEY_CONCAT(motley_result_, __LINE__), target, expression)

// MOTLEY_INVARIANT(condition, "sentence {}", args...): a broken invariant is a bug in Motley; stops with the sentence.
#define MOTLEY_INVARIANT(condition, ...)                                                \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      ::motley::stop_on_broken_invariant(__FILE__, __LINE__, fmt::format(__VA_ARGS__)); \
    }                                                                                   \
  } while (false)

namespace motley {
[[noreturn]] void stop_on_broken_invariant(const char* file, int line, const std::string& sentence);
}
