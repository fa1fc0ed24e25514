"""The one error that a user can mend, which names the thing, the value and the remedy; and the texts of errors."""

import re

CLOSE = 0.65  # similarity from which a name counts as misspelled: FedFoo is no FedYogi
MOST_MEANT = 4  # names that one word may stand for
ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?")  # they move and colour a terminal
LONGEST = 300  # characters of a line about an error


class InputError(ValueError):
    """Bad input. The command line prints the message alone and exits with code 2.

    in_scenario: the message where a scenario's remedy is another one.
    """

    in_scenario = ""


def did_you_mean(word: str, known: list[str]) -> str:
    """Return a suggestion such as "; did you mean 'model'?" for a name misspelt or cut short, else the known names."""
    from difflib import get_close_matches

    lower = word.lower()
    meant = get_close_matches(word, known, n=1, cutoff=CLOSE) or [
        name for name in known if "".join(part[:1] for part in name.lower().split("_")) == lower
    ]
    meant = meant or [name for name in known if len(word) > 1 and lower in name.lower()]
    if not 0 < len(meant) <= MOST_MEANT:
        return f" (known: {', '.join(known)})"
    *others, last = map(repr, meant)
    return f"; did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"


def one_line(said: object, most: int = LONGEST) -> str:
    """Make one line of at most so many characters of an error or a foreign text, without control characters."""
    words = " ".join(ESCAPES.sub("", str(said)[: 20 * most]).split())
    line = "".join(sign for sign in words if sign.isprintable())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def counted(count: float, noun: str) -> str:
    """Return a number with its noun: "1 image", "2 images"."""
    return f"{count:.0f} {noun}{'' if count == 1 else 's'}"
