"""Run a simulation's clients on Flower's Ray actors, and replace actors that hang or die.

Only this file depends on the inside of Flower: `run_simulation` offers no choice of backend.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch  # sets an attribute inside a block, and restores it

import ray
from flwr.app import ConfigRecord, Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport.ray_actor import BasicActorPool

from clients.client_app import LIMIT, OUT_OF_TIME
from clients.time_limit import LAST_RESORT, longest, unhurried
from simulator.run.client_actor import ClientActor
from simulator.run.cluster import actors_that_fit

START = 120.0  # seconds for a new worker to come up and import what clients need, on an idle machine
UNKNOWN = 0  # Flower's code for an error outside of a ClientApp
DIED = "the client's process ended: killed, out of memory, or by its own exit"
ATTEMPTS = 2  # the process may have ended for no fault of its client: a lost machine, the memory of others
POLL = 0.05  # seconds between two looks at the pool


class NoWorker(Exception):
    """An actor did not come up: its machine is lost, or has no room."""


@dataclass(frozen=True)
class Work:
    """A message that an actor works on.

    ready: a reference that is there when the actor is up.
    seconds: processor seconds that the client may take from then on, None for no limit.
    """

    actor: Any
    ready: Any
    seconds: float | None


class KillablePool(BasicActorPool):
    """Flower's pool of actors, which can also kill and replace busy ones.

    Flower waits for an actor without limit: one client that hangs would block a worker in every later round, and keep
    the simulation from ending. Here a client's time starts when a worker takes it up. When it is over, the client or
    its process ends itself; a process that is stopped as a whole is killed.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.work: dict[Any, Work] = {}  # by the reference of its result
        self.killed: set[Any] = set()
        self.lost: set[Any] = set()  # those that did not come up
        self.lock = threading.Lock()

    def submit(self, actor_fn: Any, job: tuple[Any, Message, str, Context]) -> Any:
        actor, limit = self._take(), job[1].content.config_records.get("config", ConfigRecord()).get(LIMIT)
        ready = actor.__ray_ready__.remote()
        future = actor_fn(actor, *job)
        self.work[future] = Work(actor, ready, limit if isinstance(limit, int | float) else None)
        return future

    def fetch_result_and_return_actor_to_pool(self, future: Any) -> tuple[Message, Context]:
        """Raise ray.exceptions.GetTimeoutError if the time is up, RayActorError if the process has ended, and NoWorker
        if the work has not begun."""
        work = self.work[future]
        try:
            ray.get(work.ready, timeout=unhurried(START))
        except ray.exceptions.RayError as error:  # it did not come up, or died while it was idle
            if isinstance(error, ray.exceptions.GetTimeoutError):
                self.lost.add(work.actor)
            self._kill(work.actor)
            raise NoWorker from None
        start = time.monotonic()
        try:
            _, reply, context = ray.get(future, timeout=work.seconds and longest(work.seconds) + LAST_RESORT)
        except ray.exceptions.RayTaskError:  # an exception of the client
            raise
        except ray.exceptions.RayError as error:  # its process has ended: by itself, or by Ray for want of memory
            self._kill(work.actor)
            if work.seconds is not None and time.monotonic() - start > work.seconds:
                raise ray.exceptions.GetTimeoutError from error
            raise
        self.add_actor_back_to_pool(future)
        return reply, context

    def add_actor_back_to_pool(self, future: Any) -> None:
        """Put the actor back, or a new one if it was killed. Replace one that never came up only if it is the last."""
        actor = self.work.pop(future).actor
        with self.lock:
            if actor in self.lost and self.num_actors > 1:
                self.num_actors -= 1
                return
        self.pool.append(self.create_actor_fn() if actor in self.killed else actor)

    def replace_busy(self) -> None:
        """Kill the actors that are at work: an error answers their messages, and new actors take their place."""
        for work in list(self.work.values()):
            self._kill(work.actor)

    def _take(self) -> Any:
        """Wait for a free actor and return it. Flower does not: it counts lost ones as free."""
        while True:
            with contextlib.suppress(IndexError):
                return self.pool.pop()
            time.sleep(POLL)

    def _kill(self, actor: Any) -> None:
        self.killed.add(actor)
        ray.kill(actor)


class KillingBackend(raybackend.RayBackend):
    """Flower's Ray backend, which kills actors that hang, and all of them before Ray is shut down.

    Flower ends its actors by a task that exits its own actor, and shuts Ray down at once. Such a task counts as failed,
    and Ray retries and reports it. A report after the shutdown finds no raylet, and Ray ends the whole process without
    a word. Killing an actor leaves no task behind.
    """

    def __init__(self, config: Any, clients: int):
        """clients: their number, and the largest number of actors: each is a process that imports PyTorch."""
        super().__init__(config)
        self.clients = clients

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        pool, app = KillablePool(ClientActor, self.client_resources, {}), app_fn()
        pool.add_actors_to_pool(min(actors_that_fit(**self.client_resources), self.clients))
        self.pool, self.app_fn = pool, lambda: app  # Flower's function would take its server's modules along

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        """Return the reply, or an error that says what became of the client."""
        died = missing = 0
        while died < ATTEMPTS and missing <= self.num_workers:  # a worker that does not come up is no attempt
            try:
                return super().process_message(message, context)
            except ray.exceptions.GetTimeoutError:
                return Message(Error(OUT_OF_TIME, "out of time"), reply_to=message), context
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError:
                died += 1
            except NoWorker:
                missing += 1
        never = f"no worker came up within {START:g} s: the client has not started"
        return Message(Error(UNKNOWN, DIED if died else never), reply_to=message), context

    def patience(self, clients: int, seconds: float) -> float:
        """Return the seconds after which a round has to be over on the busiest machine: the clients take turns, each
        waits for a worker and has `seconds` of a processor."""
        return math.ceil(clients / max(1, self.num_workers)) * (longest(seconds + START) + LAST_RESORT)

    def replace_busy(self) -> None:
        """Free the workers that are still busy."""
        if isinstance(self.pool, KillablePool):
            self.pool.replace_busy()

    def terminate(self) -> None:
        actors: list[Any] = list(self.pool.pool) if self.pool else []
        for actor in actors:
            ray.kill(actor)
        self.pool = None  # no actor is left to be asked to exit
        super().terminate()


@contextlib.contextmanager
def killing_backend(clients: int) -> Iterator[list[KillingBackend]]:
    """Let simulations that start inside use a `KillingBackend`; yield the list of those that have started.

    Flower looks the class up in its module whenever a simulation starts. A test fails if a version does not.
    """
    started: list[KillingBackend] = []

    def start(config: Any) -> KillingBackend:
        started.append(KillingBackend(config, clients))
        return started[-1]

    with patch.object(raybackend, "RayBackend", start):
        yield started
