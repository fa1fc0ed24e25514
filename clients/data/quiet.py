"""Silence for libraries that talk on their own."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

LOGGERS = ("datasets", "flwr_datasets", "huggingface_hub", "fsspec", "httpx")


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, warnings or log lines of Hugging Face and flwr-datasets; all as before afterwards."""
    import datasets
    from datasets.utils.tqdm import are_progress_bars_disabled

    had_bars = not are_progress_bars_disabled()
    levels = {logger: logger.level for logger in map(logging.getLogger, LOGGERS)}
    datasets.disable_progress_bars()
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
        if had_bars:
            datasets.enable_progress_bars()
