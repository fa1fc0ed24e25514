"""The page docs/reference/tables.md, made from the declared columns:

python -m docs.reference.tables > docs/reference/tables.md
"""

import textwrap

from simulator.results import schema
from simulator.results.columns import COUNT, FLAG, INTEGER, NUMBER, TEXT, Column, Table
from simulator.results.schema import LEAKAGE

HEAD = """# What every column means

Made from the declared columns (`python -m docs.reference.tables`). Distances (L2) are Euclidean (not squared)
between images in [0, 1], flattened. PSNR is in dB with peak 1, an exact copy counts as 100. SSIM is scikit-image's
with a uniform window of 7 pixels, 3 for images below 16, none below 3. Empty is what was not measured; `detail` says
why where something should have been. A sweep adds a column for each key that it moves, and `cell`.
"""
RULE = ("| column | type | meaning |", "|---|---|---|")
WORDS = {INTEGER: "integer", COUNT: "integer", NUMBER: "number", FLAG: "true / false", TEXT: "text"}


def reference() -> str:
    """The whole page, Markdown."""
    run = (LEAKAGE, schema.SAMPLES, schema.UTILITY, schema.CLIENTS)
    tables = (*run, schema.benchmark(), schema.EQUAL_UTILITY, schema.CANDIDATES, schema.LAYERS)
    return "\n".join([HEAD, *map(section, tables)])


def section(table: Table) -> str:
    """One table: what its rows are, which columns it shares with the leakage table, and its own by group."""
    of_others = {} if table is LEAKAGE else LEAKAGE.columns  # the very column is shared, not one of the same name
    shared = [name for name, column in table.columns.items() if of_others.get(name) is column]
    own = [column for name, column in table.columns.items() if name not in shared]
    names = ", ".join(f"`{name}`" for name in shared)
    intro = f"{table.intro} Shared with the leakage table: {names}." if shared else table.intro
    blocks = [f"## {table.files}\n\n{wrapped(intro)}\n"]
    for group in dict.fromkeys(column.group for column in own):
        lines = [row(column) for column in own if column.group is group]
        blocks.append("\n".join([wrapped(f"{group.intro} Computed in `{group.source}`."), "", *RULE, *lines, ""]))
    return "\n".join(blocks)


def row(column: Column) -> str:
    kind = ", ".join(filter(None, (WORDS[column.dtype], column.unit)))
    meaning = column.meaning.replace("|", "\\|")  # a bar would end the cell
    return f"| `{column.name}` | {kind} | {meaning} |"


def wrapped(text: str) -> str:
    """A paragraph in lines of at most 120 characters; code in backticks stays whole."""
    return textwrap.fill(text.strip(), 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    print(reference(), end="")
