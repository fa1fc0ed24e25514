"""Code of the user's own, which scenarios, run directories and a server's messages name: it runs where it was allowed.

A scenario may come from a colleague, a run directory by mail. What they hold is data: a network or a Flower mod that
they name, `FILE.py:factory` or `package.module:name`, could be any program. Whoever has read it allows it: on the
command line with `--allow-code`, in a process of one's own with `allow_code()`. What the user types herself needs no
more. The permission stands in the environment, so that Ray's workers have it too.
"""

import os

from attacks.interface.errors import InputError

FLOWERS_OWN = ("flwr.clientapp.mod:", "flwr.client.mod:")  # mods of the Flower that is installed
VARIABLE = "FEDSPILL_ALLOW_CODE"
ALL = "all"


def allow_code(*names: str) -> None:
    """Allow the code of these names to run in this process and in those that it starts; without names, any code."""
    known = os.environ.get(VARIABLE, "").split("\n")
    os.environ[VARIABLE] = "\n".join(filter(None, dict.fromkeys([*known, *(names or (ALL,))])))


def require_allowed(name: str) -> None:
    """Raise InputError where nobody has allowed the code of this name to run."""
    if not name.startswith(FLOWERS_OWN) and not {ALL, name} & set(os.environ.get(VARIABLE, "").split("\n")):
        raise InputError(
            f"{name!r} is code that would run on this machine: read it, then add --allow-code "
            f"(or set {VARIABLE}={ALL}); see SECURITY.md"
        )
