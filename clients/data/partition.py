"""Split the images of a data set: a public pool, the private images of every client, and test images.

`fingerprint` is a digest of a data set, as far as reading its images is cheap.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.normalization import Normalization
from attacks.interface.torch_tools import derive_seed, numpy_generator
from clients.config import DataConfig, PartitionConfig
from clients.data import Dataset, Split, load_dataset
from clients.data.arrays import UNUSED, ArraySplit, Task, make_task
from clients.data.files import quiet

Images = tuple[Tensor, Tensor]
"""Images (N, C, H, W), float32 in [0, 1], and their int64 group indices (N,)."""


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The data of a federation. Indices count the images of the data set's train (`test_indices`: test) split.

    shape: (C, H, W).
    shares: the private images of every client, disjoint from each other and from the public pool.
    normalization: of every client; the images here are not yet normalized.
    """

    dataset: Dataset
    task: Task
    shape: tuple[int, int, int]
    normalization: Normalization
    public_indices: np.ndarray
    shares: tuple[np.ndarray, ...]
    test_indices: np.ndarray

    @property
    def client_sizes(self) -> tuple[int, ...]:
        return tuple(len(share) for share in self.shares)

    def client_indices(self, client: int) -> np.ndarray:
        """Return the (N,) indices of one client's images in the train split."""
        if not 0 <= client < len(self.shares):
            raise InputError(f"client {client} has no partition: there are clients 0 to {len(self.shares) - 1}")
        return self.shares[client].copy()

    def client(self, client: int) -> Images:
        return self._read(self.dataset.train, self.client_indices(client))

    def public(self) -> Images:
        return self._read(self.dataset.train, self.public_indices)

    def test(self) -> Images:
        return self._read(self.dataset.test, self.test_indices)

    def private_among(self, images: Tensor) -> int:
        """Count the private images among `images` (P, C, H, W), float32 in [0, 1], pixel for pixel."""
        known = set(_contents(images))
        shares = range(len(self.shares))
        return sum(content in known for client in shares for content in _contents(self.client(client)[0]))

    def _read(self, split: Split, indices: np.ndarray) -> Images:
        return split.images(indices), torch.from_numpy(self.task.apply(split.labels[indices]))


def _contents(images: Tensor) -> list[bytes]:
    """Return a digest of the pixels of each image (N, C, H, W)."""
    return [hashlib.sha256(image.numpy().tobytes()).digest() for image in images]


def split_data(data: DataConfig, partition: PartitionConfig, clients: int, seed: int) -> FederatedData:
    """Load, group and split the images; the same arguments give the same split in every process.

    Raise InputError if there are too few images, or if the configuration does not fit the data.
    """
    # JSON, because lists and mappings in the models cannot be hashed.
    return _split_data(data.model_dump_json(), partition.model_dump_json(), clients, seed)


@lru_cache(maxsize=4)
def _split_data(data_json: str, partition_json: str, clients: int, seed: int) -> FederatedData:
    data, partition = DataConfig.model_validate_json(data_json), PartitionConfig.model_validate_json(partition_json)
    if isinstance(partition.images, list) and len(partition.images) != clients:
        entries = f"partition.images has {len(partition.images)} entries"
        raise InputError(f"{entries}, federation.clients is {clients}: give one number per client, or one for all")
    dataset = load_dataset(data)
    task = make_task(data.task, dataset.class_names)
    groups = task.apply(dataset.train.labels)
    order = numpy_generator(seed, "split").permutation(np.flatnonzero(groups != UNUSED))
    if data.public + clients > len(order):
        short = f"data {data.name!r} has {len(order)} train images for it and {clients} clients"
        raise InputError(f"data.public is {data.public}: {short}: lower data.public")
    public, rest = order[: data.public], order[data.public :]
    if partition.fixed_size:
        rest = alternating(rest, groups[rest], task) if partition.kind == "balanced" else rest
        shares = _exact_shares(rest, data, partition, clients)
    else:
        positions = _flower_shares(groups[rest], task, partition, clients, derive_seed(seed, "partition") % 2**32)
        shares = [rest[chosen[: partition.images_of(i)]] for i, chosen in enumerate(positions)]
    pool = dataset.train.images(public)
    _, channels, height, width = pool.shape
    return FederatedData(
        dataset=dataset,
        task=task,
        shape=(channels, height, width),
        normalization=_normalization(data, pool),
        public_indices=public,
        shares=tuple(shares),
        test_indices=_test_indices(dataset, task, data, seed),
    )


def _exact_shares(rest: np.ndarray, data: DataConfig, partition: PartitionConfig, clients: int) -> list[np.ndarray]:
    """Give client i exactly as many images as configured, in shuffled order."""
    sizes = [partition.images_of(client) or 0 for client in range(clients)]
    if sum(sizes) > len(rest):
        asked = f"asks for {sum(sizes)} images ({clients} clients)"
        what = "train images" if partition.kind == "exact" else "train images with equally many of every group"
        remain = f"{len(rest)} {what} of {data.name!r} remain after data.public = {data.public}"
        raise InputError(
            f"partition.images {asked}, {remain}: lower partition.images, federation.clients or data.public"
        )
    return np.split(rest, np.cumsum(sizes))[:clients]


