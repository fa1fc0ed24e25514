"""What adapters (LoRA) of a fine-tuned vision transformer tell of a client, beside all its layers, and its head alone.

`python -m tests.benchmarks.adapters --root DATA` prints, for each kind of client, a line for each seed. The network
(`vit_tiny`: four blocks of width 96, patches of 4) is trained for 12 epochs on the 4,660 training images of CIFAR-10's
lossless subset; clients have images of its 932 test images, and adapt it by SGD: adapters of rank 8 on attention's
`qkv` in every block and the head (*adapters*), all layers (*whole*), or the head (*head*). AUC: members against 100
images that are none, with their classes, by `fedspill member`'s gradients. PSNR: of one image, after one step, by
`gradient_matching`, which is told the rate and the number of images and steps; nearest: of all 932, its own is the one
that is most alike, by the correlation of pixels.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks import Knowledge, Observation, get_attack
from attacks.gradient_membership import gradient_scores
from attacks.interface.observation import State, trained_names
from attacks.membership import MembershipScore
from clients.models.networks import ViTTinyOptions
from tests.attacks.user_networks import Adapted
from tests.benchmarks.membership import lossless

SHAPE = (3, 32, 32)
TRAINING = 4660  # images that the network is trained on, before the 932 of clients
KINDS = ("adapters", "whole", "head")
RATES = {"adapters": 0.05, "whole": 0.01, "head": 0.05}
MOST = 100  # images of a client; as many after these are nobody's, and the last 64 another client's
Images = tuple[Tensor, Tensor]  # and their classes


def pretrained(images: Tensor, labels: Tensor) -> nn.Module:
    """The network, with adapters that change nothing."""
    torch.manual_seed(0)
    model = ViTTinyOptions(width=96, depth=4, heads=3).build(SHAPE, 10)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(12):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model.eval()


def adapted(model: nn.Module, kind: str) -> nn.Module:
    """A copy of the network of which a kind of client trains its part."""
    copied = ViTTinyOptions(width=96, depth=4, heads=3).build(SHAPE, 10)
    copied.load_state_dict(model.state_dict())
    copied.requires_grad_(kind == "whole")
    copied.head.requires_grad_()
    for block in copied.blocks if kind == "adapters" else ():
        block.attn.qkv = Adapted(block.attn.qkv, rank=8)
    return copied.eval()


def trained(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, rate: float) -> tuple[State, State]:
    """(sent, returned) of plain SGD in batches of 8."""
    sent = {name: value.detach().clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([model.get_parameter(name) for name in trained_names(model)], rate)
    for _ in range(epochs):
        for batch in torch.arange(len(images)).split(8):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    back = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return sent, back


def observed(model: nn.Module, kind: str, other: Images, own: Images, epochs: int) -> Observation:
    """A client's second round: the first was one on others' images, so that adapters are no longer as they begin."""
    client = adapted(model, kind)
    trained(client, *other, 1, RATES[kind])
    return Observation(client, (trained(client, *own, epochs, RATES[kind]),), SHAPE)


def members(model: nn.Module, kind: str, images: Images, count: int, epochs: int) -> tuple[float, float]:
    """(AUC, true positives at 1 %) of a client of the first images."""
    own, nobody, other = (tuple(part[chosen] for part in images) for chosen in parts(count))
    seen = observed(model, kind, other, own, epochs)
    scores = -gradient_scores(seen, torch.cat([own[0], nobody[0]]), torch.cat([own[1], nobody[1]]))
    told = MembershipScore.of(scores[:count], scores[count:])
    return told.auc, told.true_positives_1pct.rate


def parts(count: int) -> tuple[slice, slice, slice]:
    """A client's images among those of a draw, nobody's, and another client's."""
    return slice(count), slice(MOST, 2 * MOST), slice(-64, None)


def matched(model: nn.Module, kind: str, images: Images, seed: int) -> tuple[float, int]:
    """(PSNR, whether its own image is the most alike one) of gradient matching, of a client of the first image."""
    own, _, other = (tuple(part[chosen] for part in images) for chosen in parts(1))
    seen = observed(model, kind, other, own, 1)
    told = Knowledge(num_private=1, learning_rate=RATES[kind], steps=1, pixel_mean=(0.5,) * 3, pixel_std=(0.5,) * 3)
    attack = get_attack("gradient_matching", iterations=2000)
    found = attack.run(seen, told, torch.Generator().manual_seed(seed)).images[0]
    error = ((found - own[0][0]) / 2).square().mean()
    flat = torch.cat([found[None], images[0]]).flatten(1)
    alike = torch.corrcoef(flat - flat.mean(0))[0, 1:]
    return float(-10 * error.log10()), int(int(alike.argmax()) == 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder with cifar10/")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=10)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = lossless(chosen.root)
    model = pretrained(images[:TRAINING], labels[:TRAINING])
    images, labels = images[TRAINING:], labels[TRAINING:]
    right = (torch.cat([model(part) for part in images.split(100)]).argmax(1) == labels).float().mean()
    print(f"accuracy {float(right):.3f}\nkind,images,epochs,seed,auc,tpr,psnr,nearest", flush=True)
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        drawn = images[order], labels[order]
        for kind in KINDS:
            for count, epochs in ((8, 1), (8, 5), (64, 1), (64, 5)):
                auc, rate = members(model, kind, drawn, count, epochs)
                print(f"{kind},{count},{epochs},{seed},{auc:.3f},{rate:.3f},,", flush=True)
            if kind != "head":
                psnr, nearest = matched(model, kind, drawn, seed)
                print(f"{kind},1,1,{seed},,,{psnr:.1f},{nearest}", flush=True)


if __name__ == "__main__":
    main()
