"""The terminal view of ``brim watch``: rows of :mod:`brim.report.live_rows` on a textual screen.

One widget draws the whole screen from ready-made strips, once a second at most, and only the lines
that changed: a tree of widgets would cost several times the CPU, and the view must stay below one
per cent of a core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from brim.report.live_rows import STYLES, Canvas, Row, rows
from brim.report.live_state import LiveState

Tick = Callable[[], bool]
"""Takes one sample into the state; False when there is nothing more to see."""

CPU_SHARE = 0.01
"""Of one core: what sampling may take."""
FRAME_S = 1.0
"""Samples may come faster than the screen is drawn: drawing costs more than sampling."""

FOOTER = "q quit  p pause  ·  util: a kernel ran, not how much; tensor: the cores at work"


class Screen(Widget):
    """The rows of one state."""

    DEFAULT_CSS = "Screen { width: 100%; height: 100%; }"

    def __init__(self, state: LiveState, *, unicode: bool = True, color: bool = True) -> None:
        super().__init__()
        self._state = state
        self._unicode = unicode
        self._styles = {
            name: Style.parse(text) if color and text else Style() for name, text in STYLES.items()
        }
        self._rows: list[Row] = []
        self._clock = ""
        self.footer = FOOTER

    def show(self, clock: str) -> None:
        """Draw the state as it is now; only changed lines are sent to the terminal."""
        self._clock = clock
        self._draw()

    def on_resize(self) -> None:
        self._rows = []
        self._draw()

    def _draw(self) -> None:
        canvas = Canvas(self.size.width, self.size.height, self._unicode)
        if canvas.width <= 0 or canvas.height <= 0:
            return
        fresh = rows(self._state, canvas, clock=self._clock, footer=self.footer)
        before, self._rows = self._rows, fresh
        changed = [
            Region(0, y, canvas.width, 1)
            for y in range(canvas.height)
            if _at(before, y) != _at(fresh, y)
        ]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        row = _at(self._rows, y)
        if row is None:
            return Strip.blank(self.size.width)
        strip = Strip([Segment(text, self._styles[style]) for text, style in row])
        return strip.adjust_cell_length(self.size.width)


def _at(found: list[Row], y: int) -> Row | None:
    return found[y] if y < len(found) else None


class LiveApp(App[None]):
    """Samples in a thread, draws when a sample has arrived, ends when the thread does."""

    TITLE = "brim watch"
    CSS = "App, Screen { background: transparent; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c,escape", "quit", "quit"),
        Binding("p", "pause", "pause"),
    ]

    def __init__(
        self,
        state: LiveState,
        tick: Tick,
        period_s: float,
        *,
        unicode: bool = True,
        clock: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
    ) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self._tick = tick
        self._period_s = period_s
        self._clock = clock
        self._leaving = threading.Event()
        self._paused = False
        self.view = Screen(state, unicode=unicode)
        self.failure: BaseException | None = None
        """What ended sampling, when it was an error."""

    def compose(self) -> ComposeResult:
        yield self.view

    def on_mount(self) -> None:
        self.view.show(self._clock())
        threading.Thread(target=self._sample, name="brim-live", daemon=True).start()

    def on_unmount(self) -> None:
        self._leaving.set()

    def action_pause(self) -> None:
        """Freeze the screen; sampling goes on."""
        self._paused = not self._paused
        self.view.footer = "paused, p goes on" if self._paused else FOOTER
        self.view.show(self._clock())

    def _sample(self) -> None:
        """In a thread: a driver call can take tens of milliseconds, and may hang."""
        drawn, period_s = 0.0, self._period_s
        try:
            while not self._leaving.wait(period_s):
                began_s = time.thread_time()
                more = self._tick()
                # a driver that is dear is asked less often
                period_s = max(self._period_s, (time.thread_time() - began_s) / CPU_SHARE)
                if self._leaving.is_set():
                    return
                now = time.monotonic()
                if now - drawn >= FRAME_S * 0.9 or not more:
                    drawn = now
                    self.call_from_thread(self._show)
                if not more:
                    break
        except Exception as error:  # shown by the verb after the screen is restored
            self.failure = error
        if not self._leaving.is_set():
            self.call_from_thread(self.exit)

    def _show(self) -> None:
        if not self._paused:
            self.view.show(self._clock())