def alternating(indices: np.ndarray, groups: np.ndarray, task: Task) -> np.ndarray:
    """Return the first image of every group, the second of every group, …, while each has one left, (M,). indices,
    groups: (N,). The order within a group stays; images in a row hold each group equally often, to within one."""
    members = [indices[groups == group] for group in range(len(task.groups))]
    each = min(map(len, members))
    return np.stack([own[:each] for own in members], axis=1).reshape(-1)


def _flower_shares(
    groups: np.ndarray, task: Task, partition: PartitionConfig, clients: int, seed: int
) -> list[np.ndarray]:
    """Return every client's positions in `groups` (N,), by a partitioner of flwr-datasets on the task's labels."""
    import datasets  # 2 s with flwr-datasets, which partitions of our own are spared
    from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner, PathologicalPartitioner

    partitioner: IidPartitioner | DirichletPartitioner | PathologicalPartitioner
    if partition.kind == "iid":
        partitioner = IidPartitioner(clients)
    elif partition.kind == "dirichlet":
        partitioner = DirichletPartitioner(clients, "label", partition.alpha, min_partition_size=1, seed=seed)
    else:
        if partition.classes > len(task.groups):
            found = f"the task has {len(task.groups)}"
            raise InputError(f"partition.classes is {partition.classes}, {found}: lower partition.classes")
        partitioner = PathologicalPartitioner(clients, "label", partition.classes, seed=seed)
    with quiet():
        partitioner.dataset = datasets.Dataset.from_dict({"index": np.arange(len(groups)), "label": groups})
        try:
            shares = [np.array(partitioner.load_partition(i)["index"], np.int64) for i in range(clients)]
        except ValueError:
            raise InputError(_no_shares(partition, clients, len(groups))) from None
    if any(len(share) == 0 for share in shares):
        raise InputError(_no_shares(partition, clients, len(groups)))
    return shares


def _no_shares(partition: PartitionConfig, clients: int, images: int) -> str:
    """Say why a partitioner fails: a client would have no images, or a class too few to share out."""
    knob = {"dirichlet": "raise partition.alpha", "pathological": "lower partition.classes"}.get(partition.kind, "")
    setting = {"dirichlet": f" with alpha {partition.alpha:g}", "pathological": f" with {partition.classes} classes"}
    kind = f"partition.kind {partition.kind!r}{setting.get(partition.kind, '')}"
    return (
        f"{kind} cannot give each of {clients} clients a share of {images} images, one would be left with none: "
        f"{knob + ', ' if knob else ''}lower federation.clients or data.public"
    )


def _test_indices(dataset: Dataset, task: Task, data: DataConfig, seed: int) -> np.ndarray:
    eligible = np.flatnonzero(task.apply(dataset.test.labels) != UNUSED)
    if not len(eligible):
        raise InputError(f"data {data.name!r} has no test images of the classes of data.task")
    return numpy_generator(seed, "test").permutation(eligible)[: data.test]


def _normalization(data: DataConfig, pool: Tensor) -> Normalization:
    """Return how clients normalize: by a mean that is given, or of the public images (N, C, H, W), which every client
    knows, and a deviation, if one is given."""
    channels, mean = pool.shape[1], data.mean
    if isinstance(mean, str):
        mean = pool.double().mean((0, 2, 3)).tolist() if mean == "public" else [0.0] * channels
    for name, values in (("mean", mean), ("std", data.std or mean)):
        if len(values) != channels:
            raise InputError(f"data.{name} has {len(values)} values, images of {data.name!r} have {channels} channels")
    return Normalization(tuple(mean), tuple(data.std))


LEAST_DECODED = 128  # images of a split that is kept encoded
PIXELS_DECODED = 2**24  # of such a split, if its images are small: 16,384 of 32 x 32, a second's work
AT_A_TIME = 16


def fingerprint(config: DataConfig) -> str:
    """Return a digest of the class names, the labels and the images, equal for equal data in any place. Of images that
    stay encoded, it covers 128 or as many as have 16 million pixels, spread evenly."""
    data = load_dataset(config)
    digest = hashlib.sha256(repr(data.class_names).encode())
    for split in (data.train, data.test):
        labels = np.ascontiguousarray(split.labels)
        digest.update(f"{labels.dtype} {labels.shape}".encode() + labels.tobytes())
        _add_images(digest, split)
    return digest.hexdigest()[:16]


def _add_images(digest: "hashlib._Hash", split: Split) -> None:
    if isinstance(split, ArraySplit):
        digest.update(f"{split.pixels.dtype} {split.pixels.shape}".encode())
        for start in range(0, len(split.pixels), 1000):
            digest.update(np.ascontiguousarray(split.pixels[start : start + 1000]).tobytes())
        return
    if not (count := len(split.labels)):
        return
    height, width = split.images(np.array([0])).shape[-2:]
    most = max(LEAST_DECODED, PIXELS_DECODED // (height * width))
    shown = np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
    for start in range(0, len(shown), AT_A_TIME):
        images = split.images(shown[start : start + AT_A_TIME])
        digest.update(str(tuple(images.shape)).encode() + images.numpy().tobytes())
