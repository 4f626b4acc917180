"""The generated documents are those that the binary prints, and the example jobs fit the schema."""

import collections
import json
import pathlib
import re
import subprocess
import tempfile
import unittest

import jsonschema
import yaml

from harness import BINARY

ROOT = pathlib.Path(__file__).resolve().parents[2]


def printed(flag):
    return subprocess.run([BINARY, "train", flag], stdout=subprocess.PIPE, text=True, check=True).stdout


def written_files(page):
    """What the commands of a page write where they are typed, without those that stand for the reader's own."""
    text = page.read_text().replace("\\\n", " ")
    return set(re.findall(r"^    (?:\S*motley|\$motley) .*?--(?:output|html|csv|timeline)[= ](\S+)", text, re.MULTILINE))


class Documents(unittest.TestCase):
    def test_the_page_of_a_jobs_keys_is_current(self):
        self.assertEqual((ROOT / "docs/reference/job.md").read_text(), printed("--keys"))

    def test_the_schema_of_a_job_is_current(self):
        self.assertEqual((ROOT / "docs/schema/job.schema.json").read_text(), printed("--schema"))

    def test_the_page_of_all_commands_is_current(self):
        done = subprocess.run([BINARY, "reference"], stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual((ROOT / "docs/reference/commands.md").read_text(), done.stdout)

    def test_the_schemas_of_what_is_printed_are_current(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([BINARY, "schemas", folder], check=True)
            for schema in pathlib.Path(folder).iterdir():
                self.assertEqual((ROOT / "docs/schema" / schema.name).read_text(), schema.read_text())

    def test_pages_write_other_files_than_each_other(self):
        """A file that exists is kept, so that one page's commands would be refused after another's."""
        pages = [ROOT / "README.md", *(ROOT / "docs/tutorials").glob("*.md"), *(ROOT / "docs/how-to").glob("*.md")]
        by_file = collections.defaultdict(list)
        for page in pages:
            for file in written_files(page):
                by_file[file].append(page.name)
        self.assertGreater(len(by_file), 10)
        self.assertEqual({file: names for file, names in by_file.items() if len(names) > 1}, {})

    def test_every_schema_is_one(self):
        for schema in (ROOT / "docs/schema").glob("*.json"):
            jsonschema.Draft202012Validator.check_schema(json.loads(schema.read_text()))

    def test_example_jobs_fit_and_mistakes_do_not(self):
        validator = jsonschema.Draft202012Validator(json.loads(printed("--schema")))
        examples = list((ROOT / "examples").rglob("job.yaml"))
        self.assertTrue(examples)
        for example in examples:
            validator.validate(yaml.safe_load(example.read_text()))
        for columns in ("id, name", ["id", "name"], []):
            validator.validate({"data": {"drop_columns": columns, "categorical_columns": columns, "one_hot_columns": columns}})
        for mistake in ({"global_bacth_size": 5}, {"global_batch_size": 0}, {"optimizer": {"name": "lion"}}, {"optimizer": 3},
                        {"data": {"drop_columns": [["id"]]}}, {"data": {"target": ["y"]}}):
            self.assertFalse(validator.is_valid(mistake), mistake)


if __name__ == "__main__":
    unittest.main()
