"""The notebooks of the examples run, in Jupyter's kernel."""
import importlib.util
import pathlib
import unittest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
RUN = 600  # seconds in which a cell has run
MISSING = [package for package in ("nbclient", "nbformat", "ipykernel", "matplotlib", "pandas", "cloudpickle")
           if importlib.util.find_spec(package) is None]


@unittest.skipIf(MISSING, f"{', '.join(MISSING)} not installed: tools/setup --nightly")
class Notebooks(unittest.TestCase):
    def test_mixed_machines(self):
        import nbclient
        import nbformat

        notebook = nbformat.read(EXAMPLES / "mixed_machines.ipynb", as_version=4)
        nbclient.NotebookClient(notebook, timeout=RUN, kernel_name="python3", resources={"metadata": {"path": EXAMPLES}}).execute()
        pictures = [output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
        self.assertEqual(len(pictures), 4)


if __name__ == "__main__":
    unittest.main()
