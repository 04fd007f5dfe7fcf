"""Graded chat prompts against any OpenAI-compatible endpoint.

    locust -f locustfiles/chat.py --host http://127.0.0.1:8000 --mix short=0.6,medium=0.3,long=0.1 --out runs/mine

The key is taken from TAOTOKEN_API_KEY or OPENAI_API_KEY. Each request that Locust counts is one row of
Parquet under --out.
"""

import locust  # noqa: F401  patches sockets before anything else is imported

from workers import locust_hooks
from workers.user import ChatUser

__all__ = ["ChatUser"]

locust_hooks.install()
