"""The README's picture and table, from one run: python docs/strip.py RUN [--client 0].

Above the private images of a client, below each the image that the attack `span` returned for it.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.optimize import linear_sum_assignment

import fedspill
from attacks.scoring.images import distances
from clients.local_update import load_data

MARGIN, SCALE = 2, 2  # pixels between images; enlargement
SHOWN = ["round", "client", "threat_model", "attack", "recovered", "num_private", "leakage", "floor_leakage", "seconds"]


def strip(private: np.ndarray, found: np.ndarray) -> Image.Image:
    """(N, C, H, W) in [0, 1] each; row j of `found` belongs to row j of `private`."""
    edges = ((0, 0), (0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN))
    rows = [np.concatenate(list(np.pad(images, edges, constant_values=1)), axis=2) for images in (private, found)]
    pixels = (np.concatenate(rows, axis=1).clip(0, 1) * 255).round().astype(np.uint8)
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    return picture.resize((picture.width * SCALE, picture.height * SCALE), Image.Resampling.NEAREST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--client", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("strip.png"))
    arguments = parser.parse_args()
    run = fedspill.load(arguments.run)
    data = load_data(run.cells[""].client_config(use_gpu=False))
    private = data.client(arguments.client)[0]
    found = run.attack(1, arguments.client, "span").pixels()  # bit for bit what the run found
    apart = distances(private, found)
    of, nearest = linear_sum_assignment(apart.numpy())
    shown = found.new_zeros(private.shape)
    shown[of] = found[nearest]
    strip(private.numpy(), shown.numpy()).save(arguments.out, optimize=True)
    print(run.leakage[SHOWN].round(2).to_string(index=False))
    print(f"{arguments.out}: client {arguments.client}, farthest image at L2 {float(apart[of, nearest].max()):.2g}")


if __name__ == "__main__":
    main()
