"""Servers that a worker starts beside itself, for endpoints with `launch`.

server = servers.join(name, endpoint)
url = await server.base_url()     # before each attempt: it changes when the server is restarted
server.leave()
"""

from curate.engine.servers.commands import problem
from curate.engine.servers.server import Server, join

__all__ = ["Server", "join", "problem"]
