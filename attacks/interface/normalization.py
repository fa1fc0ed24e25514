"""Pixels as a network's input (`Normalization`), and as pictures in a notebook or a PNG file (`Pictures`)."""

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalization:
    """(pixels − mean) / std, channel by channel, of pixels in [0, 1].

    mean: one value per channel; empty where nothing is subtracted.
    std: likewise; empty where nothing is divided.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...] = ()

    def inputs(self, pixels: Tensor) -> Tensor:
        """Normalize pixels (N, C, H, W) in [0, 1] to the network's input space."""
        return (pixels - _by_channel(self.mean or (0.0,), pixels)) / _by_channel(self.std or (1.0,), pixels)

    def pixels(self, inputs: Tensor) -> Tensor:
        """Invert `inputs` for images (N, C, H, W) in the network's input space; values are not clamped to [0, 1]."""
        return inputs * _by_channel(self.std or (1.0,), inputs) + _by_channel(self.mean or (0.0,), inputs)


def _by_channel(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Return values (1, C, 1, 1), or (1, 1, 1, 1) of one for all channels, in the dtype and on the device of `like`."""
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(1, -1, 1, 1)


HEIGHT = 56  # pixels of an image in a notebook
LEAST, GAP = 96, 2  # pixels of a file: the least height of an image, the space between two


@dataclass(frozen=True, eq=False)
class Pictures:
    """Strips of images, one above the other. A notebook shows them by itself; `save` makes a file of them.

    strips: pairs (label, images (N, C, H, W) in [0, 1]). Images of one column belong together.
    captions: below the columns.
    notes: lines of text at the end.
    """

    title: str
    strips: tuple[tuple[str, Tensor], ...]
    captions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(images)} {label}" for label, images in self.strips)
        return f"Pictures({self.title!r}: {counts}; shown in a notebook, saved by .save('FILE.png'))"

    def _repr_html_(self) -> str:
        style = f'height="{HEIGHT}" style="image-rendering:pixelated"'
        rows = []
        for label, images in self.strips:
            data = [(f"{label}, {i}", base64.b64encode(png(one)).decode()) for i, one in enumerate(images, start=1)]
            cells = [f'<img alt="{escape(text)}" {style} src="data:image/png;base64,{code}">' for text, code in data]
            rows += [_row(label, cells)] if cells else []
        if self.captions:
            rows.append(_row("", map(escape, self.captions)))
        notes = "".join(f"<br>{escape(note)}" for note in self.notes)
        table = f'<table style="font-size:smaller;text-align:center">{"".join(rows)}</table>' if rows else ""
        return f"<div><b>{escape(self.title)}</b>{table}{notes}</div>"

    def save(self, path: str | Path) -> Path:
        """Write the strips as one PNG file, small images enlarged, and return its path."""
        path = Path(path)
        path.write_bytes(png(self._sheet()))
        return path

    def _sheet(self) -> Tensor:
        """Join all strips in one image (3, H, W), white between them."""
        filled = [images for _, images in self.strips if len(images)]
        if not filled:
            return torch.ones(3, 1, 1)
        scale = max(1, LEAST // filled[0].shape[2])
        columns = max(len(images) for images in filled)
        lines = []
        for images in filled:
            large = _colours(images).repeat_interleave(scale, 2).repeat_interleave(scale, 3)
            blank = torch.ones(columns - len(large), *large.shape[1:])
            cells = torch.nn.functional.pad(torch.cat([large, blank]), (0, GAP, 0, GAP), value=1.0)
            lines.append(torch.cat(list(cells), dim=2))
        return torch.cat(lines, dim=1)


def png(image: Tensor) -> bytes:
    """Encode an image (C, H, W) in [0, 1] as a PNG file: coloured for three channels, else their mean in grey."""
    from PIL import Image  # few processes show pictures

    pixels = (_colours(image[None])[0].clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def stretched(images: Tensor) -> Tensor:
    """Stretch images (N, C, H, W) with values outside [0, 1]: the lowest value is black, the highest white."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    scaled = (images - low) / (high - low).clamp_min(torch.finfo(images.dtype).tiny)
    return torch.where((low < 0) | (high > 1), scaled, images)


def _colours(images: Tensor) -> Tensor:
    """Return (N, 3, H, W) on the CPU: three channels as they are, else their mean in each."""
    images = stretched(images.detach().float().cpu())
    if images.shape[1] == 3:
        return images
    return images.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)


def _row(label: str, cells: Iterable[str]) -> str:
    return f"<tr><th>{escape(label)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
