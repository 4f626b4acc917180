"""What is counted in the sources, for tools/lint (which refuses some of it) and tools/house (which prints it)."""
import collections
import fnmatch
import pathlib
import re
import subprocess

from cpp_source import Source

ROOT = pathlib.Path(__file__).resolve().parents[1]
FUNCTION_LINES = 100  # a function has no more
CLASS_FIELDS = 25  # a class has fewer
ALLOWED = "tools/lint_allowed.txt"

Finding = collections.namedtuple("Finding", "file line name text")  # name: of the function, class or word


def tracked(*patterns):
    """The repository's files, new ones included."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted({file for file in listed if (ROOT / file).is_file()})


def read(file):
    return (ROOT / file).read_text(errors="replace")


class Code:
    """The C++ sources of the library and the benchmarks."""

    def __init__(self):
        self.files = {file: Source(read(file)) for file in tracked("src/*.h", "src/*.cpp", "bench/*.h", "bench/*.cpp")}

    def long_functions(self):
        for file, source in self.files.items():
            for function in source.functions:
                if function.lines > FUNCTION_LINES:
                    yield Finding(file, function.first, function.name, f"{function.name} has {function.lines} lines; accepted: {FUNCTION_LINES}")

    def class_sizes(self):
        """(fields, file, line, name) of each class, the fields of a state that it holds counted in. Plain structs of
        options are left out: they are lists of what a user may set."""
        plain = {}  # structs without functions, by name
        for file, source in self.files.items():
            for one in source.classes:
                if not one.has_functions:
                    plain[one.name.split("::")[-1]] = one
        for file, source in self.files.items():
            nested = {one.name: one for one in source.classes}
            for one in source.classes:
                if not one.has_functions and re.search(r"(Options|Arguments|Spec|Settings)$", one.name):
                    continue
                fields = len(one.fields)
                for kind, _ in one.fields:
                    held = re.sub(r"^.*\b(?:unique_ptr|optional|shared_ptr)<\s*(?:const )?([\w:]+)\s*>.*$", r"\1", kind)
                    held = re.sub(r"^(const|mutable)\s+|[&*\s]+$", "", held)
                    state = nested.get(f"{one.name}::{held}")
                    if state is None and held.endswith("State"):
                        state = plain.get(held.split("::")[-1])
                    fields += len(state.fields) if state is not None else 0
                yield fields, file, one.line, one.name

    def large_classes(self):
        for fields, file, line, name in self.class_sizes():
            if fields >= CLASS_FIELDS:
                yield Finding(file, line, name, f"{name} has {fields} fields; accepted: fewer than {CLASS_FIELDS}")


def includes(file):
    return re.findall(r'(?m)^#include "motley/(.*)"', read(file))


def module_dependencies():
    """Pairs of top-level modules of which the first includes the second."""
    pairs = set()
    for file in tracked("src/motley/*.h", "src/motley/*.cpp"):
        module = file.split("/")[2]
        pairs |= {(module, name.split("/")[0]) for name in includes(file)} - {(module, module)}
    return pairs


def included_headers(module, of):
    """The headers of module `of` that a module includes. One that only includes others stands for those."""
    found = set()
    ahead = {name for file in tracked(f"src/motley/{module}/*") for name in includes(file) if name.startswith(f"{of}/")}
    while ahead:
        name = ahead.pop()
        text = re.sub(r"//.*|/\*.*?\*/", "", read(f"src/motley/{name}"), flags=re.DOTALL if "/*" in name else 0)
        statements = [line for line in text.splitlines() if line.strip() and not re.match(r"\s*#", line)]
        if statements:
            found.add(name)
        else:
            ahead |= {inner for inner in includes(f"src/motley/{name}") if inner.startswith(f"{of}/")} - found
    return found


def source_lines():
    return sum(read(file).count("\n") for file in tracked("src"))


class RetiredWords:
    """The list of tools/retired_words.txt, and what of it is still said."""

    LIST = "tools/retired_words.txt"
    # The list itself; what was said before; what programs write; what others wrote.
    EXEMPT = (LIST, "CHANGELOG.md", "docs/results*", "docs/reference/renamed.md", "*renamed_keys.h", "*renamed_flags.h", "LICENSE", "tests/fuzz/corpus/*",
              "tests/tools/counting.py", ALLOWED)

    def __init__(self):
        self.words, self.patterns = {}, []
        if not (ROOT / self.LIST).exists():
            return
        for number, line in enumerate(read(self.LIST).splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                cells = line.split("\t")
                if len(cells) not in (3, 4) or cells[0] not in ("word", "type", "name", "phrase", "call"):
                    raise SystemExit(f"{self.LIST}:{number}: expected: KIND<tab>RETIRED<tab>INSTEAD[<tab>EXCEPT]")
                kind, retired, instead, *rest = cells
                kept = self._kept(rest[0] if rest else "", number)
                if kind in ("word", "name"):
                    self.words.setdefault((kind, retired.lower() if kind == "word" else retired), []).append((instead, kept))
                else:
                    self.patterns.append((self._pattern(kind, retired), retired, instead, kept))

    def _kept(self, text, number):
        """Of `what, what: reason; what: reason`: patterns of files, and identifiers."""
        kept = []
        for part in filter(None, map(str.strip, text.split(";"))):
            what, colon, reason = part.partition(":")
            if not colon or not reason.strip():
                raise SystemExit(f"{self.LIST}:{number}: an exception needs its reason: WHAT[, WHAT]: REASON[; ...]")
            kept += [name.strip() for name in what.split(",")]
        return kept

    @staticmethod
    def _pattern(kind, retired):
        if kind == "type":  # a whole part of a CamelCase name
            return re.compile(rf"\b(?:[A-Z]\w*)?(?<![A-Z]){retired}(?![a-z])\w*")
        if kind == "call":
            return re.compile(retired)
        first = re.escape(retired[0])
        words = r"\s+(?:(?://|#|\*)\s*)?".join(map(re.escape, retired[1:].split(" ")))
        return re.compile(rf"\b(?:{first.lower()}|{first.upper()}){words}\b")

    @staticmethod
    def _stays(kept, file, identifier):
        return any(identifier == name or fnmatch.fnmatch(file, name) for name in kept)

    def _found(self, file, text):
        """(position, what, instead) of each retired word in a text."""
        for match in re.finditer(r"[A-Za-z_]\w*", text):
            whole = match.group(0)
            several = parts(whole)
            for kind, names in (("name", [whole]), ("word", several if len(several) > 1 else [])):
                for name in names:
                    for instead, kept in self.words.get((kind, name), ()):
                        if not self._stays(kept, file, whole):
                            yield match.start(), whole, instead
        for pattern, retired, instead, kept in self.patterns:
            for match in pattern.finditer(text):
                if not self._stays(kept, file, match.group(0).rstrip("(")):
                    yield match.start(), " ".join(match.group(0).split()), instead

    def findings(self):
        if not self.words and not self.patterns:
            return
        for file in tracked():
            if any(fnmatch.fnmatch(file, pattern) for pattern in self.EXEMPT):
                continue
            text = f"{file}\n{read(file)}"  # the name is the line before the first
            if "\0" in text:
                continue
            for position, what, instead in self._found(file, text):
                yield Finding(file, text.count("\n", 0, position), what, f"'{what}' is retired; say: {instead}")


PARTS = {}


def parts(identifier):
    """The words of an identifier, in lower case: maxTableRows, max_table_rows and MAX_TABLE_ROWS have the same three."""
    if identifier not in PARTS:
        split = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", identifier))
        PARTS[identifier] = [part for part in split.lower().split("_") if part]
    return PARTS[identifier]


def refused():
    """(what is not accepted, what stands in the list of exceptions for nothing). The list, `FILE NAME` a line, has what was
    there before the rules; it only gets shorter."""
    code = Code()
    findings = [*code.long_functions(), *code.large_classes(), *RetiredWords().findings()]
    path = ROOT / ALLOWED
    lines = path.read_text().splitlines() if path.exists() else []
    allowed = {line for line in lines if line and not line.startswith("#")}
    found = {f"{finding.file} {finding.name}" for finding in findings}
    return [finding for finding in findings if f"{finding.file} {finding.name}" not in allowed], sorted(allowed - found)
