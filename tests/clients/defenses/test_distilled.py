import pytest
import torch

from attacks import InputError
from clients.config import DataConfig, PartitionConfig
from clients.data.partition import split_data
from clients.local_update import local_update, make_model
from tests.clients.defenses.parts import config, context, make


@pytest.mark.parametrize("method", ["kip", "rkip", "rkip_finite"])
def test_a_client_trains_on_its_distilled_set_and_keeps_it(method):
    received = make_model(config(), split_data(DataConfig(), PartitionConfig(images=8), 2, 0)).state_dict()
    memory = {}
    found = [
        local_update(config({"name": method, "size": 4, "iterations": 60}), received, i, 0, memory=memory)
        for i in (1, 2)
    ]
    own = split_data(DataConfig(), PartitionConfig(images=8), 2, 0).client(0)[0]
    first = found[0].distilled
    assert first.shape == (4, 1, 8, 8) and first.min() >= 0 and first.max() <= 1
    assert torch.equal(first, found[1].distilled)  # a new one every round would give away more
    assert torch.cdist(first.flatten(1), own.flatten(1)).min() > 0.1
    assert found[0].metrics["distilled"] == 4 and found[0].num_images == 8


def test_a_distilled_set_larger_than_the_data_is_refused():
    with pytest.raises(InputError, match="size is 9, client 0 has 8 images only"):
        make("kip", size=9).check(context())
    make("kip", size=8).check(context())
