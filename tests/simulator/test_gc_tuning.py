"""What only holds itself is gone after a round, however rarely Python looks for it."""

import subprocess
import sys

ROUND = """
import gc, weakref
from simulator import gc_tuning

class Message:
    def __init__(self):
        self.itself = self

usual = gc.get_threshold()
gc_tuning.collect_rarely()
imported = Message()
gc_tuning.collect_as_usual()
assert gc.get_threshold() == usual and gc.get_freeze_count() > 1000
gc_tuning.collect_as_usual()  # of the second run in a process
message = Message()
alive = weakref.ref(message)
del message
gc_tuning.collect_now()
print(alive())
"""


def test_a_message_does_not_outlive_its_round():
    done = subprocess.run([sys.executable, "-c", ROUND], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
