"""What every built-in network looks like: a section of its own options, which builds the network from them."""

from abc import abstractmethod

from torch import nn

from clients.config import Section


class ModelOptions(Section):
    """The options of one built-in network are the fields of a subclass; options of other networks are refused."""

    @abstractmethod
    def build(self, shape: tuple[int, int, int], outputs: int) -> nn.Module:
        """The network for images of this shape (C, H, W), which gives (N, outputs); it is initialized afterwards."""
