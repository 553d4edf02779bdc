"""'Does joining help?': the section of a run's page, and a site's own answer in words."""

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .html import page, picture
from .tables import Table, as_html

TITLE = "Does joining help?"
FIGURE = "joining.png"
MODELS = {"alone": "alone", "joined": "the joined model", "personal": "its own model from the joined one"}
VERDICTS = {"better": "gains", "worse": "loses", "unclear": "cannot tell"}
KINDS = {"lda": "LDA", "trained": "trained by itself", None: "-"}


def section(found: Mapping[str, Any], figures: Path) -> list[str]:
    """The parts of a page. found: what joining.json holds."""
    sites = found["sites"]
    last = "personal" if found.get("personal") is not None else "joined"
    if found.get("alone") is None:
        return [f"<h2>{TITLE}</h2><p>No client has test samples of its own.</p>"]
    said = "; ".join(
        f"{MODELS[model]} {100 * found[model]:.1f} % ({interval(*found[f'{model}_interval'])})"
        for model in MODELS
        if found.get(model) is not None
    )
    total = len(sites)
    rest = total - found["sites_better"] - found["sites_worse"]
    counts = f"{found['sites_better']} of {total} gain, {found['sites_worse']} lose, {rest} cannot tell"
    words = (
        f"On {found['tested']:,} test samples of the clients' own: {said}. By the 95 % interval of the difference to "
        f"what it has alone, {counts}. Worst: {found['worst_site']}."
    )
    return [
        f"<h2>{TITLE}</h2><p>{html.escape(words)}</p>",
        as_html(table(sites, last)),
        picture(
            figures / FIGURE, f"Accuracy of {MODELS[last]} against alone, a dot a client; on the line they are equal"
        ),
    ]


def table(sites: Mapping[str, Mapping[str, Any]], last: str) -> Table:
    """Client by client. last: the model that is compared with alone."""
    models = [model for model in MODELS if model != "personal" or last == "personal"]
    head = ("client", "training", "tested", *models, f"{last} less alone", "verdict", "alone is", "own model is")
    rows = []
    for name, each in sites.items():
        tested, less = each["tested"], each["less_alone"][last]
        shares = [f"{100 * each['right'][model] / tested:.1f} %" if tested else "-" for model in models]
        gain = "-"
        if less.get("difference") is not None:
            gain = f"{points(less['difference'])} ({interval(less['low'], less['high'])})"
        own = (KINDS[each["alone"]], each["mode"] or "-")
        rows.append((name, each["training"], tested, *shares, gain, VERDICTS[less["verdict"]], *own))
    notes = (
        "Each client's models on the same test samples, which follow its own training shares. Intervals of 95 %, of a "
        "difference paired by sample (Agresti and Min, 2005). What a client has alone is the better of local training "
        "as long as the federation's and LDA, chosen on its own validation samples.",
    )
    return Table("By client", head, tuple(rows), notes=notes)


def site_page(exact: Mapping[str, Any], name: str) -> str:
    """A site's own page: the answer in words. exact: what the site knows, counts as they are."""
    tested, right = exact["tested"], exact["right"]
    if not tested:
        words = "There are no test samples here, so that nothing can be said."
    else:
        said = ", ".join(f"{MODELS[model]} {100 * right[model] / tested:.1f} %" for model in MODELS if model in right)
        last = "personal" if "personal" in right else "joined"
        less = exact["less_alone"][last]
        words = (
            f"On {tested:,} test samples of this site: {said}. {MODELS[last].capitalize()} less alone: "
            f"{points(less['difference'])} points ({interval(less['low'], less['high'])}, 95 %; McNemar's p "
            f"{less['p']:.2g}): this site {VERDICTS[less['verdict']]}."
        )
    kinds = f"Alone: {KINDS[exact['alone']]}. Its own model: {exact['mode'] or 'none was asked for (personal=none)'}."
    body = f"<h1>{TITLE}</h1><p>{html.escape(words)}</p><p>{html.escape(kinds)}</p>"
    return page(f"{TITLE} {name}", body)


def points(share: float) -> str:
    """0.021 as '+2.1'."""
    return f"{100 * share:+.1f}"


def interval(low: float, high: float) -> str:
    """Two shares as per cents: '90.1 to 95.2'."""
    return f"{100 * low:.1f} to {100 * high:.1f}"
