"""Any Flower mod as a defense of the update, by its import path.

A mod is called as Flower calls it, with the message that the client received; what it wraps is the reply so far, so
that it acts at its place in the chain. `clients/client_app.py` runs mods; nothing here imports Flower.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from clients.defenses.base import Defense, FlowerModPath


@dataclass(frozen=True)
class FlowerMod(Defense):
    """path: package.module:mod, a mod or a class whose instances are mods. options: of that class."""

    name: ClassVar[str] = "flower_mod"

    path: str
    options: dict[str, Any] = field(default_factory=dict)

    def flower_mod(self) -> FlowerModPath:
        return FlowerModPath(self.path, self.options)
