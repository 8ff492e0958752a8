#!/usr/bin/env python3
"""Check that our sentences are short, and avoid certain words. CONTRIBUTING.md describes the style.

It reads all pages but decision records, `--help` texts, HTTP problems and messages; `--all` prints more.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import click

from dibs.cli.app import app
from dibs.server.api.problems import PROBLEM_KINDS

ROOT = Path(__file__).resolve().parent.parent
AVERAGE, PAGE_AVERAGE, CELL = 15, 18, 15  # words: of a sentence, over all pages and one; of a cell
LONG, LONG_SHARE = 30, 0.02  # words of a long sentence; how many sentences may be long
AVOID = re.compile(
    r"(?i)\b(who(so|m)?ever|whichever|in the stead|in vain|of no matter|to be had|once and for all|in line"
    r"|(is|are|was|were|be|been) told|told (of|about)|tells?|hear[ds]? of|speaks? up|amid|so long as"
    r"|says? of|who wants?|(both|other) worlds?|comes? to (its|an) end|of one's own|patience)\b"
)


def plain(markdown: str) -> str:
    """Text without blocks of code, comments, tags, headings and link targets; a code span is one word."""
    hidden = r"^ *(```|~~~).*?^ *\1|<!--.*?-->|^#[^\n]*|<[a-z/][^>]*>"
    text = re.sub(hidden, "", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"``.+?``|`[^`]+`", "CODE", text, flags=re.DOTALL)
    return re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", text)


def sentences(markdown: str) -> list[str]:
    """Sentences of three words or more, in paragraphs and lists."""
    text = re.sub(r"^\|.*", "", plain(markdown), flags=re.MULTILINE)
    ends = r"\n\s*\n|\n\s*(?:[-*+]|\d+\.)\s|\x08|(?<=[.!?])[*)\"”]*\s+"
    return [" ".join(words) for each in re.split(ends, text) if len(words := each.split()) > 2]


def cells(markdown: str) -> list[str]:
    """Cells of tables."""
    rows = re.findall(r"^\|(.*)\|\s*$", plain(markdown), flags=re.MULTILINE)
    return [cell.strip() for row in rows for cell in row.split("|")]


def helps(info: object) -> Iterator[str]:
    """Texts of `--help`, of all verbs and options."""
    if isinstance(info, dict):
        yield from (info[key] for key in ("help", "epilog") if isinstance(info.get(key), str))
    for part in info.values() if isinstance(info, dict) else info if isinstance(info, list) else ():
        yield from helps(part)


def messages() -> Iterator[str]:
    """Texts with which `src` raises and warns; a value that is put in counts as one word."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            warns = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "warn"
            call = node.exc if isinstance(node, ast.Raise) else node if warns else None
            for part in call.args if isinstance(call, ast.Call) else ():
                values = part.values if isinstance(part, ast.JoinedStr) else [part]
                words = [str(x.value) if isinstance(x, ast.Constant) else "CODE" for x in values]
                yield "".join(words)


def main() -> int:
    command = ["git", "ls-files", "*.md", ":!docs/adr"]
    names = subprocess.check_output(command, cwd=ROOT, text=True).split()
    texts = {name: [(ROOT / name).read_text()] for name in names if (ROOT / name).is_file()}
    lengths = [len(each.split()) for [page] in texts.values() for each in sentences(page)]
    texts["--help"] = list(helps(app.to_info_dict(click.Context(app))))
    texts["HTTP problems"] = [f"{kind.title}\n\n{kind.advice}" for kind in PROBLEM_KINDS.values()]
    texts["messages in src"] = list(messages())
    wrong = []
    for name, parts in texts.items():
        found = [each for part in parts for each in sentences(part)]
        table = [each for part in parts for each in cells(part)]
        average = mean(len(each.split()) for each in found) if found else 0.0
        if average > PAGE_AVERAGE:
            wrong.append(f"{name}: {average:.1f} words a sentence, at most {PAGE_AVERAGE}")
        wrong += [
            f"{name}: over {CELL} words: {each}" for each in table if len(each.split()) > CELL
        ]
        wrong += [
            f"{name}: avoid {hit[0]!r}: {x}" for x in found + table if (hit := AVOID.search(x))
        ]
        if "--all" in sys.argv:
            print(f"{average:6.1f} {name}: {max(found, key=len, default='')}")
    average, share = mean(lengths), mean(words > LONG for words in lengths)
    print(*wrong, f"{average:.1f} words a sentence (at most {AVERAGE})", sep="\n")
    print(f"{share:.1%} of sentences have more than {LONG} words (at most {LONG_SHARE:.0%})")
    return bool(wrong) or average > AVERAGE or share > LONG_SHARE


if __name__ == "__main__":
    sys.exit(main())
