"""Paper: prints within the width what the terminal can show, with foreign text cleaned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from brim.report import words

_ASCII: Final = str.maketrans(
    {"×": "x", "–": "-", "·": "|", "µ": "u", "•": "*", "→": ">", "−": "-"}
)
_WIDEST: Final = 120
"""Lines longer than this are not easier to read."""


class Paper:
    """Prints pieces of text with a hanging indent, each line within the width."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.width = max(20, min(console.width, _WIDEST))
        self.unicode = console.encoding.lower().replace("-", "").startswith("utf")

    def text(self, text: str, style: str = "") -> Text:
        """Foreign or own text as a span; characters that the terminal lacks are replaced."""
        said = words.clean(text)
        if not self.unicode:
            encoding = self._console.encoding
            said = said.translate(_ASCII).encode(encoding, "replace").decode(encoding)
        return Text(said, style=style, end="")

    def line(self, *pieces: Text, mark: Text | None = None, indent: int = 0) -> None:
        """One paragraph, wrapped; ``mark`` hangs before its first line, or stands above it."""
        start = Text(" " * indent, end="")
        if mark is not None and indent + mark.cell_len > self.width // 2:
            self.line(mark, indent=indent)
            start.append("  ")
        elif mark is not None:
            start = Text.assemble(start, mark, " ", end="")
        body = Text.assemble(*pieces, end="")
        room = max(10, self.width - start.cell_len)
        for number, wrapped in enumerate(body.wrap(self._console, room, overflow="fold")):
            wrapped.rstrip()
            before = start if number == 0 else Text(" " * start.cell_len, end="")
            self._print(Text.assemble(before, wrapped) if wrapped.plain else Text(""))

    def flow(self, pieces: Sequence[Text], *, between: str = " · ", indent: int = 0) -> None:
        """Pieces one after the other; a line ends between two of them, never within one."""
        rows: list[list[Text]] = []
        room = 0
        for piece in pieces:
            if not rows or piece.cell_len > room:
                rows.append([piece])
                room = self.width - indent
            else:
                rows[-1] += [self.text(between, "dim"), piece]
            room -= piece.cell_len + len(between)
        for row in rows:
            self.line(*row, indent=indent)

    def blank(self) -> None:
        self._print(Text(""))

    def _print(self, text: Text) -> None:
        self._console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Text]], *, gap: int = 2) -> None:
        """Rows under a header; the first column reads from the left, the others are figures.

        The first column gives way where the width is short; a row never breaks.
        """
        top = [self.text(name, "dim") for name in header]
        lines = [top, *rows]
        widths = [max(row[i].cell_len for row in lines) for i in range(len(header))]
        others = sum(widths[1:]) + gap * (len(widths) - 1)
        widths[0] = min(widths[0], max(8, self.width - others))
        for row in lines:
            line = Text(end="")
            for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
                placed = cell.copy()
                placed.truncate(width, overflow="ellipsis" if self.unicode else "crop")
                space = " " * (width - placed.cell_len)
                line.append_text(Text(space, end="") + placed if i else placed + Text(space))
                line.append(" " * gap if i < len(widths) - 1 else "")
            line.rstrip()
            line.truncate(self.width, overflow="crop")
            self._print(line)
