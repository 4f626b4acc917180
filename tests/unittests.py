#!/usr/bin/env python3
"""Runs Python's unittests for ctest, a class at a time, and writes their results as GoogleTest does.

    unittests.py list FILE...               a line for each class that has tests: MODULE.CLASS, and `alone` if it asks for that;
                                            MODULE for all of a file that has a line such as `together = "why"`
    unittests.py run MODULE[.CLASS] XML     runs it; the module is found in the current folder
"""
import ast
import pathlib
import re
import sys
import time
import unittest
import xml.etree.ElementTree as tree

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def assigned(body):
    """The names to which these statements assign."""
    targets = [target for item in body if isinstance(item, ast.Assign) for target in item.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def programs(file):
    """What is run as a program of its own: the classes of a file that have tests of their own, each with the names that its body assigns,
    or all of it."""
    body = ast.parse(file.read_text(), file).body
    if "together" in assigned(body):
        yield file.stem, set()
        return
    for node in body:
        if isinstance(node, ast.ClassDef):
            if any(isinstance(item, ast.FunctionDef) and item.name.startswith("test") for item in node.body):
                yield f"{file.stem}.{node.name}", assigned(node.body)


class Result(unittest.TextTestResult):
    """What unittest prints, and what became of each test. One that fails in several of its parts has failed once."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.cases = {}

    def startTest(self, test):
        super().startTest(test)
        self.cases[test.id()] = [time.monotonic(), 0, None, ""]

    def stopTest(self, test):
        super().stopTest(test)
        case = self.cases[test.id()]
        case[1] = time.monotonic() - case[0]

    def set(self, test, outcome, message):
        """Of a test, of a part of one, or of what prepares a class (which is no test)."""
        name = getattr(test, "test_case", test).id()
        self.cases.setdefault(name, [0, 0, None, ""])[2:] = outcome, message

    def addError(self, test, error):
        super().addError(test, error)
        self.set(test, "failure", self.errors[-1][1])

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.set(test, "failure", self.failures[-1][1])

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.set(test, "failure", "".join(map(str, error[1:2])))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.set(test, "skipped", reason)


def run(name, output):
    sys.path.insert(0, ".")
    suite = unittest.defaultTestLoader.loadTestsFromName(name)
    result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite)
    root = tree.Element("testsuites")
    element = tree.SubElement(root, "testsuite", name=name)
    for test, (_, seconds, outcome, message) in result.cases.items():
        place, _, test_name = test.rpartition(".")
        case = tree.SubElement(element, "testcase", classname=place, name=test_name, time=f"{seconds:.3f}")
        if outcome is not None:
            tree.SubElement(case, outcome, message=_NOT_IN_XML.sub("?", message))
    pathlib.Path(output).parent.mkdir(parents=True, exist_ok=True)
    tree.ElementTree(root).write(output)
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


def main(command, *arguments):
    if command == "list":
        for file in map(pathlib.Path, arguments):
            for name, names in programs(file):
                print(name, *(["alone"] if "alone" in names else []))
        return 0
    return run(*arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
