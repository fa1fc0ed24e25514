"""An actor without Ray."""

from types import SimpleNamespace


class Handle:
    """An actor in this process: `handle.method.remote(...)` calls the method."""

    def __init__(self, board):
        self.board = board

    def __getattr__(self, name):
        return SimpleNamespace(remote=getattr(self.board, name))
