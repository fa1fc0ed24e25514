"""How many images an update can give to attacks that read the row spaces of its layers (span, SPEAR, DAGER, cascades).

The update of a matrix W (m, n), or of the filters of a convolution, is a sum of products δ xᵀ, one for each image and
each of the P positions (or tokens) at which an image is fed to it. Whatever an attack reads off its rows are vectors of
a space of rank min(m, n) at most, and an image takes P of them: min(m, n) / P images, after any number of steps. A
low-rank adapter has the rank of its smaller side. Learned positions of a vision transformer show one image's δ whole,
whatever the rank of its embedding: one image at least. This bounds a family of attacks. It is no certified privacy, and
attacks that fit images to the whole update, as gradient matching does, are not bound by it.
"""

from torch import Tensor, nn

from attacks.interface.observation import Observation
from attacks.networks.patch_embedding import find_patch_embedding
from attacks.networks.probing import parameter_names, probe, random_images


def image_capacity(observation: Observation) -> int:
    """The most images, over the trained linear layers, convolutions and positions; 0 where none admits a whole one."""
    layers = {
        name: module
        for name, module in observation.model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d) and parameter_names(name)[0] in observation.trainable
    }
    positions = dict.fromkeys(layers, 0)

    def visit(name: str, given: Tensor, output: Tensor) -> None:
        positions[name] += output.numel() // layers[name].weight.shape[0]

    probe(observation.model, random_images(observation.input_shape, 1), layers, visit)
    ranks = {name: min(len(layer.weight) // getattr(layer, "groups", 1), layer.weight[0].numel())
             for name, layer in layers.items()}  # fmt: skip
    patches = find_patch_embedding(observation.model, observation.input_shape)
    seen = patches is not None and {patches.weight, patches.positions} <= set(observation.trainable)
    return max((ranks[name] // count for name, count in positions.items() if count), default=int(seen)) or int(seen)
