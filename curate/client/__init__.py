"""The service from Python, over its REST API:

    client = Client("https://curate.example", token)    # or Client.of("NAME") after `curate login`
    run = client.submit(recipe, workspace="main", set=["target=3000"])
    for event in run.events():
        ...
    run.wait()
    client.resolve("openclipart@good")["url"]

Answers are the API's JSON as dicts. Every method raises CurateError (one line) on failure; if the server rejected the
request, it is a ServerError with the problem's `code` and `status`.
"""

from curate.client.client import Client, RemoteRun, is_over
from curate.client.http import ServerError

__all__ = ["Client", "RemoteRun", "ServerError", "is_over"]
