"""What tools/lint, tools/house and tools/test count: functions and fields of C++ sources, retired words, single tests."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import source_rules
from cpp_source import Source

SOURCE = r"""
#include "a.h"  // { not a brace of the code
#define MACRO(x) { \
  x
namespace motley {
namespace {

constexpr const char* kText = "class { \" {";  /* { */
const Row kRows[] = {{1, '{'}, {2, '}'}};
enum class Kind { kOne, kTwo };

// Prints.
template <typename T>
Status print(const std::vector<T>& values, std::function<void()> then = {}) {
  const auto inner = [&] { return values.size() > 1; };
  if (inner()) { then(); }
  return {};
}

class Held final : public Base {
 public:
  explicit Held(int size) : size_(size), rows_{1, 2}, name_("x") {}
  Held& operator=(Held&& other) noexcept {
    return *this;
  }
  bool operator<(const Held& other) const;
  int size() const { return size_; }
  using Rows = std::vector<int>;
  static constexpr int kMost = 3;

 private:
  struct State {
    std::map<std::string, int> counts;
    double first = 0, second = 1;
  };
  struct Entry {
    int value;
  };
  const int size_;
  std::vector<Entry> rows_{};
  std::function<Status(int, const std::string&)> call_ = {};
  std::unique_ptr<State> state_;
  std::string name_, other_;
  mutable std::mutex mutex_;
  struct {
    int open = 0;
    bool stops = false;
  } requests_;
};

struct RunOptions {
  int one = 1;
  bool two = one > 0;
};

}  // namespace

Held::Held(Held&& other) noexcept
    : size_(std::exchange(other.size_, 0)),
      rows_{std::move(other.rows_)} {
  for (;;) {
  }
}

}  // namespace motley
"""


class Sources(unittest.TestCase):
    def setUp(self):
        self.source = Source(SOURCE)

    def test_functions_begin_with_their_declaration_and_end_with_their_brace(self):
        lines = SOURCE.splitlines()
        found = {(one.name, lines[one.first - 1].strip(), one.lines) for one in self.source.functions}
        self.assertEqual(found, {
            ("print", "template <typename T>", 6),
            ("Held", "explicit Held(int size) : size_(size), rows_{1, 2}, name_(\"x\") {}", 1),
            ("operator=", "Held& operator=(Held&& other) noexcept {", 3),
            ("size", "int size() const { return size_; }", 1),
            ("Held::Held", "Held::Held(Held&& other) noexcept", 6)})

    def test_fields_are_those_of_a_class_itself(self):
        fields = {one.name: ([name for _, name in one.fields], one.has_functions) for one in self.source.classes}
        self.assertEqual(fields, {
            "Held::State": (["counts", "first", "second"], False),
            "Held::Entry": (["value"], False),
            "Held": (["size_", "rows_", "call_", "state_", "name_", "other_", "mutex_", "open", "stops",
                      "requests_"], True),
            "RunOptions": (["one", "two"], False)})

    def test_a_state_that_a_class_holds_is_counted_in(self):
        code = source_rules.Code.__new__(source_rules.Code)
        code.files = {"a.cpp": self.source}
        sizes = {name: fields for fields, _, _, name in code.class_sizes()}
        self.assertEqual(sizes, {"Held": 10 + 3, "Held::State": 3, "Held::Entry": 1})


class Words(unittest.TestCase):
    def retired(self, table, text, file="src/a.cpp"):
        words = source_rules.RetiredWords.__new__(source_rules.RetiredWords)
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "list.txt").write_text(table)
            words.LIST = str(pathlib.Path(folder) / "list.txt")
            words.__init__()
        return sorted(what for _, what, _ in words._found(file, text))

    def test_a_word_is_a_part_of_an_identifier_of_several(self):
        self.assertEqual(self.retired("word\troom\tmodule\n", "a room, kRoomCount, max_room; mushroom rooms"),
                         ["kRoomCount", "max_room"])

    def test_types_names_and_phrases(self):
        self.assertEqual(self.retired("type\tPace\tTiming\n", "StagePace Paced space pace PaceMaker"), ["PaceMaker", "StagePace"])
        self.assertEqual(self.retired("name\ttold\tacknowledged\n", "told told_ Told"), ["told"])
        self.assertEqual(self.retired("phrase\tunlike devices\theterogeneous\n", "Unlike\n// devices, heterogeneous device"),
                         ["Unlike // devices"])
        self.assertEqual(self.retired("call\t\\b[a-z]\\w*_of\\(\ta verb\n", "rank_of(x) all_offset(x)"), ["rank_of("])

    def test_exceptions_are_files_and_identifiers_with_a_reason(self):
        table = "word\tlane\tchannel\tsrc/kernels/*, lane_id: lanes of a register\n"
        self.assertEqual(self.retired(table, "first_lane lane_id"), ["first_lane"])
        self.assertEqual(self.retired(table, "first_lane", "src/kernels/sum.cpp"), [])
        with self.assertRaises(SystemExit):
            self.retired("word\tlane\tchannel\tsrc/kernels/*\n", "")


class Tests(unittest.TestCase):
    def test_single_tests_are_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "ctest.xml").write_text(
                '<testsuite><testcase name="good" status="run"/><testcase name="bad" status="fail"><failure/></testcase>'
                '<testcase name="crashed" status="fail"><failure/></testcase><testcase name="plain" status="run"/></testsuite>')
            (folder / "good.xml").write_text('<testsuites><testsuite><testcase classname="A" name="a"/><testcase classname="A" '
                                             'name="b"><skipped/></testcase></testsuite></testsuites>')
            (folder / "bad.xml").write_text('<testsuites><testsuite><testcase classname="B" name="a"/><testcase classname="B" '
                                            'name="b"><failure message="a.cpp:3 is 4">a.cpp:3\nis 4</failure></testcase></testsuite></testsuites>')
            (folder / "crashed.xml").write_text('<testsuites><testsuite><testcase classname="C" name="a"/></testsuite></testsuites>')
            done = subprocess.run([sys.executable, TOOLS / "count_tests.py", folder / "ctest.xml", folder],
                                  capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.splitlines(), ["4 2 1", "B.b", "    a.cpp:3", "    is 4", "crashed"])
        self.assertEqual(done.stderr.splitlines(), ["  skipped: A.b"])


if __name__ == "__main__":
    unittest.main()
