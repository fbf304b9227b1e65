"""The long report: one HTML file that needs nothing but itself.

Safety: every text is escaped by jinja2; the timeline's data lies in a JSON script tag in which
``<``, ``>`` and ``&`` are escapes; the page's policy allows the one style sheet and the one script
whose hashes it names and nothing else: no network, no inline handler, no form.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
from pathlib import Path
from typing import Any, Final

import jinja2
import msgspec
from markupsafe import Markup

from brim.diagnose.compare import counts_flops
from brim.files import write_atomic
from brim.record.findings import Diagnosis
from brim.report import views, words
from brim.report.palette import ACCENTS
from brim.report.tables import Tables, read_tables
from brim.report.timeline import MAX_RANKS, timeline
from brim.units import duration, percent

_TEMPLATES: Final = Path(__file__).parent / "templates"

# For these no hue is needed: the whole of a bar, and what the host does when nothing is wrong.
_NEUTRAL: Final = {
    "total": ("#c9ced3", "#454c54"),
    "launch": ("#9fb0ab", "#5d716b"),
    "python": ("#d3d7da", "#3d444b"),
}


def write_html(diagnosis: Diagnosis, path: Path) -> None:
    """Write the report; the file is replaced at once or not at all."""
    write_atomic(path, page(diagnosis).encode())


def page(diagnosis: Diagnosis) -> str:
    """The report as HTML."""
    tables = read_tables(diagnosis)
    data = timeline(tables.timeline, tables.steps)
    return render(
        "report.html",
        title=words.verdict(diagnosis),
        d=diagnosis,
        verdict=words.verdict(diagnosis),
        figures=words.figures(diagnosis.metrics),
        waterfall=views.waterfall(diagnosis),
        cards=[views.card(f, diagnosis.frameworks) for f in diagnosis.findings],
        frameworks=views.frameworks(diagnosis),
        without_findings=words.without_findings(diagnosis),
        remains=[
            (words.slice_name(e, flops=counts_flops(diagnosis)), percent(e.share))
            for e in words.remains(diagnosis.account)
        ],
        timeline=data,
        timeline_json=json_for_script(data) if data else "",
        left_out_ranks=max(0, len({s.rank for s in tables.timeline}) - MAX_RANKS),
        steps=views.step_plot(tables.steps),
        measured=_measured(diagnosis),
        notes=[words.clean(note) for note in [*diagnosis.notes, *tables.unread]],
        exact=_exact(diagnosis),
        **_lines(tables),
    )


def _lines(tables: Tables) -> dict[str, Any]:
    # a single rank's time is the account
    ranks = views.ranks(tables.ranks) if len(tables.ranks) > 1 else []
    return {
        "kernels": views.kernels(tables.kernels),
        "kinds": views.kinds(tables.kernel_kinds),
        "modules": views.modules(tables.modules),
        "ranks": ranks,
        "rank_legend": views.legend(line.bars for line in ranks),
        "collectives": [views.collective(row) for row in tables.collectives],
        "step_legend": views.step_legend(tables.steps),
    }


def _measured(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """How it was measured: label and text."""
    rows = [("Window", words.window(diagnosis))]
    if diagnosis.device:
        rows.append(("Device", words.clean(diagnosis.device)))
    if diagnosis.frameworks:
        rows.append(("Frameworks", ", ".join(words.framework(f) for f in diagnosis.frameworks)))
    if math.isfinite(diagnosis.metrics.get("overhead", math.nan)):
        said = f"{percent(diagnosis.metrics['overhead'])} of step time"
        rows.append(("Cost of measuring", said))
    others = words.other_figures(diagnosis.metrics)
    return rows + [(label[:1].upper() + label[1:], value) for label, value in others]


def _exact(diagnosis: Diagnosis) -> list[tuple[str, list[str]]]:
    """Device times by rank and window: label and window, compute, comm, copies, idle."""
    rows = []
    for r in diagnosis.device_time:
        for name, t in (("first to last kernel", r.kernel_span), ("steps", r.step_window)):
            if t is not None:
                times = (t.window_us, t.compute_us, t.exposed_comm_us, t.exposed_copy_us, t.idle_us)
                rows.append((f"rank {r.rank}, {name}", [duration(us * 1e-6) for us in times]))
    return rows


def json_for_script(data: object) -> Markup:
    """JSON that is safe inside ``<script type="application/json">``.

    The HTML parser looks for ``</script`` and ``<!--`` whatever the content is: no ``<`` is left.
    U+2028 and U+2029 are escaped for readers that take JSON for JavaScript.
    """
    text = msgspec.json.encode(data).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704  escaped above


def render(template: str, **context: Any) -> str:
    """A page from a template, with the style sheet, the script and the policy that allows them."""
    style, script = style_sheet(), (_TEMPLATES / "report.js").read_text()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hash(style)}",
            f"script-src {_hash(script)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    # own files, not data of the job
    own = {"style": Markup(style), "script": Markup(script)}  # noqa: S704
    return _environment().get_template(template).render(policy=policy, **own, **context)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def keep_units(text: str) -> str:
    """No line ends between a figure and its unit."""
    return re.sub(r"(\d) (%|[nµm]?s\b|min\b)", "\\1\u00a0\\2", text)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["keep_units"] = keep_units
    return environment


@functools.cache
def style_sheet() -> str:
    """``report.css`` with the palette's colours in front."""
    light = {name: a.light for name, a in ACCENTS.items()} | {k: v[0] for k, v in _NEUTRAL.items()}
    dark = {name: a.dark for name, a in ACCENTS.items()} | {k: v[1] for k, v in _NEUTRAL.items()}
    classes = "".join(f".a-{name}{{--accent:var(--c-{name})}}" for name in light)
    return (
        f":root{{{_variables(light)}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(dark)}}}}}"
        f"{classes}\n{(_TEMPLATES / 'report.css').read_text()}"
    )


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--c-{name}:{colour};" for name, colour in colours.items())
