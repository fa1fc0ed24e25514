"""What `flwr run` runs on the server."""

import logging
from types import SimpleNamespace

import pytest

from attacks import InputError
from simulator.server_app import main


def test_a_scenario_that_is_not_there_is_one_line_and_a_failed_run(tmp_path, caplog):
    context = SimpleNamespace(run_config={"scenario": str(tmp_path / "nothing.yaml")})
    with caplog.at_level(logging.ERROR, "flwr"), pytest.raises(InputError) as raised:  # simulations silence it
        main(None, context)
    assert len(raised.traceback) == 2  # the call here and the line that raises: Flower prints it
    (line,) = [record.getMessage() for record in caplog.records if record.name == "flwr"]
    assert line.startswith("fedspill: ") and "nothing.yaml" in line and "\n" not in line
