"""Federated runs under a curious server."""

import os

# Telemetry is off unless the user turns it on. Flower and Ray read these when they are imported, which happens below
# this package only, so here is early enough.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# Workers without a GPU share keep seeing the GPUs, as Ray itself will do in future versions.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
