"""What tools/docs adds to mkdocs: charts stand inside their page, so that they take its colours, light or dark; links
into the sources, which are no part of the site, are checked and become plain text with the file's name as a hint."""
import html
import pathlib
import re

from mkdocs.exceptions import PluginError


def on_page_markdown(markdown, page, config, **_):
    """Puts each SVG of docs/results/figures in place of the image that shows it."""
    folder = pathlib.Path(config["docs_dir"]) / pathlib.Path(page.file.src_uri).parent

    def inline(found):
        svg = (folder / found[2]).read_text()
        svg = re.sub(r"<style>.*?</style>", "", svg, flags=re.DOTALL)
        svg = re.sub(r'aria-label="[^"]*"', f'aria-label="{html.escape(found[1])}"', svg)
        return svg.replace("\n", "")

    def name_source(found):
        """A link to a source says a name that the file has: `Class::function`, of which the last part counts."""
        file = (folder / found[2]).resolve()
        name = found[1].strip("`").split("::")[-1]
        if not file.is_file():
            raise PluginError(f"{page.file.src_uri}: there is no file {found[2]}")
        if not re.search(rf"\b{re.escape(name)}\b", file.read_text()):
            raise PluginError(f"{page.file.src_uri}: {found[2]} has no '{name}'")
        return f'<code title="{html.escape(found[2].lstrip("./"))}">{html.escape(found[1].strip("`"))}</code>'

    markdown = re.sub(r"\[([^\]]*)\]\(((?:\.\./)+src/[^)\s]+)\)", name_source, markdown)
    return re.sub(r"!\[([^\]]*)\]\((\S*figures/\S+\.svg)\)", inline, markdown)
