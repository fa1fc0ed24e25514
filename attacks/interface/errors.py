"""The one error that a user can mend: it names the thing, the value and the remedy."""


class InputError(ValueError):
    """Bad input. The command line prints the message alone and exits with code 2."""


def nearest(word: str, known: list[str]) -> str:
    """A suggestion such as "; did you mean 'model'?", or the known names where none is near."""
    from difflib import get_close_matches

    match = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else f" (known: {', '.join(known)})"
