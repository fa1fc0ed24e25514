"""A run of one round, as its folder has it, and attacks on it."""

from attacks import Knowledge
from clients.config import ModelConfig
from simulator.evaluation.job import Job, JobSettings
from simulator.results.keys import ObservationKey, RecordedObservation
from simulator.results.storage import CellStore
from simulator.scenario.scenario import Cell, validate
from simulator.scenario.yaml_source import YamlSource


def make_job(root, client, timeout=3600.0, **swept):
    """An attack that takes no time on what `client` returned."""
    adversary = {"timeout": timeout, "attacks": ["mean_image"]}
    scenario = validate(YamlSource({"name": "s", "data": {"public": 30, "test": 30}, "adversary": adversary}))
    return Job(
        JobSettings.of(Cell("", swept, scenario)), root, ObservationKey(1, client, "server"), scenario.attacks[0]
    )


def observed_run(folder):
    """The store of a run in which the server saw what clients 0 to 2 returned."""
    store = CellStore(folder)
    store.create(ModelConfig(width=8, depth=1), (1, 8, 8), 10, seed=0)
    state = store.architecture().build().state_dict()
    initial = store.save_global(0, state)
    for client in range(3):
        returned = store.save_client(1, client, {name: value + 0.01 * (client + 1) for name, value in state.items()})
        key = ObservationKey(1, client, "server")
        recorded = RecordedObservation.of(key, ((initial, returned),), (client,), (0, 1, 2))
        store.save_observation(recorded, Knowledge(num_private=3, pixel_mean=(0.3,)))
    return store
