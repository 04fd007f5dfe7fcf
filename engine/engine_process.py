"""The step loop in a process of its own: ``python -m engine.engine_process FD``.

The loop shares no interpreter lock with the HTTP side (docs/decisions/0002-engine-process.md). It takes everything that
waits in the pipe, runs one step, and sends one message. It ends when the other end of the pipe closes, however that
happened.
"""

from __future__ import annotations

import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from engine.errors import ConfigError, RequestError
from engine.wire import Abort, Aborted, Add, Died, Ready, Refused, Stepped

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine


def run(connection: Connection) -> None:
    """Serve one engine over a pipe until the other end closes."""
    try:
        _serve(connection)
    except (EOFError, ConnectionError):
        return
    except ConfigError as error:
        connection.send(Died(str(error), is_config=True))
    except Exception as error:
        traceback.print_exc()
        connection.send(Died(f"{type(error).__name__}: {error}", is_config=False))


def _serve(connection: Connection) -> None:
    from engine.llm_engine import LLMEngine

    engine = LLMEngine(connection.recv())
    connection.send(Ready(engine.config, engine.path, engine.vocab_size, engine.stats()))
    while True:
        while connection.poll(0 if engine.has_unfinished() else None):
            _take(engine, connection.recv(), connection)
        output = engine.step()
        connection.send(Stepped(output.outputs, output.row, engine.stats()))


def _take(engine: LLMEngine, message: Add | Abort, connection: Connection) -> None:
    if isinstance(message, Abort):
        timing = engine.abort(message.request_id)
        if timing is not None:
            connection.send(Aborted(timing, engine.stats()))
        return
    try:
        engine.add_request(message.request_id, message.prompt_token_ids, message.params)
    except RequestError as error:
        connection.send(Refused(message.request_id, str(error), error.param))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the whole group; the parent decides
    run(Connection(int(sys.argv[1])))
