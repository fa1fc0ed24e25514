"""Ideal secure aggregation: the server sees the mean of a round's updates and nothing of the parts.

What a protocol such as SecAgg+ would show it, without masks and their rounding. The per-client view is then closed, the
aggregate is attacked instead.
"""

from dataclasses import dataclass
from typing import ClassVar

from clients.defenses.base import Defense, ServerHalf, register


@register
@dataclass(frozen=True)
class SecureAggregation(Defense):
    """Every client of a round is one party; the adversary is outside the sum."""

    name: ClassVar[str] = "secure_aggregation"

    def server_half(self) -> ServerHalf:
        return ServerHalf(hides_clients=True)
