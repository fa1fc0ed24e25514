"""Tables for terminals and logs that are as wide as they may be, with every cell whole."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

FOLDED = 8  # letters that a column of text has at least


@dataclass(frozen=True)
class Layout:
    """How columns give way where there is no room for all, by heading.

    texts: columns that may be folded over several lines; all others are numbers. spare, dropped: columns that are left
    out, in this order: `spare` before the columns stand closer, `dropped` after.
    """

    texts: Collection[str]
    spare: Sequence[str] = ()
    dropped: Sequence[str] = ()

    def fitted(self, width: int, columns: dict[str, list[str]]) -> tuple[dict[str, int], int]:
        """(how wide each column is to be, spaces between them). columns: the cells of each."""
        letters = {name: max(map(len, [name, *cells])) for name, cells in columns.items()}
        least = {name: min(size, FOLDED) for name, size in letters.items() if name in self.texts}
        gap = 2

        def missing(asked: dict[str, int]) -> int:
            return sum(asked.values()) + gap * (len(asked) - 1) - width

        def leave_out(names: Sequence[str], asked: dict[str, int]) -> None:
            for name in names:
                if missing(letters | asked) > 0:
                    letters.pop(name, None)

        leave_out(self.spare, {})
        gap = 1 if missing(letters) > 0 else gap
        leave_out(self.dropped, least)
        for name in sorted(least, key=lambda name: sum(len(cell) > FOLDED for cell in columns[name])):
            letters[name] = max(least[name], letters[name] - max(0, missing(letters)))  # fewest broken cells first
        return letters, gap


def text_table(title: str, columns: dict[str, list[str]], width: int, layout: Layout) -> Table:
    """A table of `width` letters at most. columns: the cells of each column, by its heading."""
    widths, gap = layout.fitted(width, columns)
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, gap - 1, 0, 0), pad_edge=False,
                  show_edge=False)  # fmt: skip
    for name, size in widths.items():
        table.add_column(name, justify="left" if name in layout.texts else "right", overflow="fold", width=size)
    for line in zip(*(columns[name] for name in widths), strict=True):
        table.add_row(*line)
    return table
