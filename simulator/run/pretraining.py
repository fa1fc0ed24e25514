"""Pretraining on public images before a federation starts: the first of the two steps of fine-tuning.

On the public pool of the federation's own data, or on another data set, whose classes get a last layer of their own.
Weights are kept in a folder under a digest of all that they depend on, so that the cells of a sweep share them.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks import InputError
from attacks.base import Progress, silent
from attacks.interface.normalization import Normalization
from attacks.interface.torch_tools import derive_seed, torch_generator
from clients.config import ClientConfig, PartitionConfig, PretrainConfig
from clients.data import same_images
from clients.data.arrays import Task
from clients.data.partition import FederatedData, split_data
from clients.local_update import load_targets, num_outputs
from clients.models import build_model, load_checkpoint, load_weights
from clients.training import train
from simulator.results.disk import contents_digest, is_changed, save_state, write_atomically, writing

FOLDER = "pretrained"  # in a run's directory
DIGITS = 10  # of a digest in a file name


@dataclass(frozen=True, eq=False)
class Pretraining:
    """The training of a network before the federation.

    config: of a client with this task.
    images: (P, C, H, W), in the model's input space.
    targets: as the loss wants them.
    new_head: whether the federation starts from another head than the one that is trained here.
    """

    config: ClientConfig
    training: PretrainConfig
    task: Task
    images: Tensor
    targets: Tensor
    normalization: Normalization
    new_head: bool

    @classmethod
    def of(cls, config: ClientConfig, data: FederatedData) -> "Pretraining":
        """config: of the federation's clients, whose model has a section `pretrain`. data: theirs.

        Raise InputError if images or labels do not fit the network.
        """
        training = config.model.pretrain
        assert training is not None
        source = data
        if training.data is not None:
            if same_images(training.data, config.data):
                raise InputError(
                    f"model.pretrain.data is the federation's own {config.data.name!r}, private images among it: leave "
                    "it out, and the public pool is used"
                )
            source = split_data(training.data, PartitionConfig(images=1), 1, config.seed)
            if source.shape[0] != data.shape[0]:
                raise InputError(
                    f"model.pretrain.data {training.data.name!r} has {source.shape[0]} channels, the federation's "
                    f"images have {data.shape[0]}: choose data with as many"
                )
        model = config.model.model_copy(update={"frozen": [], "pretrain": None})
        if training.data is not None:
            model = model.model_copy(update={"outputs": None, "replace_head": model.checkpoint is not None})
        own = config.model_copy(update={"training": training, "data": training.data or config.data, "model": model})
        images, labels = source.public()
        if training.data is not None and (shared := data.private_among(images)):  # whatever file they came from
            raise InputError(
                f"model.pretrain.data {training.data.name!r} holds {shared} of the {sum(data.client_sizes)} private "
                "images of the federation: name other images, or leave it out, and the public pool is used"
            )
        if source.shape != data.shape:
            images = F.interpolate(images, data.shape[1:], mode="area")
        targets = load_targets(own, source.task, labels)
        new_head = training.data is not None or config.model.replace_head
        return cls(own, training, source.task, data.normalization.inputs(images), targets, data.normalization, new_head)

    @property
    def digest(self) -> str:
        """The digest of everything that the weights depend on, except the version of torch."""
        content = {
            "seed": self.config.seed,
            "data": self.config.data.model_dump(mode="json"),
            "model": self.config.model.model_dump(mode="json"),
            "training": self.training.model_dump(mode="json", exclude={"folder"}),
            "pixel_mean": self.normalization.mean,
            "pixel_std": self.normalization.std,
            "shape": list(self.images.shape),
            "threads": self.config.threads,
            "new_head": self.new_head,
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
        for values in (self.images, self.targets):  # a file of data may have become another
            digest.update(values.contiguous().numpy().data)
        if self.config.model.checkpoint is not None:
            digest.update(contents_digest(Path(self.config.model.checkpoint)).encode())
        return digest.hexdigest()[:DIGITS]

    def network(self) -> nn.Module:
        """Return the network before pretraining, with one output per class of its own task."""
        shape = (self.images.shape[1], self.images.shape[2], self.images.shape[3])
        # features grow towards the head that they are trained with: the new head must be another draw
        seed = derive_seed(self.config.seed, "pretrained network") if self.new_head else self.config.seed
        return build_model(self.config.model, shape, num_outputs(self.config, self.task), seed)

    def run(self, progress: Progress = silent) -> nn.Module:
        """Return the pretrained network, on the CPU; the same bits on the same machine."""
        device = "cuda" if self.config.use_gpu and torch.cuda.is_available() else "cpu"
        network, images, targets = self.network().to(device), self.images.to(device), self.targets.to(device)
        generator = torch_generator(self.config.seed, "pretraining")
        train(network, images, targets, self.training, generator, progress=progress)
        return network.cpu()


def pretrain(model: nn.Module, config: ClientConfig, data: FederatedData, run_dir: Path, progress: Progress) -> None:
    """Give `model` its pretrained weights, from a file whose checksum is right or else by training now. Its head stays
    as it is after another data set, and with `model.replace_head`.
    """
    pretraining = Pretraining.of(config, data)
    folder = run_dir / FOLDER if pretraining.training.folder is None else Path(pretraining.training.folder)
    path = folder / f"{config.model.name.rpartition(':')[2]}-{pretraining.digest}.safetensors"
    mark = path.with_suffix(".crc32")
    if path.exists() and mark.exists() and not is_changed(path, mark.read_text(errors="replace").strip()):
        load_checkpoint(model, path, pretraining.new_head)
        return
    state = pretraining.run(progress).state_dict()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(mark, save_state(path, state) + "\n")
    with torch.no_grad():
        load_weights(model, state, pretraining.new_head)
