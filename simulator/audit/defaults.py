"""The defaults of an audit that the command line shows as well, in a file that costs `--help` no time."""

TIMEOUT = 600.0  # processor seconds that an attack may take
MINUTES = 5.0  # of an idle machine, after which an audit ends
