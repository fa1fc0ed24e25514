"""Adam as a step that never waits for the device: on CUDA the whole step, loss and gradients included, is one graph.

What changes from step to step (temperature, step size, Adam's bias corrections) lies in scalar tensors on the device,
so that a captured graph reads the current values; the host only launches. On a CPU the same function runs as it is.
"""

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Kingma and Ba 2015, as in torch.optim.Adam
WARM_UP = 3  # steps before a capture: libraries load, buffers and low-rank factors are made


class GraphedAdam:
    """Adam (Kingma and Ba 2015, algorithm 1) on `parameters`, each with a step size of its own.

    backward: adds the gradient at an inverse temperature (a scalar tensor) to every parameter's `grad`, in place, and
    returns the loss without its graph.
    loss: that of the last step. total: their sum since it was last set to zero. Both are scalar tensors: to read them
    is to wait for the device.
    """

    def __init__(
        self, backward: Callable[[Tensor], Tensor], parameters: Sequence[Tensor], learning_rates: Sequence[float]
    ):
        self.backward, self.parameters, self.learning_rates = backward, list(parameters), list(learning_rates)
        first = self.parameters[0]
        self.loss, self.total, self.beta = (torch.zeros((), dtype=first.dtype, device=first.device) for _ in range(3))
        # float64: 1 − 0.999^t loses its first digits in float32
        self.decay, self.count = (torch.zeros((), dtype=torch.float64, device=first.device) for _ in range(2))
        self.means, self.squares = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))
        self.gradients = [torch.zeros_like(p) for p in self.parameters]
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient  # never replaced: a graph writes where it wrote before
        self.advance: Callable[[], None] = self._advance
        if first.device.type == "cuda":
            with torch.cuda.device(first.device):  # streams and graphs are made on the current one
                self.advance = self._captured() or self._advance

    def step(self, beta: float, decay: float) -> None:
        """Make one step at inverse temperature beta, with every step size multiplied by decay."""
        self.beta.fill_(beta)
        self.decay.fill_(decay)
        self.advance()

    def _advance(self) -> None:
        for gradient in self.gradients:
            gradient.zero_()
        loss = self.backward(self.beta)
        with torch.no_grad():
            self.loss.copy_(loss)
            self.total.add_(loss)
            self.count.add_(1)
            correction = (1 - BETA2**self.count).sqrt()
            rate = self.decay / (1 - BETA1**self.count)
            for parameter, gradient, mean, square, learning_rate in zip(
                self.parameters, self.gradients, self.means, self.squares, self.learning_rates, strict=True
            ):
                mean.lerp_(gradient, 1 - BETA1)
                square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
                width = square.sqrt().div_(correction).add_(EPSILON)
                parameter.sub_((mean / width).mul_(learning_rate * rate))

    def _captured(self) -> Callable[[], None] | None:
        """Return the step as a CUDA graph; None where the network does something that no graph can hold."""
        state = [*self.parameters, *self.means, *self.squares, self.loss, self.total, self.count]
        before = [tensor.detach().clone() for tensor in state]
        self.beta.fill_(1.0)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._advance()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        replay: Callable[[], None] | None = graph.replay
        try:
            # on this stream: torch's own for captures belongs to the GPU of the first of them. A capture that fails
            # would leave it the current one
            with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, stream=stream):
                self._advance()
        except RuntimeError as error:
            warnings.warn(f"no CUDA graph of this network, each step is launched anew: {error}", stacklevel=2)
            replay = None
        with torch.no_grad():
            for tensor, value in zip(state, before, strict=True):
                tensor.copy_(value)
        return replay
