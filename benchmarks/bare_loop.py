"""The least that receiving a streamed token can cost in Python on this machine: one epoll loop over stamped sockets.

usage: bare_loop.py PORT STREAMS TOKENS SECONDS

It looks at nothing but the end mark, writes nothing, and knows no users: a floor, not a client. Prints the tokens/s and
the CPU microseconds a token.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

from workers.kernel_time import CONTROL_BYTES, enable_stamps, stamp_of

port, num_streams, num_tokens, seconds = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
messages = [{"role": "user", "content": "a few words"}]
body = json.dumps({"model": "timed", "messages": messages, "max_tokens": num_tokens, "stream": True}).encode()
request = b"POST /v1/chat/completions HTTP/1.1\r\nX-Request-Id: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
epoll = select.epoll()
sockets = {}
for _ in range(num_streams):
    connected = socket.create_connection(("127.0.0.1", port))
    connected.setblocking(False)
    enable_stamps(connected)
    sockets[connected.fileno()] = connected
    epoll.register(connected, select.EPOLLIN | select.EPOLLET)
for connected in sockets.values():
    connected.send(request)
started, started_cpu, num_received = time.monotonic(), time.process_time(), 0
while time.monotonic() - started < seconds:
    time.sleep(0.001)
    for fd, _ in epoll.poll(0, num_streams):
        data, ancillary, _, _ = sockets[fd].recvmsg(4096, CONTROL_BYTES)
        stamp_of(ancillary)
        num_received += 1
        if b"[DONE]" in data:
            sockets[fd].send(request)
cpu = time.process_time() - started_cpu
print(json.dumps({"tokens_per_s": num_received / seconds, "cpu_us_per_token": cpu / num_received * 1e6}))
