"""One engine behind its HTTP app, without Ray: ``python -m engine --model demo --port 8000``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import fields

import uvicorn

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.server.app import build_app


def main() -> int:
    """Serve until interrupted; 2 for settings that cannot work."""
    parser = argparse.ArgumentParser(prog="python -m engine", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model-name", help="name to serve the model under (default: as --model)")
    for field in fields(EngineConfig):
        kind = str if "str" in str(field.type) else int
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    options = vars(parser.parse_args())
    host, port, name = options.pop("host"), options.pop("port"), options.pop("model_name")
    try:
        asyncio.run(_serve(EngineConfig(**options), host, port, name or options["model"]))
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


async def _serve(config: EngineConfig, host: str, port: int, name: str) -> None:
    engine = AsyncEngine(config)
    await engine.start()
    try:
        server = uvicorn.Server(uvicorn.Config(build_app(engine, name), host, port, log_level="warning"))
        await server.serve()
    finally:
        await engine.close()


if __name__ == "__main__":
    sys.exit(main())
