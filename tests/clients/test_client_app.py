"""A client's error names the line that raised it."""

from types import SimpleNamespace

from flwr.app import ConfigRecord, RecordDict

from attacks.interface.errors import one_line
from clients import client_app


def test_a_long_error_of_a_client_names_its_file_and_line(monkeypatch):
    def broken(message, context):
        raise TypeError("got an invalid combination " * 100)

    monkeypatch.setattr(client_app, "trained", broken)
    monkeypatch.setattr(client_app, "Message", lambda error, reply_to: error)
    message = SimpleNamespace(content=RecordDict({"config": ConfigRecord()}))
    said = one_line(client_app.train(message, None).reason)  # as the server shortens it
    assert said.startswith("TypeError: got an invalid combination ")
    assert said.endswith(f"… (test_client_app.py, line {broken.__code__.co_firstlineno + 1})")
