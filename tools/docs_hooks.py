"""What tools/docs adds to mkdocs: charts stand inside their page, so that they take its colours, light or dark."""
import html
import pathlib
import re


def on_page_markdown(markdown, page, config, **_):
    """Puts each SVG of docs/results/figures in place of the image that shows it."""
    folder = pathlib.Path(config["docs_dir"]) / pathlib.Path(page.file.src_uri).parent

    def inline(found):
        svg = (folder / found[2]).read_text()
        svg = re.sub(r"<style>.*?</style>", "", svg, flags=re.DOTALL)
        svg = re.sub(r'aria-label="[^"]*"', f'aria-label="{html.escape(found[1])}"', svg)
        return svg.replace("\n", "")

    return re.sub(r"!\[([^\]]*)\]\((\S*figures/\S+\.svg)\)", inline, markdown)
