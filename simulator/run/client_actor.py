"""The process in which a simulation's clients train.

Flower's own actor is defined beside its server, and importing that takes a quarter of a worker's start.
"""

from collections.abc import Callable

import ray
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import ClientAppException

from attacks.interface.torch_tools import free_card, require_usable_card
from clients.client_app import loaded


@ray.remote
class ClientActor:
    """Lets one client after the other answer a message, as Flower's `ClientAppActor` does."""

    def __init__(self) -> None:
        loaded()  # imports take none of the time of the first client

    def run(
        self, load_app: Callable[[], ClientApp], message: Message, client: str, context: Context
    ) -> tuple[str, Message, Context]:
        """Return (the client, its reply, its state afterwards). Raise ClientAppException, which Flower answers."""
        require_usable_card()
        try:
            return client, load_app()(message=message, context=context), context
        except Exception as error:
            raise ClientAppException(str(error)) from error
        finally:
            free_card()
