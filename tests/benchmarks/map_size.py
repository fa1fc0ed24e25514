"""Maps of large images: a client of ResNet-18, random weights, one step, in a process whose peak memory is printed.

    python -m tests.benchmarks.map_size [--side 224] [--images 8] [--channels 64] [--stem imagenet]

Times are of the processor, in u: twenty products of 1024 x 1024 matrices on the same thread.
"""

import argparse

import torch

from attacks import Reconstruction
from simulator.paper.gradient_memory import peak_bytes
from tests.benchmarks.map_clients import LocalTraining, client, leaves, random_resnet
from tests.benchmarks.timing import four_products, seconds_of

CPU = torch.device("cpu")


def unit() -> float:
    """Processor seconds of u, the fastest of five."""
    products = four_products(CPU)
    return 5 * min(seconds_of(products, CPU) for _ in range(25))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--stem", choices=["imagenet", "cifar"], default="imagenet")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = random_resnet(options.channels, options.side, options.stem)
    images, labels = leaves(options.images, options.side, 1000), torch.arange(options.images) % 10
    trained, prepared = client(model, images, labels, LocalTraining()), peak_bytes(CPU)
    results: list[Reconstruction] = []
    taken = seconds_of(lambda: results.append(trained.attacked()), CPU) / unit()
    found = results[0]
    errors = trained.errors(found)
    print(f"ResNet-18, {options.channels} channels, {options.side} x {options.side}, N = {options.images}, one step")
    print(f"at {found.facts['layer']}: N inferred {found.num_inferred}, maps found {found.facts['maps_accepted']:.0f}")
    print(f"relative errors {errors[0]:.1e} to {errors[-1]:.1e}, {taken:.0f} u of the processor")
    print(f"peak memory {peak_bytes(CPU) / 2**30:.2f} GiB, {prepared / 2**30:.2f} before the attack")


if __name__ == "__main__":
    main()
