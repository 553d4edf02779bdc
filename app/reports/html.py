"""A self-contained HTML page: readable offline, on a phone, in the dark and without colour."""

import base64
import html
from pathlib import Path

DPI = 150  # of the figures, which this module does not import: a site writes pages, and draws nothing

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; margin: 1rem 0 .3rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #8886; }
th { font-weight: 600; } .n { text-align: right; white-space: nowrap; }
.note, figcaption { font-size: .88rem; margin: .2rem 0; opacity: .85; }
figure { margin: 1rem 0 1.6rem; } img { width: min(100%, var(--w)); height: auto; background: white; }
figure input { position: absolute; opacity: 0; }
@media (max-width: 45rem) {
  figure { overflow-x: auto; } figcaption { position: sticky; left: 0; }
  figcaption::after { content: " (tap the figure to enlarge it)"; }
  figure input:checked + img { width: var(--w); max-width: none; }
}
.failed { border-left: .4rem solid; padding-left: .8rem; }
summary { cursor: pointer; padding: .3rem 0; }
pre { overflow-x: auto; font-size: .85rem; } code { overflow-wrap: anywhere; }
"""


def page(title: str, body: str) -> str:
    """A whole page."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{body}</body></html>\n"
    )


def picture(path: Path, caption: str) -> str:
    """A PNG file inside the page; nothing where there is none.

    On a phone it is as wide as the page, and a tap, which ticks a box that is not seen, shows it in its own size.
    """
    if not path.is_file():
        return ""
    content = path.read_bytes()
    data = base64.b64encode(content).decode()
    width = int.from_bytes(content[16:20], "big") * 96 // DPI  # CSS has 96 pixels an inch
    words = html.escape(caption)
    return (
        f'<figure><label><input type="checkbox" aria-label="enlarge">'
        f'<img alt="{words}" style="--w:{width}px" src="data:image/png;base64,{data}"></label>'
        f"<figcaption>{words}</figcaption></figure>"
    )


def folded(summary: str, body: str) -> str:
    """What is shown when somebody asks for it."""
    return f"<details><summary>{html.escape(summary)}</summary>{body}</details>"
