"""A run directory as a user of Python has it: what it says of itself, and the images that it shows."""

import pytest
import torch
import yaml

import fedspill
from attacks import InputError, Knowledge
from clients.local_update import load_data
from simulator.evaluation.job import Job, JobSettings, run_job
from simulator.results.keys import ALL, ObservationKey, RecordedObservation
from simulator.results.ledger import Ledger
from simulator.results.storage import CellStore
from simulator.scenario.scenario import validate
from simulator.scenario.yaml_source import YamlSource


@pytest.fixture
def run(tmp_path):
    """Two clients, whose update is no training's: the attack returns public images."""
    content = {
        "name": "s1",
        "data": {"public": 30, "test": 30},
        "partition": {"images": 3},
        "federation": {"clients": 2},
        "model": {"width": 16, "depth": 1},
        "adversary": {"attacks": ["best_public"]},
    }
    scenario = validate(YamlSource(content))
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump({"scenario": scenario.model_dump(mode="json")}))
    store, ledger = CellStore(tmp_path), Ledger(tmp_path)
    store.create(scenario.model, (1, 8, 8), 10, 0)
    initial = store.architecture().build().state_dict()
    sent = store.save_global(0, initial)
    public = load_data(scenario.cells()[0].client_config(use_gpu=False)).public()[0]
    for client in (0, 1):
        final = {name: value + 0.01 * (client + 1) for name, value in initial.items()}
        key = ObservationKey(1, client, "server")
        seen = RecordedObservation.of(key, ((sent, store.save_client(1, client, final)),), (client,), (0, 1))
        store.save_observation(seen, Knowledge(num_private=3, pixel_mean=(0.3,), public_images=public - 0.3))
        store.save_public_images(public - 0.3)
        result = run_job(Job(JobSettings.of(scenario.cells()[0]), tmp_path, key, scenario.adversary.attacks[0]))
        ledger.add(f"job {client}", **result._asdict())
        ledger.mark_done(f"job {client}")
    ledger.write_tables()
    return fedspill.load(tmp_path)


def own_images(run, client):
    return load_data(run.cells[""].client_config(use_gpu=False)).client(client)[0]


def test_it_says_what_it_holds(run, tmp_path):
    assert repr(run) == f"Run({str(tmp_path)!r}: scenario 's1', 1 round, 2 clients, 2 attacks)"
    page = run._repr_html_()
    assert "scenario &#x27;s1&#x27;" in page and "best_public" in page
    assert page.count("<img") == sum(len(images) for _, images in run.show().strips) > 0
    (tmp_path / "leakage.parquet").unlink()
    assert "not finished" in repr(fedspill.load(tmp_path)) and "not finished" in fedspill.load(tmp_path)._repr_html_()


def test_private_images_are_those_of_the_client(run):
    assert torch.equal(run.private(1, 1), own_images(run, 1))
    with pytest.raises(InputError, match="no observation 'round_0001_client_all_observer'"):
        run.private(1, ALL)


def test_show_has_private_images_above_those_that_they_were_matched_with(run):
    shown = run.show(client=1)
    assert shown.title.startswith("round 1, client 1, server, best_public: ")
    (above, private), (below, found) = shown.strips
    assert (above, below) == ("private", "reconstructed") and len(private) == len(found) == len(shown.captions)
    own = own_images(run, 1)
    assert all(any(torch.equal(image, other) for other in own) for image in private)
    distances = (private - found).flatten(1).norm(dim=1)
    assert shown.captions == tuple(f"L2 {distance:.2g}" for distance in distances)
    assert distances.tolist() == sorted(distances.tolist())
    with pytest.raises(InputError, match="did you mean 'client'"):
        run.show(cliént=1)
    with pytest.raises(InputError, match="no attack that came to an end"):
        run.show(client=7)
