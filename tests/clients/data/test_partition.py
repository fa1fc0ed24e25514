import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from attacks.interface.errors import InputError
from clients.config import DataConfig, PartitionConfig
from clients.data.partition import _split_data, split_data

TRAIN = 1437  # digits: 1,797 images of which 360 are for testing


def split(data=None, partition=None, clients=3, seed=0):
    return split_data(DataConfig(**(data or {})), PartitionConfig(**(partition or {})), clients, seed)


def message(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def everything(data):
    return np.concatenate([data.public_indices, *data.shares])


@pytest.fixture
def grey_levels(tmp_path):
    """300 images (3, 2, 2) in which every channel is known: image i is i / 1000, channel c adds c / 10."""
    pixels = np.zeros((300, 2, 2, 3), np.float64) + np.arange(300)[:, None, None, None] / 1000
    pixels += np.arange(3) / 10
    path = tmp_path / "levels.npz"
    np.savez(path, x_train=pixels, y_train=np.arange(300) % 4, x_test=pixels[:40], y_test=np.arange(40) % 4)
    return str(path)


def test_defaults():
    data = split()
    assert data.client_sizes == (8, 8, 8)
    assert data.shape == (1, 8, 8)
    images, labels = data.client(1)
    assert images.shape == (8, 1, 8, 8) and images.dtype == torch.float32
    assert labels.shape == (8,) and labels.dtype == torch.int64
    assert len(data.public()[0]) == 500
    assert len(data.test()[0]) == 360  # at most 500, and there are no more
    assert images.min() >= 0 and images.max() <= 1


@pytest.mark.parametrize(
    "partition",
    [
        {"images": [5, 1, 11]},
        {"kind": "iid"},
        {"kind": "dirichlet", "alpha": 0.3},
        {"kind": "pathological", "classes": 3},
    ],
)
def test_public_pool_and_clients_are_disjoint(partition):
    data = split(partition=partition)
    indices = everything(data)
    assert len(set(indices.tolist())) == len(indices)
    assert indices.min() >= 0 and indices.max() < TRAIN
    assert data.client_sizes == tuple(len(data.client(i)[0]) for i in range(3))


def test_exact_sizes():
    assert split(partition={"images": [5, 1, 11]}).client_sizes == (5, 1, 11)
    assert split(partition={"images": 312}).client_sizes == (312, 312, 312)  # 936 of the 937 that remain


def test_balanced_clients_hold_every_class_equally_often():
    data = split(partition={"kind": "balanced", "images": [20, 25, 3]})
    assert data.client(0)[1].bincount(minlength=10).tolist() == [2] * 10
    assert sorted(data.client(1)[1].bincount(minlength=10).tolist()) == [2] * 5 + [3] * 5
    assert data.client_sizes == (20, 25, 3)
    with pytest.raises(InputError, match="remain"):
        split(partition={"kind": "balanced", "images": TRAIN})


def test_iid_shares_everything_evenly():
    sizes = split(partition={"kind": "iid"}).client_sizes
    assert sum(sizes) == TRAIN - 500
    assert max(sizes) - min(sizes) <= 1


def test_dirichlet_shares_everything_unevenly():
    even = split(partition={"kind": "dirichlet", "alpha": 1e6}, clients=5)
    skewed = split(partition={"kind": "dirichlet", "alpha": 0.1}, clients=5)
    assert sum(even.client_sizes) == sum(skewed.client_sizes) == TRAIN - 500

    def largest_share(data):
        return np.mean([data.client(i)[1].bincount(minlength=10).max() / data.client_sizes[i] for i in range(5)])

    assert largest_share(even) < 0.15  # ten classes, about a tenth each
    assert largest_share(skewed) > 0.3


@pytest.mark.parametrize(("task", "classes", "clients"), [(None, 2, 4), ("odd_even", 1, 2)])
def test_pathological_clients_have_exactly_so_many_classes_or_groups(task, classes, clients):
    data = split({"task": task}, {"kind": "pathological", "classes": classes}, clients)
    assert [len(data.client(i)[1].unique()) for i in range(clients)] == [classes] * clients


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "pathological"])
def test_images_caps_the_shares(kind):
    whole, capped = split(partition={"kind": kind}), split(partition={"kind": kind, "images": [7, 9, 10_000]})
    assert capped.client_sizes == (7, 9, whole.client_sizes[2])
    for i in range(3):
        assert capped.client_indices(i).tolist() == whole.client_indices(i)[: capped.client_sizes[i]].tolist()


@pytest.mark.parametrize("kind", ["exact", "balanced", "iid", "dirichlet", "pathological"])
def test_the_same_arguments_give_the_same_split_and_another_seed_another(kind):
    first = split(partition={"kind": kind})
    _split_data.cache_clear()
    again, other = split(partition={"kind": kind}), split(partition={"kind": kind}, seed=1)
    assert again is not first
    assert everything(again).tolist() == everything(first).tolist()
    assert torch.equal(again.client(2)[0], first.client(2)[0])
    assert torch.equal(again.test()[0], first.test()[0])
    assert everything(other).tolist() != everything(first).tolist()


