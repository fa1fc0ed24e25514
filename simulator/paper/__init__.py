"""Experiments of Loo et al. (ICLR 2024) and on the constancy of the kernel, each called after its figure."""

import importlib
import pkgutil

# each module registers its experiments when imported: a new one is a new file
for module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(module.name)
