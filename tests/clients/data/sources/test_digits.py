import numpy as np
import torch

from tests.clients.data.data_sources import load


def test_digits():
    data = load("digits")
    assert len(data.train.labels) == 1437 and len(data.test.labels) == 360
    assert data.class_names == tuple("0123456789")
    counts = np.bincount(data.train.labels) + np.bincount(data.test.labels)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as scikit-learn documents them
    images = data.train.images(np.arange(1437))
    assert images.shape == (1437, 1, 8, 8) and images.dtype == torch.float32
    assert images.min() == 0 and images.max() == 1