@pytest.mark.slow
def test_another_process_splits_alike():
    script = (
        "from clients.config import DataConfig, PartitionConfig; from clients.data.partition import split_data;"
        "data = split_data(DataConfig(), PartitionConfig(kind='dirichlet', images=5), 3, 7);"
        "print([data.client_indices(i).tolist() for i in range(3)])"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    data = split(partition={"kind": "dirichlet", "images": 5}, seed=7)
    assert output.stdout.strip() == str([data.client_indices(i).tolist() for i in range(3)])
    assert output.stderr == ""


def test_partition_and_clients_do_not_move_the_public_pool_and_the_test_images():
    one, other = split(), split(partition={"kind": "iid"}, clients=9)
    assert one.public_indices.tolist() == other.public_indices.tolist()
    assert one.test_indices.tolist() == other.test_indices.tolist()


def test_returned_tensors_are_the_callers_own():
    data = split()
    before = data.client(0)[0].clone()
    data.client(0)[0].zero_()
    data.client_indices(0)[:] = 0
    assert torch.equal(data.client(0)[0], before)


def test_images_of_unused_classes_are_dropped():
    task = {"low": [0, 1], "high": ["8", 9]}
    data = split({"task": task, "public": 20}, {"kind": "iid"})
    used = np.isin(data.dataset.train.labels, [0, 1, 8, 9])
    assert len(everything(data)) == used.sum()
    assert used[everything(data)].all()
    groups = torch.cat([data.client(i)[1] for i in range(3)])
    digits = np.concatenate([data.dataset.train.labels[data.client_indices(i)] for i in range(3)])
    assert groups.tolist() == (digits >= 8).astype(int).tolist()
    assert set(data.dataset.test.labels[data.test_indices]) == {0, 1, 8, 9}
    assert set(data.test()[1].tolist()) == {0, 1}


def test_pixel_mean(grey_levels):
    source = {"name": "npz", "root": grey_levels, "public": 30}
    public = split(source)
    level = public.public_indices.mean() / 1000
    assert public.normalization.mean == pytest.approx((level, level + 0.1, level + 0.2), abs=1e-6)
    assert split({**source, "mean": "none"}).normalization.mean == (0, 0, 0)
    assert split({**source, "mean": [0.1, 0.2, 0.3]}).normalization.mean == (0.1, 0.2, 0.3)
    assert not public.normalization.std and split({**source, "std": [0.2, 0.3, 0.4]}).normalization.std == (
        0.2,
        0.3,
        0.4,
    )
    with pytest.raises(InputError, match=r"data.std has 1 values, images of 'npz' have 3 channels"):
        split({**source, "std": [0.2]})
    with pytest.raises(InputError) as error:
        split({**source, "mean": [0.5]})
    assert message(error) == "data.mean has 1 values, images of 'npz' have 3 channels"


def test_images_are_those_of_the_indices_and_keep_their_mean(grey_levels):
    data = split({"name": "npz", "root": grey_levels, "public": 30, "test": 15})
    images, labels = data.client(2)
    indices = torch.from_numpy(data.client_indices(2))
    torch.testing.assert_close(images[:, 1, 0, 0], indices.float() / 1000 + 0.1)
    assert labels.tolist() == (indices % 4).tolist()
    assert len(data.test()[0]) == 15


@pytest.mark.parametrize(
    ("data", "partition", "clients", "says"),
    [
        (
            {},
            {"images": 313},
            3,
            "^partition.images asks for 939 images \\(3 clients\\), 937 train images of 'digits' remain after "
            "data.public = 500: lower partition.images, federation.clients or data.public$",
        ),
        (
            {"public": 1435},
            {},
            3,
            "^data.public is 1435: data 'digits' has 1437 train images for it and 3 clients: lower data.public$",
        ),
        ({}, {"images": [3, 4]}, 3, "^partition.images has 2 entries, federation.clients is 3"),
        *(
            (
                {},
                {"kind": "dirichlet", "alpha": alpha},
                40,
                f"with alpha {alpha:g} cannot give each of 40 clients a share.*raise partition.alpha",
            )
            for alpha in (1e-300, 1e-3)
        ),
        (
            {},
            {"kind": "pathological", "classes": 11},
            3,
            "^partition.classes is 11, the task has 10: lower partition.classes$",
        ),
        (
            {},
            {"kind": "pathological", "classes": 10},
            300,
            "lower partition.classes, lower federation.clients",
        ),
    ],
)
def test_what_cannot_be_split_is_one_line_with_a_remedy(data, partition, clients, says):
    with pytest.raises(InputError) as error:
        split(data, partition, clients)
    assert re.search(says, message(error))


def test_unknown_clients():
    for client in (-1, 3):
        with pytest.raises(InputError) as error:
            split().client(client)
        assert message(error) == f"client {client} has no partition: there are clients 0 to 2"


def test_partitioning_is_silent(capfd, recwarn):
    _split_data.cache_clear()
    for kind in ("iid", "dirichlet", "pathological"):
        split(partition={"kind": kind, "classes": 1, "alpha": 0.05}, clients=6, seed=3)
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_mnist_odd_even(shared_data):
    data = split({"name": "mnist", "root": str(shared_data), "task": "odd_even"}, {"images": 20}, clients=5)
    assert data.shape == (1, 28, 28)
    assert data.client_sizes == (20,) * 5
    assert data.normalization.mean[0] == pytest.approx(0.1307, abs=0.01)  # of 500 images, not of all of them


def test_cifar10_animal_vehicle(shared_data):
    source = {"name": "cifar10", "root": str(shared_data / "cifar10"), "task": "animal_vehicle"}
    data = split(source, {"kind": "dirichlet", "images": 50})
    assert data.shape == (3, 32, 32)
    assert data.task.groups == ("vehicle", "animal")
    assert data.normalization.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=0.02)
