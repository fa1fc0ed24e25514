"""All tables in one run, on the GPU where there is one."""

import torch

from tests.benchmarks import growth, iteration, kernel, maps, memory, quality
from tests.benchmarks.timing import TURNS


def main() -> None:
    torch.set_num_threads(1)  # ratios on one core repeat; on all cores they depend on who else computes
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU, one thread"
    print(f"device: {name}; torch {torch.__version__}; float32; times are medians of {5 * TURNS} runs in turns\n")
    memory.print_table()  # first: a child inherits the peak of this process
    kernel.print_kernel(device)
    iteration.print_ntk(device)
    iteration.print_span(device)
    maps.print_shares(device)
    maps.print_growth(device)
    growth.print_growth(device)
    quality.print_table(device)


if __name__ == "__main__":
    main()
