"""Anybody's federation: recording it, and attacking the recording. The defaults stand here, as the command line shows
them and imports nothing heavy.
"""

TIMEOUT = 600.0  # processor seconds that an attack may take
MINUTES = 5.0  # of an idle machine, after which an audit ends
