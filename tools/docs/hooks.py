"""What MkDocs does besides: pages that are made from code, and pages for files outside of `docs/`.

A page may link to any file of the repository, as on the repository's host: `../deploy/nginx.conf`. Each file
that is linked so becomes a page under `project/`, Markdown as it is, all else as a block of code.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from posixpath import dirname, normpath, relpath

import cli
import http_api
import metrics
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
HELPERS = {"jobs", "problems"}  # of `dibs.contrib`: several integrations share them
INTEGRATION = """
## {name}

::: dibs.contrib.{name}
    options:
      show_root_heading: false
      heading_level: 3
"""


def integrations() -> str:
    """A page with the public modules of `dibs.contrib`."""
    names = (each.stem for each in sorted((ROOT / "src/dibs/contrib").glob("[!_]*")))
    intro = (
        "# Integrations\n\nThe [page of each library](../integrations/README.md) has examples.\n"
    )
    return intro + "".join(INTEGRATION.format(name=name) for name in names if name not in HELPERS)


GENERATED = {
    "reference/integrations.md": integrations,
    "reference/cli.md": cli.page,
    "reference/http-api.md": http_api.page,
    "reference/metrics.md": metrics.page,
}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)(?=[)#])")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".conf": "nginx", ".yaml": "yaml", ".service": "ini"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs/`."""
    for uri, page in GENERATED.items():
        files.append(File.generated(config, uri, content=page()))
    todo = [each.name for each in sorted(ROOT.glob("*.md"))]
    for file in files.documentation_pages():
        todo += linked(file.src_uri, file.content_string)
    while todo:
        path = todo.pop()
        uri = uri_of(path)
        if files.get_file_from_path(uri) is None and (ROOT / path).exists():
            content = shown(path)
            files.append(File.generated(config, uri, content=content))
            todo += linked(uri, content)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files outside of `docs/` lead to their pages."""
    uri = page.file.src_uri
    if page.parent is None:  # a tab of its own: nothing to list beside it
        page.meta["hide"] = ["navigation"]
    if uri == "project/README.md":  # its links are checked, and the home page says the same
        page.meta["search"] = {"exclude": True}

    def to_page(link: re.Match[str]) -> str:
        path = target(uri, link[1])
        inside = path.startswith("docs/") and not (ROOT / path).is_dir()
        if uri.startswith("project/") or not inside:
            return relpath(uri_of(path), dirname(uri) or ".")
        return link[1]

    return outside_code(lambda text: LINK.sub(to_page, text), markdown)


ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|source|link rel="?(?:stylesheet|icon|pre\w+)"?)\b[^>]*"""
    r"""(?:src|srcset|href)=["']?(?:https?:)?//[^>]*"""
)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads something from another host."""
    if found := ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} is not offline: {found[0]}")
    return output


def outside_code(change: Callable[[str], str], markdown: str) -> str:
    """The page, changed where it is not a block of code."""
    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def target(uri: str, link: str) -> str:
    """The path in the repository to which a page links."""
    origin = uri.removeprefix("project/") if uri.startswith("project/") else f"docs/{uri}"
    return normpath(f"{dirname(origin)}/{link}" if dirname(origin) else link)


def linked(uri: str, markdown: str) -> Iterator[str]:
    """The paths outside of `docs/` to which a page links."""
    for part in FENCE.split(markdown)[::2]:
        paths = (target(uri, link) for link in LINK.findall(part))
        yield from (path for path in paths if not path.startswith("docs/"))


def uri_of(path: str) -> str:
    """The page of a path in the repository."""
    if (ROOT / path).is_dir():
        readme = (ROOT / path / "README.md").exists()
        path = f"{path}/README.md" if readme else f"{path}/index.md"
    elif not path.endswith(".md") and not path.startswith("docs/"):
        path += ".md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"project/{path}"


def shown(path: str) -> str:
    """The content of the page of a file or directory outside of `docs/`."""
    file = ROOT / path
    if file.is_dir() and (file / "README.md").exists():
        file /= "README.md"
    if file.is_dir():
        lines = [f"- [{each.name}]({each.name})" for each in sorted(file.glob("[!._]*"))]
        return f"# {path}/\n\n" + "\n".join(lines)
    text = file.read_text("utf-8")
    if file.suffix == ".md":
        return text
    language = LANGUAGES.get(file.suffix, "text")
    return f"# {file.name}\n\n`{path}`\n\n````{language}\n{text}````\n"
