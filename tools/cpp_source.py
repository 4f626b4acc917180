"""Reads C++ sources as far as counting needs: where functions begin and end, and which fields classes have.

No compiler is asked: comments, strings and preprocessor lines are blanked, and braces are followed by what stands before
them. That is enough for sources that clang-format has formatted.
"""
import dataclasses
import re


@dataclasses.dataclass
class Function:
    name: str
    first: int  # lines, from the declaration to the closing brace
    last: int

    @property
    def lines(self):
        return self.last - self.first + 1


@dataclasses.dataclass
class Class:
    name: str  # with the classes around it, such as Outer::Inner
    line: int
    fields: list  # of (type, name)
    has_functions: bool


def blanked(text):
    """The text without comments, the insides of strings, and preprocessor lines; lines stay where they are."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-zA-Z_])\'(?:\\.|[^\'\\\n])+\'',
                       re.DOTALL)

    def replace(match):
        found = match.group(0)
        kept = '""' if found[0] in 'R"' else "0" if found[0] == "'" else ""
        return kept + "\n" * found.count("\n")

    text = token.sub(replace, text)
    return re.sub(r"(?m)^[ \t]*#(?:.*\\\n)*.*$", lambda match: "\n" * match.group(0).count("\n"), text)


def _without_brackets(text, pairs="()<>{}"):
    """The text outside of these brackets, by counting; operators such as -> and >= are not brackets."""
    text = re.sub(r"operator\s*(\(\)|[^\s\w(]+)|->|>=|<=|<<", " ", text)
    out, depth = [], 0
    for letter in text:
        if letter in pairs[0::2]:
            depth += 1
        elif letter in pairs[1::2]:
            depth -= 1
        elif depth <= 0:
            out.append(letter)
    return "".join(out)


def _kind(before):
    """What a brace opens, by the text between the statement before and it: scope, class, function or value."""
    before = before.strip()
    if re.search(r'(^|\s)namespace(\s|$)|extern\s*""\s*$', before):
        return "scope"
    outside = _without_brackets(before)
    if re.search(r"(^|\s)enum(\s|$)", outside):
        return "value"
    if re.search(r"(^|\s)(class|struct|union)(\s|$)", outside) and "(" not in re.sub(r"alignas\([^)]*\)", "", before):
        return "class"
    if "(" not in before or re.search(r"[^=!<>]=([^=]|$)", outside):
        return "value"
    # A constructor's initializers: `name{...}` among them is a value, and its body follows `)` or `}`.
    if re.search(r"\)\s*(noexcept\s*)?:[^:]", before) and re.search(r"[\w>]\s*$", before):
        return "value"
    return "function"


def _name(before):
    match = re.search(r"((?:[\w~]+\s*(?:<[^<>()]*>)?\s*::\s*)*(?:operator\s*[^\s(]+|operator\(\)|[~\w]+))\s*\(", before)
    return re.sub(r"\s", "", match.group(1)) if match else before.strip()


class Source:
    """The functions and classes of one file."""

    def __init__(self, text):
        self.text = blanked(text)
        self.functions = []
        self.classes = []
        self._scan()

    def _line(self, position):
        return self.text.count("\n", 0, position) + 1

    def _end_of(self, opening):
        """The position of the brace that closes this one."""
        depth = 0
        for match in re.compile(r"[{}]").finditer(self.text, opening):
            depth += 1 if match.group(0) == "{" else -1
            if depth == 0:
                return match.start()
        return len(self.text) - 1

    def _scan(self):
        begin = position = parentheses = 0
        open_scopes = []  # (kind, name, fields, has_functions, line), from the outermost
        while position < len(self.text):
            letter = self.text[position]
            if letter == "(":
                parentheses += 1
            elif letter == ")":
                parentheses -= 1
            elif letter == ";" and parentheses == 0:
                self._statement(begin, position, open_scopes)
                begin = position + 1
            elif letter == "}" and parentheses == 0:
                if open_scopes:
                    self._close(open_scopes.pop(), open_scopes)
                begin = position + 1
            elif letter == ":" and parentheses == 0 and re.search(r"(^|\s)(public|private|protected)\s*$", self.text[begin:position]):
                begin = position + 1
            elif letter == "{" and parentheses == 0:
                before = self.text[begin:position]
                kind = _kind(before)
                if kind in ("scope", "class"):
                    name = re.sub(r"\s*(final)?\s*((?<!:):(?!:).*)?$", "", re.sub(r"alignas\([^)]*\)", "", before), flags=re.DOTALL)
                    name = name.split()[-1] if name.split() else ""
                    open_scopes.append({"kind": kind, "name": name, "fields": [], "has_functions": False,
                                        "line": self._line(begin + len(before) - len(before.lstrip()))})
                    begin = position + 1
                else:
                    end = self._end_of(position)
                    if kind == "function":
                        first = self._line(begin + len(before) - len(before.lstrip()))
                        self.functions.append(Function(_name(before), first, self._line(end)))
                        if open_scopes:
                            open_scopes[-1]["has_functions"] = True
                        begin = end + 1
                    position = end
            position += 1

    def _statement(self, begin, end, open_scopes):
        """A statement of a class: a field, or a declaration of something else."""
        if not open_scopes or open_scopes[-1]["kind"] != "class":
            return
        text = re.sub(r"\[\[[^\]]*\]\]|alignas\([^)]*\)", " ", self.text[begin:end]).strip()
        if not text or re.match(r"(using|typedef|friend|static|template|enum|class|struct|union)\b", text):
            return
        # What remains without brackets, and without what each name is set to.
        declared = [part.split("=")[0].strip() for part in _without_brackets(text).split(",")]
        is_function = "operator" in text or re.search(r"[\w>]\s*\(", _without_brackets(re.sub(r"=[^,]*", "", text), "<>{}"))
        if is_function:
            open_scopes[-1]["has_functions"] = True
            return
        kind = re.sub(r"\s*\w+\s*(\{.*|=.*|\[.*|,.*)?$", "", text, flags=re.DOTALL)
        for part in declared:
            name = re.search(r"(\w+)\s*(?:\[.*\])?\s*(?::\s*\d+)?$", part)
            if name:
                open_scopes[-1]["fields"].append((kind, name.group(1)))

    def _close(self, scope, around):
        if scope["kind"] == "class" and scope["name"] in ("struct", "union") and around:
            around[-1]["fields"] += scope["fields"]  # of a state without a name of its own
        elif scope["kind"] == "class":
            names = [outer["name"] for outer in around if outer["kind"] == "class"]
            self.classes.append(Class("::".join([*names, scope["name"]]), scope["line"], scope["fields"], scope["has_functions"]))
