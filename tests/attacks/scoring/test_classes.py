"""A guess at the classes, which is no reconstruction: floors by class, and a null among images of the same classes."""

import gzip

import numpy as np
import pytest
import torch
from scipy.cluster.vq import kmeans2

from attacks.scoring.images import Pool
from attacks.scoring.leakage import score


def rng(seed=0):
    return np.random.default_rng(seed)


def test_the_floor_by_classes_is_of_the_client_s_own_label_counts():
    """By hand: classes are shades, three dark images to a light one, and each image has one of its own shade."""
    shades, labels, public_labels = torch.tensor([0.2, 0.8]), torch.tensor([0, 0, 0, 1]), torch.arange(40) % 2

    def images(kinds):  # those of one class differ by 0.001 a pixel
        return (shades[kinds] + 1e-3 * torch.arange(len(kinds))).view(-1, 1, 1, 1).expand(-1, 1, 4, 4)

    private, public = images(labels), images(public_labels)
    found = score(private, private, Pool(public, private, public_labels, labels), rng(), labels=labels)
    assert found.class_floor is not None and (found.class_floor.l2 < 0.04 * 4).all()
    assert found.columns()["class_floor_leakage"] == found.class_floor_leakage
    assert (found.floor.l2 > 0.5 * 4).any()  # of any shades: this draw has fewer than three dark ones, or no light one


def test_where_classes_are_not_known_there_is_no_floor_by_class():
    private, public = torch.rand(3, 1, 8, 8), torch.rand(20, 1, 8, 8)
    columns = score(private, private, Pool(public, private), rng()).columns()
    assert np.isnan(columns["class_floor_leakage"]) and np.isnan(columns["class_floor_recovered_fraction"])


@pytest.mark.parametrize("returned", ["20 other ones", "30 centres of other ones"])
def test_a_guess_at_the_class_is_told_no_better_than_other_images_of_it(shared_data, returned):
    """Reviewers' case: 20 ones of MNIST, candidates that know nothing but that they are ones."""
    images, labels = (_read(shared_data / f"mnist/t10k-{name}.gz", start) for name, start in
                      (("images-idx3-ubyte", 16), ("labels-idx1-ubyte", 8)))  # fmt: skip
    images = torch.tensor(images.reshape(-1, 1, 28, 28) / 255, dtype=torch.float32)
    labels = torch.tensor(labels.astype(np.int64))
    ones, others = torch.nonzero(labels == 1).flatten(), torch.nonzero(labels != 1).flatten()
    rest = torch.cat([ones[620:670], others[:450]])  # one in ten, as everywhere
    private, pool = ones[:20], Pool(images[rest], images[ones[:20]], labels[rest], labels[ones[:20]])
    centres = kmeans2(images[ones[40:600]].flatten(1).numpy(), 30, seed=0, minit="++")[0]
    candidates = images[ones[20:40]] if returned.split()[1] == "other" else torch.tensor(centres).view(-1, 1, 28, 28)
    blind = score(images[private], candidates.float(), pool, rng()).columns()
    assert blind["null_p"] == 0.01 and blind["leakage"] > 3 * blind["floor_leakage"]
    told = score(images[private], candidates.float(), pool, rng(), labels=labels[private]).columns()
    assert told["null_p"] > 0.1 and told["null_recovered_p"] > 0.1 and told["null_recognized_p"] > 0.1
    assert told["class_floor_leakage"] > 3 * told["floor_leakage"]
    own = score(images[private], images[private], pool, rng(), labels=labels[private]).columns()
    assert own["null_p"] == own["null_recovered_p"] == own["null_recognized_p"] == 0.01


def _read(path, start):
    return np.frombuffer(gzip.open(path).read(), np.uint8, offset=start)
